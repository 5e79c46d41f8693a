"""Translation: parallel text, an encoder-decoder, scored by BLEU."""

import dataclasses
import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jax import Array

from collapipe_jax.errors import InputError, Known, collect, under_keys
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
from collapipe_jax.tasks.corpora import Placed, TextFile, text_key, validation_size
from collapipe_jax.tasks.records import OBJECTS, Field, read_records, text_values
from collapipe_jax.tasks.sampling import seeded_generator
from collapipe_jax.tasks.scores import bleu
from collapipe_jax.tasks.subwords import BpeTokenizer, pad_rows, train_bpe
from collapipe_jax.tasks.synthetic import generate_parallel_text
from collapipe_jax.tasks.task import Config, ModelCounts, Objective, Task, held_out_loss, in_batches

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


def read_parallel_text(corpus: str, key: str = "task.corpus") -> tuple[list[Pair], int]:
    """Normalised sentence pairs in file order, and the number of those left out.

    Pairs with an empty side and blank lines are left out.

    Args:
      corpus: a ``.csv`` or ``.jsonl`` file with the columns ``source`` and ``target``; any other
        file with a pair a line, source and target in its first two columns (further columns are
        ignored), between tabs; or ``A|B``, two files aligned line by line.
      key: key of the corpus in the configuration.

    Raises:
      InputError: an unreadable file, a line without a tab, or files that are not aligned.
    """
    placed, left_out = _placed_pairs(corpus, key)
    return [pair for _, pair in placed], left_out


def _placed_pairs(corpus: str, key: str) -> tuple[list[Placed[Pair]], int]:
    """Pairs as above, each with its place."""
    files = [TextFile(key, name) for name in corpus.split("|")]
    if len(files) > 2:
        raise InputError(key, corpus, "more than two files", "Give one, or A|B")
    if len(files) == 2:
        rows = _aligned_rows(corpus, *files)
    elif Path(corpus).suffix.lower() in (".csv", OBJECTS):
        records = read_records(files[0], (Field(("source",)), Field(("target",))))
        rows = ((record.place, text_values(files[0], record)) for record in records)
    else:
        rows = _tabbed_rows(files[0])
    pairs = [(place, (normalise(row[0]), normalise(row[1]))) for place, row in rows]
    kept = [(place, pair) for place, pair in pairs if all(pair)]
    if not kept:
        raise InputError(key, corpus, "it holds no pair of sentences", "Give a file with pairs")
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


def split_by_source(
    pairs: Sequence[Pair], sizes: tuple[int | None, int, int], seed: int
) -> SourceSplit:
    """Random train, validation and test sets that share no source, by ``text_key``.

    In a many-to-many corpus a source has several translations, and a split by pairs would
    test on sources seen in training. Sources are shuffled and assigned to test, then validation,
    then training. Validation and test take the first pair of each of their sources: one
    reference a source, the usual single-reference BLEU. Training takes every pair of its sources,
    or the first of them up to its size.

    Raises:
      InputError: a corpus too small for the sizes.
    """
    train_size, validation_size, test_size = sizes
    members = _by_source(pairs)
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
    if train_size is not None and train_size > len(train):
        problem = f"the corpus has only {len(train)} pairs for training"
        remedy = "Lower task.pairs, or validation and test; task.pairs = 0 takes all"
        raise InputError("task.pairs, less validation and test", train_size, problem, remedy)
    return SourceSplit(train[:train_size], validation, test)


