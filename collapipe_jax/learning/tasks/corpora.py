"""Files of corpora and what they hold: text, sentences with tags, sets with labels."""

import bz2
import contextlib
import gzip
import itertools
import lzma
import os
import re
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from collapipe_jax.core.errors import (
    InputError,
    InputWarning,
    Step,
    ValidValues,
    collect,
    shortened,
)
from collapipe_jax.learning.tasks.sampling import take_validation, text_key

_PACKED_SUFFIXES = (".gz", ".bz2", ".xz")

_PACKED = {
    rb"\x1f\x8b": gzip.decompress,
    rb"BZh[1-9]1AY&SY": bz2.decompress,
    rb"\xfd7zXZ\x00": lzma.decompress,
}
_DAMAGED = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
_FORMATS = {  # by their first bytes
    rb"PAR1(?s:.*)PAR1\Z": ("a Parquet table", "Call it .parquet"),
    rb"PK\x03\x04": ("a zip archive or a spreadsheet", "Unpack it, or save the sheet as .csv"),
    rb"\x28\xb5\x2f\xfd": ("compressed by zstd", "Unpack it with zstd -d"),
    rb"7z\xbc\xaf\x27\x1c": ("a 7z archive", "Unpack it"),
    rb"ARROW1": ("an Arrow table", "Write it as .jsonl, e.g. by to_json of datasets"),
    rb"\xff\xfe|\xfe\xff": ("UTF-16", "Convert the file, e.g. with iconv -f utf-16 -t utf-8"),
}


class _UnreadableText(NamedTuple):
    """Why bytes are no text, and the remedy."""

    problem: str
    remedy: str


def _unpack(data: bytes) -> bytes | _UnreadableText:
    """The content of data that ``gzip``, ``bzip2`` or ``xz`` packed; other data as they are."""
    for start, decompress in _PACKED.items():
        if re.match(start, data):
            try:
                return decompress(data)
            except _DAMAGED as error:
                problem = f"its compressed content is damaged ({error})"
                return _UnreadableText(problem, "Take the original file")
    return data


def _decode(data: bytes) -> str | _UnreadableText:
    """Text of bytes in UTF-8, without a byte order mark."""
    for start, (what, remedy) in _FORMATS.items():
        if re.match(start, data):
            return _UnreadableText(f"no text in UTF-8, but {what}", remedy)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        if b"\0" in data:
            return _UnreadableText("no text, but binary data", "Give a text file in UTF-8")
    broken = [n for n, line in enumerate(data.split(b"\n"), start=1) if not _is_utf8(line)]
    named = f"line {broken[0]} holds"
    if len(broken) > 1:
        more = f" and {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
        named = f"lines {', '.join(map(str, broken[:_NAMED]))}{more} hold"
    remedy = "Convert the file, e.g. with iconv -f latin1 -t utf-8"
    return _UnreadableText(f"{named} bytes that are not UTF-8", remedy)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


DATA_VARIABLE = "COLLAPIPE_DATA"
OUTSIDE = "O"
"""Tag of a word that is part of no entity."""

_Entry = TypeVar("_Entry")
_NAMED = 10  # broken lines of a file
_LONGEST_PROBLEM = 80  # of one of them, in characters

Placed = tuple[str, _Entry]
"""Where in its file an entry stands, such as ``line 3``, and the entry."""


class TaggedSentence(NamedTuple):
    """Words and their tags, one each: ``O``, or ``B-`` and ``I-`` with a type of entity."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


def entity_type(tag: str) -> str:
    """Type of entity that a tag names; empty for ``O``."""
    return tag.partition("-")[2]


def forbidden_pairs(tags: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Numbers of tags of which BIO forbids the second after the first."""
    pairs = itertools.product(enumerate(tags), repeat=2)
    return tuple(
        (before, after)
        for (before, first), (after, second) in pairs
        if second.startswith("I-") and entity_type(first) != entity_type(second)
    )


class LabelledSets(NamedTuple, Generic[_Entry]):
    """Training, validation and test entries; ``labels`` are the classes, or the tags."""

    labels: tuple[str, ...]
    train: list[_Entry]
    validation: list[_Entry]
    test: list[_Entry]


