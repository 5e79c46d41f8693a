"""Translation: parallel text from files, an encoder-decoder, scored by BLEU and chrF."""

import dataclasses
import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tokenizers
from jax import Array

from collapipe_jax.core.errors import InputError, Step, ValidValues, collect, rename_error_keys
from collapipe_jax.core.files import write_text
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.learning.models import counts
from collapipe_jax.learning.models.config import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    Ids,
    TransformerConfig,
    encoder_sizes,
)
from collapipe_jax.learning.models.decoding import beam_search
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.tensor_files import CONFIG
from collapipe_jax.learning.models.transformer import (
    TranslationBatch,
    Translator,
    load_translator,
    save_translator,
)
from collapipe_jax.learning.tasks.corpora import Placed, TextFile
from collapipe_jax.learning.tasks.records import (
    SUFFIXES,
    TABBED,
    Field,
    Record,
    read_records,
    text_values,
)
from collapipe_jax.learning.tasks.sampling import (
    draw_rows,
    equal_texts,
    seeded_generator,
    take_validation,
    text_key,
)
from collapipe_jax.learning.tasks.scores import (
    AUTO,
    LATIN,
    TOKENIZERS,
    Score,
    bleu,
    check_installed,
    chrf,
    likely_tokenizer,
)
from collapipe_jax.learning.tasks.subwords import BpeTokenizer, check_pieces, pad_rows, train_bpe
from collapipe_jax.learning.tasks.synthetic import generate_parallel_text
from collapipe_jax.learning.tasks.task import (
    PREDICTED,
    TASK_KEY,
    Config,
    ModelCounts,
    ScoredSet,
    Task,
    TaskData,
    in_batches,
)

