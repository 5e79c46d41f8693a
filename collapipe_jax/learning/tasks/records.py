"""Records of text files: rows of a table with a header, objects of JSON, one a line."""

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collapipe_jax.core.errors import collect, nearest
from collapipe_jax.core.io.strict_json import loads
from collapipe_jax.learning.tasks.corpora import TextFile

SEPARATORS = {".csv": ",", ".tsv": "\t"}
OBJECTS = ".jsonl"


class Field(NamedTuple):
    """What is read of every record."""

    usual: tuple[str, ...]  # names of the column or key; the first that is there counts
    key: str = ""  # key of the configuration that may name it
    given: str = ""  # that name

    @property
    def names(self) -> tuple[str, ...]:
        """Names to look for."""
        return (self.given,) if self.given else self.usual


class Record(NamedTuple):
    """Values of the fields, in their order."""

    place: str  # such as ``line 3``
    values: tuple[Any, ...]


def read_records(file: TextFile, fields: Sequence[Field]) -> Iterator[Record]:
    """Records of a ``.csv``, ``.tsv`` or ``.jsonl`` file in file order, without blank lines.

    Fields of a table are quoted where they hold separators or line breaks.

    Raises:
      InputError: an unreadable file, a missing column or key, a row of another length, or a line
        that is no JSON object.
    """
    suffix = Path(file.name).suffix.lower()
    return _objects(file, fields) if suffix == OBJECTS else _rows(file, fields, SEPARATORS[suffix])


def text_values(file: TextFile, record: Record) -> tuple[str, ...]:
    """The values of a record, all of which have to be text."""
    for value in record.values:
        if not isinstance(value, str):
            problem = f"{record.place} has {value!r} where text should be"
            raise file.error(problem, "Write it in quotes")
    return record.values


def find_fields(
    file: TextFile, place: str, columns: Collection[str], fields: Sequence[Field]
) -> list[str]:
    """The column of every field; an ``InputError`` with those that are there, if one is wrong."""
    found = []
    with collect() as step:
        for field in fields:
            with step():
                found.append(_find(file, place, columns, field))
    return found


def _find(file: TextFile, place: str, columns: Collection[str], field: Field) -> str:
    for name in field.names:
        if name in columns:
            return name
    there, missing = ", ".join(columns) or "none", " or ".join(field.names)
    if field.key:
        near = nearest(field.given, columns) or "the column that is meant"
        remedy = f"Set {field.key} to {near}"
    else:
        remedy = f"Call it {missing}"
    raise file.error(f"{place} has no column {missing} among {there}", remedy)


def read_json(file: TextFile) -> Any:
    """Content of a JSON file; an ``InputError`` where it is none."""
    text = file.text()
    try:
        return loads(text)
    except ValueError as error:
        raise file.error(f"not JSON ({error})", "Correct the file") from error


def _rows(file: TextFile, fields: Sequence[Field], separator: str) -> Iterator[Record]:
    text = file.text()
    # Of the whole process; a field may be as long as its file.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        names = find_fields(file, "the header", header, fields)
        columns = [header.index(name) for name in names]
        start = reader.line_num + 1
        for row in reader:
            if row:  # a blank line is none
                if len(row) != len(header):
                    problem = f"line {start} has {len(row)} columns, the header {len(header)}"
                    remedy = "Quote fields that hold separators, quotes or line breaks"
                    raise file.error(problem, remedy)
                yield Record(f"line {start}", tuple(row[column] for column in columns))
            start = reader.line_num + 1
    except csv.Error as error:
        problem = f"line {reader.line_num} is no row of a table ({error})"
        raise file.error(problem, "Close every quote, and quote line breaks") from error


def _objects(file: TextFile, fields: Sequence[Field]) -> Iterator[Record]:
    for number, line in enumerate(file.lines(), start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            found = loads(line)
        except ValueError as error:
            raise file.error(f"{place} is not JSON ({error})", "Write an object a line") from error
        if not isinstance(found, dict):
            raise file.error(f"{place} is no JSON object", "Write an object a line")
        names = find_fields(file, place, found, fields)
        yield Record(place, tuple(found[name] for name in names))