def split_name(name: str) -> tuple[str, str]:
    """File and split of a name such as ``data.json#train``; the split is empty without one."""
    packed = "|".join(map(re.escape, _PACKED_SUFFIXES))
    match = re.fullmatch(rf"(.*\.json(?:{packed})?)#([^#/]+)", name, flags=re.IGNORECASE)
    return (match[1], match[2]) if match else (name, "")


class TextFile(NamedTuple):
    """A UTF-8 file that a configuration names; it may be packed by gzip, bzip2 or xz."""

    key: str  # key of the file in the configuration
    # Absolute path, or a path relative to the working directory or else to the directory that the
    # environment variable ``COLLAPIPE_DATA`` names
    name: str
    skip_broken: bool = False  # whether broken lines are left out, with a warning

    def error(self, problem: str, remedy: str) -> InputError:
        """An error of this file."""
        return InputError(self.key, self.name, problem, remedy)

    def warn(self, problem: str) -> None:
        """Warn of what is doubtful in the file."""
        message = shortened(f"{self.key} = {self.name!r}: {problem}")
        warnings.warn(message, InputWarning, stacklevel=3)

    @property
    def suffix(self) -> str:
        """Suffix that gives the format, in lower case, without packing and split."""
        path = Path(split_name(self.name.lower())[0])
        return (path.with_suffix("") if path.suffix in _PACKED_SUFFIXES else path).suffix

    @contextlib.contextmanager
    def reading(self) -> Iterator[Step]:
        """Read on after broken lines: one error names the first of them and says how many.

        Every line is a step of the block. With ``skip_broken`` a warning takes the error's place.

        Raises:
          InputError: the only one, or all of them in one; that of the file itself in any case.
        """
        named: list[InputError] = []
        count, is_readable = 0, False

        @contextlib.contextmanager
        def step() -> Iterator[None]:
            nonlocal count
            try:
                yield
            except InputError as error:
                count += 1
                named.extend([error] if count <= _NAMED else [])

        with step():
            yield step
            is_readable = True
        skips = self.skip_broken and is_readable
        if count == 1 and not skips:
            raise named[0]
        if count:
            problems = [
                shortened(each.problem, _LONGEST_PROBLEM)
                for error in named
                for each in error.errors
            ]
            if count > _NAMED:
                problems.append(f"and {count - _NAMED} more")
            remedies = [each.remedy for error in named for each in error.errors]
            problem = (
                f"{count} place{'s are' if count > 1 else ' is'} broken: {'; '.join(problems)}"
            )
            if skips:
                self.warn(f"{problem}. They are left out, with the texts that they are part of.")
                return
            raise self.error(problem, ". ".join(dict.fromkeys(remedies)))

    def path(self) -> Path:
        """Where the file is; an ``InputError`` where it is in neither place."""
        directory = os.environ.get(DATA_VARIABLE, "")
        for folder in (".", directory):
            # Unlike pathlib they raise nothing where the name is none of a file or user.
            path = os.path.join(*map(os.path.expanduser, (folder, self.name)))
            if os.path.isfile(path):
                return Path(path)
        if directory:
            problem = f"no such file, neither at this path nor below {DATA_VARIABLE} ({directory})"
        else:
            problem = f"no such file, and the environment variable {DATA_VARIABLE} is not set"
        remedy = (
            f"Give the path of a text file, or export {DATA_VARIABLE}=<directory that holds it>"
        )
        raise self.error(problem, remedy)

    def content(self) -> bytes:
        """Bytes of the file, unpacked where they are packed.

        Raises:
          InputError: a file that cannot be read, or whose packed content is damaged.
        """
        try:
            data = self.path().read_bytes()
        except OSError as error:
            problem = f"the file cannot be read ({error.strerror})"
            raise self.error(problem, "Give the path of a readable UTF-8 text file") from error
        return self._readable(_unpack(data))

    def text(self) -> str:
        """Text of the file, line ends as they are, without a byte order mark.

        Raises:
          InputError: as of ``content``, or bytes that are not UTF-8.
        """
        return self._readable(_decode(self.content()))

    def _readable(self, found: _Entry | _UnreadableText) -> _Entry:
        if isinstance(found, _UnreadableText):
            raise self.error(*found)
        return found

    def lines(self) -> list[str]:
        """Lines of the file, cut at line feeds only; errors as ``text``."""
        # not splitlines(): it also cuts at separators inside a sentence and breaks the alignment
        lines = self.text().split("\n")
        return lines[:-1] if lines[-1] == "" else lines

    def check_labels(
        self, found: Iterable[Placed[Iterable[str]]], trained: Collection[str]
    ) -> None:
        """Refuse, by an ``InputError``, labels of entries in the file that training lacks."""
        unseen: dict[str, str] = {}  # where each comes first
        for place, labels in found:
            for label in set(labels).difference(trained):
                unseen.setdefault(label, place)
        if unseen:
            named = [f"{label!r} ({place})" for label, place in sorted(unseen.items())]
            problem = f"training has no {', '.join(named[:5])}"
            raise self.error(
                problem, "Give files with the same labels, or leave these out of the file"
            )

    def warn_of_repeats(self, found: Sequence[Placed[str]], known: Collection[str]) -> None:
        """Warn of texts in the file whose ``text_key`` is among those of training."""
        places = [place for place, text in found if text_key(text) in known]
        if places:
            first = first_places(places)
            self.warn(
                f"{len(places)} of {len(found)} texts are also in training ({first}). "
                "A score on them says little about new texts."
            )