def read_split(config: Config) -> tuple[SourceSplit, int]:
    """Sets from ``task.train``, ``.test`` and maybe ``.validation``, and pairs left out.

    Without a file, validation takes sources from training, with all of their pairs, as many as
    ``validation_size`` says. Training is cut to ``task.samples`` pairs at random.

    Raises:
      InputError: a missing or broken file, or numbers that do not fit; or all of these.
    """
    task, seed = config["task"], config.get("seed", 0)
    paths = {name: task.get(name, "") for name in SourceSplit._fields}
    placed, left_out = Known(), 0
    with collect() as step:
        for name, path in paths.items():
            with step():
                if path:
                    placed[name], empty = _placed_pairs(path, f"task.{name}")
                    left_out += empty
                elif name != "validation":
                    problem = "translation needs it, or the one file task.corpus"
                    raise InputError(f"task.{name}", path, problem, "Give a file")
        if task["reverse"]:
            for name, found in placed.items():
                placed[name] = [(place, pair[::-1]) for place, pair in found]
        for name in [name for name in placed if name != "train"]:
            with step():
                sources = [(place, source) for place, (source, _) in placed[name]]
                train_sources = (source for _, (source, _) in placed["train"])
                TextFile(f"task.{name}", paths[name]).warn_of_repeats(sources, train_sources)
        members = _by_source([pair for _, pair in placed["train"]])
        size = validation_size(paths["validation"], task["validation_samples"], len(members))
    train, validation, test = ([pair for _, pair in placed.get(name, ())] for name in paths)
    if size:
        order = seeded_generator(seed).permutation(len(members))
        validation = [members[group][0] for group in order[:size]]
        train = [pair for group in np.sort(order[size:]) for pair in members[group]]
    if 0 < task["samples"] < len(train):
        rows = seeded_generator(seed).permutation(len(train))[: task["samples"]]
        train = [train[row] for row in np.sort(rows)]
    return SourceSplit(train, validation, test), left_out


