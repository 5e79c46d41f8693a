"""Location of corpora, their files as text, and their labels."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from collapipe_jax.errors import InputError

DATA_VARIABLE = "COLLAPIPE_DATA"

CorpusName = str | os.PathLike[str]


def resolve_corpus(name_or_path: CorpusName, key: str = "task.corpus") -> Path:
    """Path of a corpus file.

    Args:
      name_or_path: absolute path, or a path relative to the working directory or else to the
        directory that the environment variable ``COLLAPIPE_DATA`` names.
      key: key of the file in the configuration, for errors.

    Raises:
      InputError: no such file in either place.
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    directory = os.environ.get(DATA_VARIABLE, "")
    if directory and (Path(directory).expanduser() / path).is_file():
        return Path(directory).expanduser() / path
    if directory:
        problem = f"no such file, neither as it stands nor in {DATA_VARIABLE} ({directory})"
    else:
        problem = f"no such file, and the environment variable {DATA_VARIABLE} is not set"
    remedy = f"Give the path of a text file, or export {DATA_VARIABLE}=<directory that holds it>"
    raise InputError(key, str(name_or_path), problem, remedy)


def read_text(path: CorpusName, key: str = "task.corpus") -> str:
    """Text of a UTF-8 file, line ends as they are, without a byte order mark.

    Raises:
      InputError: a file that cannot be read, or bytes that are not UTF-8.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        remedy = "Give the path of a readable UTF-8 text file"
        problem = f"the file cannot be read ({error.strerror})"
        raise InputError(key, str(path), problem, remedy) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"line {line} holds bytes that are not UTF-8"
        remedy = "Convert the file, e.g. with iconv -f latin1 -t utf-8"
        raise InputError(key, str(path), problem, remedy) from error


def read_lines(path: CorpusName, key: str = "task.corpus") -> list[str]:
    """Lines of a UTF-8 file, cut at line feeds only; errors as ``read_text``."""
    # not splitlines(): it also cuts at separators inside a sentence and breaks the alignment
    lines = read_text(path, key).split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def check_labels(
    key: str, name: CorpusName, found: Iterable[str], trained: Collection[str]
) -> None:
    """Refuse, by an ``InputError``, a file with labels that training lacks."""
    unseen = sorted(set(found) - set(trained))
    if unseen:
        problem = f"training has no {', '.join(map(repr, unseen[:5]))}"
        remedy = "Give files with the same labels, or leave these out of the file"
        raise InputError(key, str(name), problem, remedy)