# Parallel text: files of sentence pairs, their one spelling, and sets without common sources.

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
    """Sets of sentence pairs ``(source, target)``."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


def read_parallel_text(
    corpus: str, key: str = "task.corpus", skip_broken: bool = False
) -> tuple[list[Pair], int]:
    """Normalised sentence pairs in file order, and the number of those left out.

    Pairs with an empty side and blank lines are left out.

    Args:
      corpus: a ``.csv``, ``.jsonl`` or ``.parquet`` file with the columns ``source`` and
        ``target``; any other file with a pair a line, source and target in its first two
        columns (further columns are ignored), between tabs; or ``A|B``, two files aligned line by
        line.
      key: key of the corpus in the configuration.
      skip_broken: as of ``TextFile``.

    Raises:
      InputError: an unreadable file, a line without a tab, or files that are not aligned.
    """
    placed, left_out = _placed_pairs(corpus, key, skip_broken)
    return [pair for _, pair in placed], left_out


def _placed_pairs(corpus: str, key: str, skip_broken: bool) -> tuple[list[Placed[Pair]], int]:
    """Pairs as above, each with its place."""
    files = [TextFile(key, name, skip_broken) for name in corpus.split("|")]
    if len(files) > 2:
        raise InputError(key, corpus, "more than two files", "Give one, or A|B")
    file, pairs = files[0], []
    with file.reading() as step:
        if len(files) == 2:
            rows = _aligned_rows(corpus, *files)
        elif file.suffix in SUFFIXES and file.suffix != TABBED:
            rows = read_records(file, (Field(("source",)), Field(("target",))), step)
        else:
            rows = _tabbed_rows(file, step)
        for record in rows:
            with step():
                source, target = text_values(file, record)
                pairs.append((record.place, (normalise(source), normalise(target))))
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
    members = [[pairs[row] for row in rows] for rows in equal_texts([pair[0] for pair in pairs])]
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


def _read_split(config: Config) -> tuple[SourceSplit, int]:
    """Sets from ``task.train``, ``.test`` and maybe ``.validation``, and pairs left out.

    Without a file, validation takes sources from training as ``take_validation`` does. Training is
    cut to ``task.samples`` pairs at random.

    Raises:
      InputError: a missing or broken file, or numbers that do not fit; or all of these.
    """
    task, seed = config["task"], seed_of(config, "task")
    paths = {name: task.get(name, "") for name in SourceSplit._fields}
    placed, left_out = ValidValues(), 0
    with collect() as step:
        for name, path in paths.items():
            with step():
                if path:
                    placed[name], empty = _placed_pairs(path, f"task.{name}", task["skip_broken"])
                    left_out += empty
                elif name != "validation":
                    problem = "translation needs it, or the one file task.corpus"
                    raise InputError(f"task.{name}", path, problem, "Give a file")
        if task["reverse"]:
            for name, found in placed.items():
                placed[name] = [(place, pair[::-1]) for place, pair in found]
        whole = [pair for _, pair in placed["train"]]
        known = {text_key(source) for source, _ in whole}
        for name in [name for name in placed if name != "train"]:
            sources = [(place, source) for place, (source, _) in placed[name]]
            TextFile(f"task.{name}", paths[name]).warn_of_repeats(sources, known)
        sources, wanted = [source for source, _ in whole], task["validation_samples"]
        taken, left = take_validation(sources, paths["validation"], wanted, seed)
    given, test = ([pair for _, pair in placed.get(name, ())] for name in ("validation", "test"))
    train = [whole[row] for row in draw_rows(left, task["samples"], seed)]
    return SourceSplit(train, given or [whole[row] for row in taken], test), left_out


def _tabbed_rows(file: TextFile, step: Step) -> Iterator[Record]:
    for number, line in enumerate(file.lines(), start=1):
        columns = line.split("\t")
        with step():
            if len(columns) < 2 and line.strip():
                remedy = "Write one pair a line as source<TAB>target, or give two aligned files"
                raise file.error(f"line {number} has no tab between source and target", remedy)
            yield Record(f"line {number}", tuple(columns[:2]) if len(columns) > 1 else ("", ""))


def _aligned_rows(corpus: str, source: TextFile, target: TextFile) -> Iterator[Record]:
    lines = ValidValues()
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
        yield Record(f"line {number}", row)


SYNTHETIC = "synthetic"
MAX_LABELS = 8


class _ParallelSentences(NamedTuple):
    """The n sentence pairs of a set, normalised."""

    sources: tuple[str, ...]
    references: tuple[str, ...]


def length_labels(lengths: np.ndarray) -> np.ndarray:
    """Classes 0, 1, ... ``[n]`` of samples by length ``[n]``, short sentences first, without gaps.

    The bounds are the quantiles of the lengths, 8 classes of about equal size. Samples of equal
    length share a class, so where few lengths occur neighbouring classes merge: mostly 5 to 8
    remain, at least 1.
    """
    bounds = np.quantile(lengths, np.arange(1, MAX_LABELS) / MAX_LABELS, method="lower")
    _, labels = np.unique(np.searchsorted(bounds, lengths, side="left"), return_inverse=True)
    return labels.astype(np.int32)


def _pair_arrays(
    tokenizer: BpeTokenizer, pairs: Sequence[Pair], lengths: tuple[int, int]
) -> ScoredSet:
    """Padded ids of the pairs that fit, and these pairs.

    The ids are tokens and end of the source; begin, tokens and end of the target.
    """
    sources = tokenizer.encode_batch([source for source, _ in pairs])
    targets = tokenizer.encode_batch([target for _, target in pairs])
    # Both lengths include the end id; begin has the extra place of the target.
    fits = [
        i
        for i in range(len(pairs))
        if len(sources[i]) < lengths[0] and len(targets[i]) < lengths[1]
    ]
    source_ids = pad_rows([[*sources[i], EOS_ID] for i in fits], lengths[0], PAD_ID)
    target_ids = pad_rows([[BOS_ID, *targets[i], EOS_ID] for i in fits], lengths[1] + 1, PAD_ID)
    kept = _ParallelSentences(tuple(pairs[i][0] for i in fits), tuple(pairs[i][1] for i in fits))
    counts = {"pairs": len(fits), "dropped_pairs": {"long": len(pairs) - len(fits)}}
    return ScoredSet(TranslationBatch(source_ids, target_ids), kept, counts)


_SIZES = ("vocabulary_size", "source_length", "target_length")
# Keys of config.json besides the sizes, with their types and what is wrong with others
_SETTINGS = (
    ("length_penalty", float | int, "no number"),
    ("reverse", bool, "neither true nor false"),
)
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
    return split_by_source(text, sizes, seed_of(config, "task"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(Task):
    """Texts to their translations; a text of too many tokens is cut, and its end ignored."""

    score_name: ClassVar[str] = "BLEU"
    score_key: ClassVar[str] = "bleu"
    trivial_key: ClassVar[str] = "bleu_copy"
    reads: ClassVar = frozenset(
        {
            "task.reverse",
            "task.skip_broken",
            "evaluation.bleu_tokenizer",
            *(f"task.{key}" for key in _OF_FILES),
        }
    )

    model: Translator
    beams: int = 1  # of the second search on the test set
    length_penalty: float
    reverse: bool = False  # whether pairs on file are read from target to source
    bleu_tokenizer: str = LATIN

    @classmethod
    def make_sizes(cls, config: Config) -> TransformerConfig:
        """Sizes of the encoder-decoder."""
        task, model = config["task"], config["model"]
        for key in ("source_length", "target_length"):
            if task[key] < 2:
                problem = "no room for a token beside the end id"
                raise InputError(f"task.{key}", task[key], problem, "Use 2 or more")
        with rename_error_keys({f"model.{key}": f"task.{key}" for key in _SIZES}):
            return TransformerConfig(
                **{key: task[key] for key in _SIZES},
                **encoder_sizes(model),
                decoder_blocks=model["decoder_blocks"],
                label_smoothing=model["label_smoothing"],
            )

    @classmethod
    def count_work(cls, config: Config) -> ModelCounts:
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
            return _read_split(config)
        if corpus == SYNTHETIC:
            return None
        sizes = _split_sizes(task)
        text, left_out = read_parallel_text(corpus, skip_broken=task["skip_broken"])
        return _split(config, text, sizes), left_out

    @classmethod
    def load_data(cls, config: Config, corpus: tuple[SourceSplit, int] | None = None) -> TaskData:
        """Turn a corpus into arrays; a deterministic function. Without one, read or generate it.

        The vocabulary is learnt from the training text alone. Lengths include the end id. A pair
        that does not fit them is dropped and counted, never cut. The split key of a training pair
        is the class of its source by length.

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
            text = generate_parallel_text(seed_of(config, "task"), task["pairs"])
            corpus = _split(config, text, sizes), 0
        split, left_out = corpus
        lines = (line for pair in split.train for line in pair)
        tokenizer = train_bpe(lines, task["vocabulary_size"])
        sets, dropped = {}, {"empty": left_out}
        for name, chosen in split._asdict().items():
            sets[name] = _pair_arrays(tokenizer, chosen, lengths)
            dropped[name] = sets[name].counts["dropped_pairs"]["long"]
            if dropped[name] == len(chosen):
                ends = "task.source_length, task.target_length"
                problem = f"none of the {len(chosen)} pairs for {name} fits these numbers of tokens"
                remedy = f"Raise {ends} or task.vocabulary_size, or give shorter sentences"
                raise InputError(f"({ends})", lengths, problem, remedy)
        train = sets["train"].arrays
        return TaskData(
            tokenizer=tokenizer,
            **{**sets, "train": train},
            split_keys=length_labels(np.sum(train.source_ids != PAD_ID, axis=1)),
            train_text=[target for _, target in split.train],
            counts={"dropped_pairs": dropped},
        )

    @classmethod
    def from_config(
        cls, config: Config, corpus: tuple[SourceSplit, int] | None = None
    ) -> "Translation":
        """Read the corpus, unless it is given, or generate it."""
        evaluation, data = config["evaluation"], cls.load_data(config, corpus)
        if (tokenizer := evaluation["bleu_tokenizer"]) == AUTO:
            tokenizer = likely_tokenizer(data.train_text)
        return cls(
            kind=config["task"]["kind"],
            model=Translator(cls.make_sizes(config)),
            data=data,
            beams=evaluation["beams"],
            length_penalty=evaluation["length_penalty"],
            reverse=config["task"]["reverse"],
            bleu_tokenizer=tokenizer,
        )

    def score(self, params: Params, samples: ScoredSet, beams: int = 1) -> dict[str, Any]:
        """BLEU and chrF of one search, and the loss. The tokenizer of BLEU is in its signature."""
        said = self.translate(params, samples.arrays.source_ids, beams)
        scores = self._text_scores(said, samples.text)
        return {
            "bleu": scores[0].value,
            "chrf": scores[1].value,
            "signatures": [score.signature for score in scores],
            "loss": self.loss(params, samples),
        }

    def trivial(self, samples: ScoredSet) -> dict[str, Any]:
        """BLEU and chrF of copying the source."""
        by_words, by_characters = self._text_scores(samples.text.sources, samples.text)
        return {"bleu_copy": by_words.value, "chrf_copy": by_characters.value}

    def test(self, params: Params) -> dict[str, Any]:
        """Scores of greedy search, of beam search with several beams, and of copying."""
        scores = super().test(params)
        if self.beams > 1:
            found = self.score(params, self.data.test, self.beams)
            scores |= {f"test_{name}_beam": found[name] for name in ("bleu", "chrf")}
        return scores

    def _text_scores(self, said: Sequence[str], text: _ParallelSentences) -> tuple[Score, Score]:
        """BLEU and chrF."""
        return bleu(said, text.references, self.bleu_tokenizer), chrf(said, text.references)

    def predict(self, params: Params, texts: Sequence[str], *, beams: int = 1) -> list[str]:
        """The translation of each text, greedy for one beam; an empty text stays empty."""
        _check_beams(beams)
        sources = self.data.tokenizer.encode_batch([normalise(text) for text in texts])
        length = self.model.sizes.source_length
        rows = [[*source[: length - 1], EOS_ID] for source in sources if source]
        ids = pad_rows(rows, length, PAD_ID)
        said = iter(self.translate(params, ids, beams, PREDICTED) if rows else ())
        return [next(said) if source else "" for source in sources]

    def evaluate(
        self, params: Params, file: str | os.PathLike[str], *, beams: int = 1
    ) -> dict[str, Any]:
        """Scores on sentence pairs, on file as in ``read_parallel_text``.

        As in training, they are turned round where ``task.reverse`` was set, and pairs of too
        many tokens are left out and counted. BLEU has the tokenizer of training.
        """
        _check_beams(beams)
        check_installed("bleu_tokenizer", self.bleu_tokenizer)
        sizes = self.model.sizes
        lengths = sizes.source_length, sizes.target_length
        pairs, empty = read_parallel_text(str(file), "data")
        if self.reverse:
            pairs = [(target, source) for source, target in pairs]
        samples = _pair_arrays(self.data.tokenizer, pairs, lengths)
        if not samples.text.sources:
            problem = f"none of the {len(pairs)} pairs fits {lengths[0]} and {lengths[1]} tokens"
            raise InputError("data", str(file), problem, "Give shorter sentences")
        dropped = {"empty": empty, **samples.counts["dropped_pairs"]}
        counts = {**samples.counts, "dropped_pairs": dropped}
        return {**self.score(params, samples, beams), **counts}

    def record(self, answer: str) -> dict[str, Any]:
        """The translation under its name."""
        return {"translation": answer}

    def translate(
        self, params: Params, source_ids: np.ndarray, beams: int, size: int | None = None
    ) -> list[str]:
        """Translations of sources ``[n, source_length]``, ``size`` at a time."""
        penalty = self.length_penalty if beams > 1 else 0.0

        def decode(ids: Ids) -> Array:
            sizes = self.model.sizes
            return beam_search(params, sizes, ids, beams=beams, length_penalty=penalty)[0]

        return self.data.tokenizer.decode_batch(in_batches(decode, source_ids, size))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the tokenizer."""
        write_text(Path(folder) / "tokenizer.json", self.data.tokenizer.model.to_str(pretty=True))

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write parameters, sizes and tokenizer in a layout of their own."""
        self.save(folder)
        settings = {
            key: getattr(self, key) for key in ("length_penalty", "reverse", "bleu_tokenizer")
        }
        save_translator(Path(folder), self.model.sizes, params, {TASK_KEY: self.kind, **settings})

    @classmethod
    def load(cls, folder: Path) -> tuple["Translation", Params]:
        """A trained translator.

        Args:
          folder: with ``config.json``, ``model.safetensors`` and ``tokenizer.json``.

        Raises:
          InputError: a missing or damaged file.
        """
        sizes, params, settings = load_translator(folder)
        for key, kind, problem in _SETTINGS:
            if not isinstance(value := settings.get(key), kind):
                place = f"{folder / CONFIG}: {key}"
                raise InputError(place, value, problem, "Take the original file")
        # Models of older versions were scored by the one tokenizer that there was.
        bleu_tokenizer = settings.get("bleu_tokenizer", LATIN)
        if bleu_tokenizer not in TOKENIZERS:
            place = f"{folder / CONFIG}: bleu_tokenizer"
            remedy = f"Use one of {', '.join(TOKENIZERS)}"
            raise InputError(place, bleu_tokenizer, "unknown name", remedy)
        path = folder / "tokenizer.json"
        try:
            tokenizer = BpeTokenizer(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library has no error of its own
            problem = f"cannot be read ({error})"
            raise InputError("file", str(path), problem, "Take the original file") from None
        check_pieces(path, tokenizer.model.get_vocab_size(), sizes.vocabulary_size)
        task = cls(
            model=Translator(sizes),
            data=TaskData(tokenizer),
            length_penalty=settings["length_penalty"],
            reverse=settings["reverse"],
            bleu_tokenizer=bleu_tokenizer,
        )
        return task, params


def _check_beams(beams: int) -> None:
    if beams < 1:
        raise InputError("--beams", beams, "not positive", "Give 1 or more")
