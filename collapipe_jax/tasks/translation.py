"""Translation: parallel text, an encoder-decoder, scored by BLEU."""

import dataclasses
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jax import Array

from collapipe_jax.errors import InputError, under_keys
from collapipe_jax.files.atomic import write_text
from collapipe_jax.models import counts
from collapipe_jax.models.config import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    Ids,
    TransformerConfig,
    encoder_sizes,
)
from collapipe_jax.models.decoding import beam_search
from collapipe_jax.models.layers import Params
from collapipe_jax.models.transformer import TranslationBatch, Translator
from collapipe_jax.models.translator_files import save_translator
from collapipe_jax.seeds import seed_of
from collapipe_jax.tasks.corpora import TextFile
from collapipe_jax.tasks.sampling import seeded_generator
from collapipe_jax.tasks.scores import bleu
from collapipe_jax.tasks.subwords import BpeTokenizer, pad_rows, train_bpe
from collapipe_jax.tasks.synthetic import generate_parallel_text
from collapipe_jax.tasks.task import (
    TASK_KEY,
    Config,
    ModelCounts,
    Objective,
    Predictor,
    Task,
    held_out_loss,
    in_batches,
)

SYNTHETIC = "synthetic"
MAX_LABELS = 8

Pair = tuple[str, str]

_APOSTROPHES = "\u2018\u2019\u201a\u201b\u02bc\u00b4`"
_QUOTES = "\u201c\u201d\u201e\u201f\u00ab\u00bb"
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
_REPLACEMENTS = str.maketrans(
    {
        **dict.fromkeys(_APOSTROPHES, "'"),
        **dict.fromkeys(_QUOTES, '"'),
        **dict.fromkeys(_INVISIBLE, None),
        "\u2581": "_",  # the tokenizer's mark of a space
    }
)