def _by_source(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Pairs of every source."""
    pairs_of: dict[str, list[Pair]] = {}
    for pair in pairs:
        pairs_of.setdefault(text_key(pair[0]), []).append(pair)
    return list(pairs_of.values())


def length_labels(lengths: np.ndarray) -> np.ndarray:
    """Classes 0, 1, ... ``[n]`` of samples by length ``[n]``, short sentences first, without gaps.

    The bounds are the quantiles of the lengths, 8 classes of about equal size. Samples of equal
    length share a class, so where few lengths occur neighbouring classes merge: mostly 5 to 8
    remain, at least 1.
    """
    bounds = np.quantile(lengths, np.arange(1, MAX_LABELS) / MAX_LABELS, method="lower")
    _, labels = np.unique(np.searchsorted(bounds, lengths, side="left"), return_inverse=True)
    return labels.astype(np.int32)


def _tabbed_rows(file: TextFile) -> Iterator[Placed[Sequence[str]]]:
    for number, line in enumerate(file.lines(), start=1):
        columns = line.split("\t")
        if len(columns) < 2 and line.strip():
            remedy = "Write one pair a line as source<TAB>target, or give two aligned files"
            raise file.error(f"line {number} has no tab between source and target", remedy)
        yield f"line {number}", columns if len(columns) > 1 else ("", "")


def _aligned_rows(
    corpus: str, source: TextFile, target: TextFile
) -> Iterator[Placed[Sequence[str]]]:
    lines = Known()
    with collect() as step:
        for file in (source, target):
            with step():
                lines[file.name] = file.lines()
    sources, targets = lines[source.name], lines[target.name]
    if len(sources) != len(targets):
        problem = f"the files have {len(sources)} and {len(targets)} lines"
        remedy = "Give two files whose lines translate each other one by one"
        raise InputError(source.key, corpus, problem, remedy)
    for number, row in enumerate(zip(sources, targets, strict=True), start=1):
        yield f"line {number}", row


def _arrays(
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
        remedy = "Raise them or task.vocabulary_size"
        raise InputError("(task.source_length, task.target_length)", lengths, problem, remedy)
    source_ids = pad_rows([[*sources[i], EOS_ID] for i in fits], lengths[0], PAD_ID)
    target_ids = pad_rows([[BOS_ID, *targets[i], EOS_ID] for i in fits], lengths[1] + 1, PAD_ID)
    kept = ParallelSentences(tuple(pairs[i][0] for i in fits), tuple(pairs[i][1] for i in fits))
    return TranslationBatch(source_ids, target_ids), kept


_OF_FILES = ("train", "validation", "test", "samples", "validation_samples")


def _split_sizes(task: Config) -> tuple[int | None, int, int]:
    """Sizes of the sets of one corpus; None is all that is left to train on."""
    pairs, held_out = task["pairs"], task["validation_pairs"] + task["test_pairs"]
    if 0 < pairs <= held_out:
        problem = f"validation and test take {held_out} of them, none are left to train on"
        remedy = "Raise it, or lower task.validation_pairs and task.test_pairs"
        raise InputError("task.pairs", pairs, problem, remedy)
    return pairs - held_out if pairs else None, task["validation_pairs"], task["test_pairs"]


def _split(config: Config, text: Sequence[Pair], sizes: tuple[int | None, int, int]) -> SourceSplit:
    """Sets of one corpus, in the direction of the configuration."""
    if config["task"]["reverse"]:
        text = [(target, source) for source, target in text]
    return split_by_source(text, sizes, config["seed"])


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
    def from_config(
        cls, config: Config, corpus: tuple[SourceSplit, int] | None = None
    ) -> "Translation":
        """Read the corpus, unless it is given, or generate it."""
        options = {key: config["evaluation"][key] for key in ("beams", "length_penalty")}
        data = cls.load_data(config, corpus)
        return cls(model=Translator(make_sizes(config)), data=data, **options)

    @classmethod
    def read_corpus(cls, config: Config) -> tuple[SourceSplit, int] | None:
        """Sets and number of pairs left out; None where the text is to be generated.

        Raises:
          InputError: a missing or broken corpus, or sizes that it cannot serve; or all of these.
        """
        task = config["task"]
        corpus, files = task["corpus"], [key for key in _OF_FILES if task.get(key)]
        if corpus and corpus != SYNTHETIC and files:
            problem = f"task.{files[0]} is of separate files, and this is one that is split"
            raise InputError("task.corpus", corpus, problem, "Clear one of them")
        if files or not corpus:
            return read_split(config)
        if corpus == SYNTHETIC:
            return None
        sizes = _split_sizes(task)
        text, left_out = read_parallel_text(corpus)
        return _split(config, text, sizes), left_out

    @classmethod
    def load_data(
        cls, config: Config, corpus: tuple[SourceSplit, int] | None = None
    ) -> TranslationData:
        """Turn a corpus into arrays; a deterministic function. Without one, read or generate it.

        The vocabulary is learnt from the training text alone. Lengths include the end id. A pair
        that does not fit them is dropped and counted, never cut.

        Raises:
          InputError: a missing or broken corpus, sizes that it cannot serve, or lengths that
            leave a set empty.
        """
        task = config["task"]
        lengths = task["source_length"], task["target_length"]
        corpus = corpus or cls.read_corpus(config)
        if corpus is None:
            sizes = _split_sizes(task)
            if not task["pairs"]:
                raise InputError("task.pairs", 0, "none to generate", "Give their number")
            text = generate_parallel_text(config["seed"], task["pairs"])
            corpus = _split(config, text, sizes), 0
        split, left_out = corpus
        lines = (line for pair in split.train for line in pair)
        tokenizer = train_bpe(lines, task["vocabulary_size"])
        arrays, texts, dropped = {}, {}, {"empty": left_out}
        for name, chosen in split._asdict().items():
            arrays[name], texts[name] = _arrays(tokenizer, chosen, lengths, name)
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


TRANSLATION = Task(
    score_name="BLEU",
    make_sizes=make_sizes,
    make_objective=Translation.from_config,
    read_corpus=Translation.read_corpus,
    count_work=count_work,
    reads=frozenset({"task.reverse", *(f"task.{key}" for key in _OF_FILES)}),
)