def first_places(places: Sequence[str]) -> str:
    """The first three of some places."""
    return ", ".join(places[:3]) + (", ..." if len(places) > 3 else "")


class SetFiles(NamedTuple, Generic[_Entry]):
    """How a task reads the files of its sets, whose entries may have labels."""

    read: Callable[[TextFile], Sequence[Placed[_Entry]]]  # entries of a file, at least one
    text: Callable[[_Entry], str]
    # Labels of a file, or its refusal
    labels: Callable[[TextFile, Sequence[_Entry]], tuple[str, ...]] = lambda file, entries: ()
    marks: Callable[[_Entry], Iterable[str]] = lambda entry: ()  # labels of an entry
    stratum: Callable[[_Entry], str | bool] | None = (
        None  # class of which validation gets its share
    )

    def sets(
        self,
        train: str,
        validation: str,
        test: str,
        *,
        seed: int,
        validation_samples: int = 0,
        labels: int = 0,
        skip_broken: bool = False,
    ) -> LabelledSets[_Entry]:
        """All entries of the files, with validation taken from training where it has no file.

        Args:
          train: name of a file, which alone determines the labels.
          validation: name of a file, or empty where samples of training are to be taken.
          test: name of a file, or empty for none.
          seed: of the draw of validation.
          validation_samples: how many to take, as in ``take_validation``.
          labels: number of labels; 0 takes any.
          skip_broken: as of ``TextFile``.

        Raises:
          InputError: a missing or broken file, a label that training lacks, or a number that does
            not fit; or all of these.
        """
        named = {"train": train, "validation": validation, "test": test}
        files = {
            name: TextFile(f"task.{name}", path, skip_broken)
            for name, path in named.items()
            if path
        }
        placed, found = ValidValues(), ValidValues()
        with collect() as step:
            for name, file in files.items():
                with step():
                    placed[name] = self.read(file)
                    found[name] = self.labels(file, [entry for _, entry in placed[name]])
            with step():
                if labels and labels != len(there := found["train"]):
                    names = ", ".join(there[:5]) + (", ..." if len(there) > 5 else "")
                    problem = f"the corpus has {len(there)}: {names}"
                    remedy = f"Set it to {len(there)}, or to 0"
                    raise InputError("task.labels", labels, problem, remedy)
            known = {text_key(self.text(entry)) for _, entry in placed["train"]}
            for name in ("validation", "test"):
                if name not in files:
                    continue
                with step():
                    marks = [(place, self.marks(entry)) for place, entry in placed[name]]
                    files[name].check_labels(marks, found["train"])
                    texts = [(place, self.text(entry)) for place, entry in placed[name]]
                    files[name].warn_of_repeats(texts, known)
            whole = [entry for _, entry in placed["train"]]
            texts = list(map(self.text, whole))
            strata = list(map(self.stratum, whole)) if self.stratum else None
            taken, left = take_validation(texts, validation, validation_samples, seed, strata)
        entries = {name: [entry for _, entry in placed.get(name, ())] for name in named}
        entries["train"] = [whole[row] for row in left]
        entries["validation"] = entries["validation"] or [whole[row] for row in taken]
        return LabelledSets(found["train"], **entries)