class SourceSplit(NamedTuple):
    """Disjoint sets of sentence pairs ``(source, target)``, without a source in two of them."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


class ParallelSentences(NamedTuple):
    """The n sentence pairs of a set, normalised."""

    sources: tuple[str, ...]
    references: tuple[str, ...]


class TranslationData(NamedTuple):
    """Arrays and vocabulary of a translation task."""

    tokenizer: BpeTokenizer
    # padded token ids, NumPy leaves ``[n, ...]``: tokens and end of the source; begin, tokens and
    # end of the target
    train: TranslationBatch
    validation: TranslationBatch
    test: TranslationBatch
    # the sentences, row by row
    validation_text: ParallelSentences
    test_text: ParallelSentences
    # Class of every training source by length, see ``length_labels``, ``[n]``
    split_keys: np.ndarray
    dropped: dict[str, int]  # number of pairs left out: empty ones, and too long ones by set


def read_parallel_text(corpus: str) -> tuple[list[Pair], int]:
    """Normalised sentence pairs in file order, and the number of those left out.

    Pairs with an empty side and blank lines are left out.

    Args:
      corpus: a file with a pair a line, source and target in its first two columns (further
        columns are ignored), between tabs; or ``A|B``, two files aligned line by line.

    Raises:
      InputError: an unreadable file, a line without a tab, or files that are not aligned.
    """
    files = [TextFile("task.corpus", name) for name in corpus.split("|")]
    if len(files) > 2:
        raise InputError("task.corpus", corpus, "more than two files", "Give one, or A|B")
    rows = _tabbed_rows(files[0]) if len(files) == 1 else _aligned_rows(corpus, *files)
    pairs = [(normalise(source), normalise(target)) for source, target in rows]
    kept = [pair for pair in pairs if all(pair)]
    return kept, len(pairs) - len(kept)


def normalise(text: str) -> str:
    """Text in one spelling: equal sentences become equal strings.

    Unicode NFC. Every run of white space becomes one plain space, at the ends none.
    Typographic apostrophes (accents used as such too) and quotation marks become ASCII ones;
    soft hyphens and zero-width characters vanish. The function is idempotent.
    """
    # before and after NFC: removed characters may separate what composes, and a few
    # characters compose into replaced ones
    text = unicodedata.normalize("NFC", text.translate(_REPLACEMENTS)).translate(_REPLACEMENTS)
    return " ".join(text.split())


def split_by_source(pairs: Sequence[Pair], sizes: tuple[int, int, int], seed: int) -> SourceSplit:
    """Random train, validation and test sets that share no source, by ``source_key``.

    In a many-to-many corpus a source has several translations, and a split by pairs would
    test on sources seen in training. Sources are shuffled and assigned to test, then validation,
    then training. Validation and test take the first pair of each of their sources: one
    reference a source, the usual single-reference BLEU. Training takes every pair of its sources.

    Raises:
      InputError: a corpus too small for the sizes.
    """
    train_size, validation_size, test_size = sizes
    pairs_of: dict[str, list[Pair]] = {}
    for pair in pairs:
        pairs_of.setdefault(source_key(pair[0]), []).append(pair)
    members = list(pairs_of.values())
    held_out = validation_size + test_size
    if len(members) <= held_out:
        problem = (
            f"the corpus has {len(members)} distinct source sentences, too few to hold out "
            f"{validation_size} for validation and {test_size} for test"
        )
        remedy = "Lower task.validation_pairs or task.test_pairs, or use a larger corpus"
        raise InputError("task.validation_pairs", validation_size, problem, remedy)
    order = seeded_generator(seed).permutation(len(members))
    test = [members[g][0] for g in order[:test_size]]
    validation = [members[g][0] for g in order[test_size:held_out]]
    train = [pair for g in order[held_out:] for pair in members[g]]
    if train_size > len(train):
        problem = f"the corpus has only {len(train)} pairs for training"
        remedy = "Lower task.pairs, or validation and test"
        raise InputError("task.pairs, less validation and test", train_size, problem, remedy)
    return SourceSplit(train[:train_size], validation, test)


def source_key(source: str) -> str:
    """A sentence without case and punctuation, or as it is without any letter."""
    return " ".join(re.findall(r"\w+", source.casefold())) or source


def length_labels(lengths: np.ndarray) -> np.ndarray:
    """Classes 0, 1, ... ``[n]`` of samples by length ``[n]``, short sentences first, without gaps.

    The bounds are the quantiles of the lengths, 8 classes of about equal size. Samples of equal
    length share a class, so where few lengths occur neighbouring classes merge: mostly 5 to 8
    remain, at least 1.
    """
    bounds = np.quantile(lengths, np.arange(1, MAX_LABELS) / MAX_LABELS, method="lower")
    _, labels = np.unique(np.searchsorted(bounds, lengths, side="left"), return_inverse=True)
    return labels.astype(np.int32)


def _tabbed_rows(file: TextFile) -> Iterable[Pair]:
    for number, line in enumerate(file.lines(), start=1):
        columns = line.split("\t")
        if len(columns) < 2 and line.strip():
            remedy = "Write one pair a line as source<TAB>target, or give two aligned files"
            raise file.error(f"line {number} has no tab between source and target", remedy)
        yield (columns[0], columns[1]) if len(columns) > 1 else ("", "")


def _aligned_rows(corpus: str, source: TextFile, target: TextFile) -> Iterable[Pair]:
    sources, targets = source.lines(), target.lines()
    if len(sources) != len(targets):
        problem = f"the files have {len(sources)} and {len(targets)} lines"
        remedy = "Give two files whose lines translate each other one by one"
        raise InputError("task.corpus", corpus, problem, remedy)
    return zip(sources, targets, strict=True)


def pair_arrays(
    tokenizer: BpeTokenizer, pairs: Sequence[Pair], lengths: tuple[int, int], name: str
) -> tuple[TranslationBatch, ParallelSentences]:
    """Padded ids of the pairs that fit, and these pairs."""
    sources = tokenizer.encode_batch([source for source, _ in pairs])
    targets = tokenizer.encode_batch([target for _, target in pairs])
    # Both lengths include the end id; begin has the extra place of the target.
    fits = [
        i
        for i in range(len(pairs))
        if len(sources[i]) < lengths[0] and len(targets[i]) < lengths[1]
    ]
    if not fits:
        problem = f"none of the {len(pairs)} pairs for {name} fits these numbers of tokens"
        remedy = "Give shorter sentences, or train with higher ones or task.vocabulary_size"
        raise InputError("(task.source_length, task.target_length)", lengths, problem, remedy)
    source_ids = pad_rows([[*sources[i], EOS_ID] for i in fits], lengths[0], PAD_ID)
    target_ids = pad_rows([[BOS_ID, *targets[i], EOS_ID] for i in fits], lengths[1] + 1, PAD_ID)
    kept = ParallelSentences(tuple(pairs[i][0] for i in fits), tuple(pairs[i][1] for i in fits))
    return TranslationBatch(source_ids, target_ids), kept


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(Objective):
    """The objective of translating, with the settings of the beam search on the test set."""

    headline: ClassVar[str] = "test_bleu_greedy"
    baseline: ClassVar[str] = "test_bleu_copy"

    model: Translator
    data: TranslationData
    beams: int
    length_penalty: float

    @classmethod
    def from_config(cls, config: Config) -> "Translation":
        """Read or generate the corpus."""
        options = {key: config["evaluation"][key] for key in ("beams", "length_penalty")}
        model, data = Translator(make_sizes(config)), cls.load_data(config)
        return cls(kind=config["task"]["kind"], model=model, data=data, **options)

    @classmethod
    def load_data(cls, config: Config) -> TranslationData:
        """Read or generate a corpus and turn it into arrays; a deterministic function.

        The vocabulary is learnt from the training text alone. Lengths include the end id. A pair
        that does not fit them is dropped and counted, never cut.

        Raises:
          InputError: a missing or broken corpus, sizes that it cannot serve, or lengths that
            leave a set empty.
        """
        task, seed = config["task"], seed_of(config, "task")
        lengths = task["source_length"], task["target_length"]
        pairs, held_out = task["pairs"], task["validation_pairs"] + task["test_pairs"]
        if pairs <= held_out:
            problem = f"validation and test take {held_out} of them, none are left to train on"
            remedy = "Raise it, or lower task.validation_pairs and task.test_pairs"
            raise InputError("task.pairs", pairs, problem, remedy)
        if task["corpus"] == SYNTHETIC:
            text, empty_lines = generate_parallel_text(seed, pairs), 0
        else:
            text, empty_lines = read_parallel_text(task["corpus"])
        if task["reverse"]:
            text = [(target, source) for source, target in text]
        sizes = (pairs - held_out, task["validation_pairs"], task["test_pairs"])
        split = split_by_source(text, sizes, seed)
        lines = (line for pair in split.train for line in pair)
        tokenizer = train_bpe(lines, task["vocabulary_size"])
        arrays, texts, dropped = {}, {}, {"empty": empty_lines}
        for name, chosen in split._asdict().items():
            arrays[name], texts[name] = pair_arrays(tokenizer, chosen, lengths, name)
            dropped[name] = len(chosen) - len(arrays[name].source_ids)
        return TranslationData(
            tokenizer=tokenizer,
            **arrays,
            validation_text=texts["validation"],
            test_text=texts["test"],
            split_keys=length_labels(np.sum(arrays["train"].source_ids != PAD_ID, axis=1)),
            dropped=dropped,
        )

    def validation_score(self, params: Params) -> float:
        """BLEU of greedy translations."""
        said = self.translate(params, self.data.validation.source_ids)
        return bleu(said, self.data.validation_text.references).value

    def baseline_score(self) -> float:
        """BLEU of copying the source."""
        return bleu(*self.data.validation_text).value

    def test(self, params: Params) -> dict[str, Any]:
        """BLEU of greedy search, of beam search if there are several beams, and of copying."""
        data = self.data
        sources, references = data.test.source_ids, data.test_text.references
        greedy = bleu(self.translate(params, sources), references)
        scores = {"test_bleu_greedy": greedy.value}
        if self.beams > 1:
            said = self.translate(params, sources, self.beams)
            scores["test_bleu_beam"] = bleu(said, references).value
        return {
            **scores,
            "test_bleu_copy": bleu(*data.test_text).value,
            "bleu_signature": greedy.signature,
            "test_loss": held_out_loss(params, self.model, data.test),
            "dropped_pairs": data.dropped,
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the tokenizer."""
        write_text(Path(folder) / "tokenizer.json", self.data.tokenizer.model.to_str(pretty=True))

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write parameters, sizes and tokenizer in a layout of their own."""
        self.save(folder)
        settings = {TASK_KEY: self.kind, "length_penalty": self.length_penalty}
        save_translator(Path(folder), self.model.sizes, params, settings)

    def translate(self, params: Params, source_ids: np.ndarray, beams: int = 1) -> list[str]:
        """Translations of sources ``[n, source_length]``, greedy for one beam."""
        options = {"beams": beams, "length_penalty": self.length_penalty if beams > 1 else 0.0}

        def decode(ids: Ids) -> Array:
            return beam_search(params, self.model.sizes, ids, **options)[0]

        return self.data.tokenizer.decode_batch(in_batches(decode, source_ids))


_SIZES = ("vocabulary_size", "source_length", "target_length")


def make_sizes(config: Config) -> TransformerConfig:
    """Sizes of the encoder-decoder."""
    task, model = config["task"], config["model"]
    for key in ("source_length", "target_length"):
        if task[key] < 2:
            problem = "no room for a token beside the end id"
            raise InputError(f"task.{key}", task[key], problem, "Use 2 or more")
    with under_keys({f"model.{key}": f"task.{key}" for key in _SIZES}):
        return TransformerConfig(
            **{key: task[key] for key in _SIZES},
            **encoder_sizes(model),
            decoder_blocks=model["decoder_blocks"],
            label_smoothing=model["label_smoothing"],
        )


def count_work(config: Config) -> ModelCounts:
    """Table of tokens in front of the encoder, decoder with tied weights behind it."""
    task, model = config["task"], config["model"]
    vocabulary_size, source, target = (task[key] for key in _SIZES)
    width, inner, blocks = (model[k] for k in ("width", "feed_forward_width", "decoder_blocks"))
    return ModelCounts(
        sequence=source,
        target_tokens=target,
        embedding_parameters=counts.embedding_parameters(vocabulary_size, width),
        decoder_parameters=counts.decoder_parameters(vocabulary_size, width, inner, blocks),
        embed_flops=counts.embedding_flops(source, width),
        decoder_flops=counts.decoder_flops(
            source_length=source,
            target_length=target,
            width=width,
            feed_forward_width=inner,
            blocks=blocks,
            vocabulary_size=vocabulary_size,
            rematerialise=model["rematerialise"],
        ),
    )


def load(folder: Path) -> Predictor:
    """A trained translator."""
    from collapipe_jax.tasks import translator  # which needs this module

    return translator.Translator(folder)


TRANSLATION = Task(
    score_name="BLEU",
    make_sizes=make_sizes,
    make_objective=Translation.from_config,
    count_work=count_work,
    load=load,
    reads=frozenset({"task.reverse"}),
)
