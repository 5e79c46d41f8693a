"""Parallel text from files: read, normalise, and split so that no source leaks."""

import unicodedata
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.corpora import CorpusName, read_lines
from collapipe_jax.tasks.sampling import seeded_generator

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


class ParallelText(NamedTuple):
    """Sentence pairs ``(source, target)``, and the number of lines left out as empty."""

    pairs: list[Pair]
    empty_lines: int


class GroupSplit(NamedTuple):
    """Disjoint sets of sentence pairs, without a group in two of them."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


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


def read_parallel_text(path: CorpusName | tuple[CorpusName, CorpusName]) -> ParallelText:
    """Normalised sentence pairs of one tab-separated file or of two aligned files, in file order.

    Args:
      path: one UTF-8 file with a pair a line, source and target in its first two columns
        (further columns are ignored); or the files of source and target sentences, line
        by line translations of each other. Pairs with an empty side and blank lines are left
        out and counted.

    Raises:
      InputError: an unreadable file, a line without a tab, or two files with different numbers
        of lines.
    """
    if isinstance(path, tuple):
        rows = _aligned_rows(*path)
    else:
        rows = _tabbed_rows(path)
    pairs = [(normalise(source), normalise(target)) for source, target in rows]
    kept = [pair for pair in pairs if all(pair)]
    return ParallelText(kept, len(pairs) - len(kept))


def split_by_group(
    pairs: Sequence[Pair],
    group_of: Callable[[Pair], Hashable],
    sizes: tuple[int | None, int, int],
    seed: int,
) -> GroupSplit:
    """Random train, validation and test sets that share no group.

    In a many-to-many corpus a source has several translations, and a split by pairs would
    test on sources seen in training. Groups are shuffled and assigned to test, then validation,
    then training. Validation and test take the first pair of each of their groups: one
    reference a source, the usual single-reference BLEU. Training takes every pair of its groups.

    Args:
      pairs: the corpus.
      group_of: key of a pair's group, e.g. its source sentence.
      sizes: pairs wanted for (train, validation, test); None for train takes all the rest.
      seed: from 0.

    Raises:
      InputError: a negative size, or a corpus too small for the sizes.
    """
    train_size, validation_size, test_size = sizes
    for name, size in (("validation_pairs", validation_size), ("test_pairs", test_size)):
        if size < 0:
            raise InputError(f"task.{name}", size, "a negative size", "Use 0 or more")
    groups: dict[Hashable, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(group_of(pair), []).append(pair)
    members = list(groups.values())
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
    return GroupSplit(_first(train, train_size), validation, test)


def _first(train: list[Pair], size: int | None) -> list[Pair]:
    if size is None:
        return train
    if size < 1:
        problem = "nothing of it is left for training"
        remedy = "Give more than validation and test pairs together"
        raise InputError("task.pairs, less validation and test", size, problem, remedy)
    if size > len(train):
        problem = f"the corpus has only {len(train)} pairs for training"
        remedy = "Lower task.pairs, or validation and test"
        raise InputError("task.pairs, less validation and test", size, problem, remedy)
    return train[:size]


def _tabbed_rows(path: CorpusName) -> Iterable[Pair]:
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2 and line.strip():
            problem = f"line {number} has no tab between source and target"
            remedy = "Write one pair a line as source<TAB>target, or give two aligned files"
            raise InputError("task.corpus", str(path), problem, remedy)
        yield (columns[0], columns[1]) if len(columns) > 1 else ("", "")


def _aligned_rows(source_path: CorpusName, target_path: CorpusName) -> Iterable[Pair]:
    sources, targets = read_lines(source_path), read_lines(target_path)
    if len(sources) != len(targets):
        problem = f"the files have {len(sources)} and {len(targets)} lines"
        remedy = "Give two files whose lines translate each other one by one"
        raise InputError("task.corpus", (str(source_path), str(target_path)), problem, remedy)
    return zip(sources, targets, strict=True)
