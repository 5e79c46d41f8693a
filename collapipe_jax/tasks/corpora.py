"""Files of corpora and what they hold: text, sentences with tags, sets with labels."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from collapipe_jax.errors import InputError

DATA_VARIABLE = "COLLAPIPE_DATA"
OUTSIDE = "O"
"""Tag of a word that is part of no entity."""

Entry = TypeVar("Entry")


class TaggedSentence(NamedTuple):
    """Words and their tags, one each: ``O``, or ``B-`` and ``I-`` with a type of entity."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


class LabelledSets(NamedTuple, Generic[Entry]):
    """Training, validation and test entries; ``labels`` are the classes, or the tags."""

    labels: tuple[str, ...]
    train: list[Entry]
    validation: list[Entry]
    test: list[Entry]


class TextFile(NamedTuple):
    """A UTF-8 file that a configuration names."""

    key: str  # key of the file in the configuration
    # Absolute path, or a path relative to the working directory or else to the directory that the
    # environment variable ``COLLAPIPE_DATA`` names
    name: str

    def error(self, problem: str, remedy: str) -> InputError:
        """An error of this file."""
        return InputError(self.key, self.name, problem, remedy)

    def path(self) -> Path:
        """Where the file is; an ``InputError`` where it is in neither place."""
        directory = os.environ.get(DATA_VARIABLE, "")
        for folder in (".", directory):
            path = Path(folder).expanduser() / Path(self.name).expanduser()
            if path.is_file():
                return path
        if directory:
            problem = f"no such file, neither as it stands nor in {DATA_VARIABLE} ({directory})"
        else:
            problem = f"no such file, and the environment variable {DATA_VARIABLE} is not set"
        remedy = (
            f"Give the path of a text file, or export {DATA_VARIABLE}=<directory that holds it>"
        )
        raise self.error(problem, remedy)

    def text(self) -> str:
        """Text of the file, line ends as they are, without a byte order mark.

        Raises:
          InputError: a file that cannot be read, or bytes that are not UTF-8.
        """
        try:
            data = self.path().read_bytes()
        except OSError as error:
            problem = f"the file cannot be read ({error.strerror})"
            raise self.error(problem, "Give the path of a readable UTF-8 text file") from error
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            problem = f"line {line} holds bytes that are not UTF-8"
            remedy = "Convert the file, e.g. with iconv -f latin1 -t utf-8"
            raise self.error(problem, remedy) from error

    def lines(self) -> list[str]:
        """Lines of the file, cut at line feeds only; errors as ``text``."""
        # not splitlines(): it also cuts at separators inside a sentence and breaks the alignment
        lines = self.text().split("\n")
        return lines[:-1] if lines[-1] == "" else lines

    def check_labels(self, found: Iterable[str], trained: Collection[str]) -> None:
        """Refuse, by an ``InputError``, labels in the file that training lacks."""
        if unseen := sorted(set(found) - set(trained)):
            problem = f"training has no {', '.join(map(repr, unseen[:5]))}"
            raise self.error(
                problem, "Give files with the same labels, or leave these out of the file"
            )
