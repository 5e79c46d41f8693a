"""Parallel text: files of sentence pairs, their one spelling, and sets without common sources."""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from collapipe_jax.core.errors import InputError, Known, Step, collect
from collapipe_jax.core.seeds import seed_of
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
from collapipe_jax.learning.tasks.task import Config

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


def read_parallel_text(corpus: str, key: str = "task.corpus") -> tuple[list[Pair], int]:
    """Normalised sentence pairs in file order, and the number of those left out.

    Pairs with an empty side and blank lines are left out.

    Args:
      corpus: a ``.csv``, ``.jsonl`` or ``.parquet`` file with the columns ``source`` and
        ``target``; any other file with a pair a line, source and target in its first two
        columns (further columns are ignored), between tabs; or ``A|B``, two files aligned line by
        line.
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


def read_split(config: Config) -> tuple[SourceSplit, int]:
    """Sets from ``task.train``, ``.test`` and maybe ``.validation``, and pairs left out.

    Without a file, validation takes sources from training as ``take_validation`` does. Training is
    cut to ``task.samples`` pairs at random.

    Raises:
      InputError: a missing or broken file, or numbers that do not fit; or all of these.
    """
    task, seed = config["task"], seed_of(config, "task")
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
        yield Record(f"line {number}", row)
