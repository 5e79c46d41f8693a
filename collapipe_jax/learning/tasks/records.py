"""Records of files: rows of a table with a header, objects of JSON, one a line."""

import csv
import functools
import importlib
import io
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from collapipe_jax.core.errors import InputError, Step, collect, nearest
from collapipe_jax.core.files import loads
from collapipe_jax.learning.tasks.corpora import Placed, TextFile, first_places

FEATURES = "dataset_info.json"
"""File beside a corpus whose ``features`` name the numbers of its columns."""


class LabelNames:
    """Text of the labels in a file.

    Args:
      file: the corpus.
      features: description of its columns, as in ``dataset_info.json`` of the library datasets;
        None looks for this file beside the corpus.
    """

    def __init__(self, file: TextFile, features: Any = None):
        self._file, self._given = file, features
        self.names: list[str] | None = None  # for all columns, where the file itself has some

    def text(self, place: str, column: str, value: Any) -> Any:
        """A label, or a list of them, with text in the place of numbers.

        A number is its name, or its digits where nothing names it, as in a table. What is
        neither text nor a whole number stays as it is.

        Raises:
          InputError: a number that the names leave out.
        """
        if isinstance(value, list):
            return [self.text(place, column, each) for each in value]
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, int):
            return value
        names = self.names or _names(self._features.get(column))
        if names is None:
            return str(value)
        if not 0 <= value < len(names):
            problem = f"{place} has the label {value}, and {len(names)} names are known, from 0 on"
            raise self._file.error(problem, "Leave the entry out, or name all labels")
        return names[value]

    @functools.cached_property
    def _features(self) -> dict[str, Any]:
        found = self._given
        if found is None:
            path = self._file.path().with_name(FEATURES)
            if not path.is_file():
                return {}
            try:
                found = loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                remedy = "Correct the file, or remove it"
                raise InputError(
                    self._file.key, str(path), f"not JSON ({error})", remedy
                ) from error
            found = found.get("features") if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def _names(feature: Any) -> list[str] | None:
    """Names of a feature, or of those that it is a list of."""
    if isinstance(feature, list) and len(feature) == 1:
        return _names(feature[0])
    if not isinstance(feature, dict):
        return None
    return name_list(feature.get("names")) or _names(feature.get("feature"))


def name_list(names: Any) -> list[str] | None:
    """A list of texts, or None where it is none."""
    is_names = isinstance(names, list) and names and all(isinstance(n, str) for n in names)
    return names if is_names else None


_QUOTED, TABBED, OBJECTS, PARQUET = ".csv", ".tsv", ".jsonl", ".parquet"
SUFFIXES = (_QUOTED, TABBED, OBJECTS, PARQUET)
"""Of files that ``read_records`` reads."""

_SEPARATORS = (",", ";", "\t")  # of a .csv, whose header says which


class Field(NamedTuple):
    """What is read of every record."""

    usual: tuple[str, ...]  # names of the column or key; the first that is there counts
    key: str = ""  # key of the configuration that may name it
    given: str = ""  # that name
    labels: bool = False  # whether its numbers are labels, as ``LabelNames`` reads them

    @property
    def names(self) -> tuple[str, ...]:
        """Names to look for."""
        return (self.given,) if self.given else self.usual


class Record(NamedTuple):
    """Values of the fields, in their order."""

    place: str  # such as ``line 3``
    values: tuple[Any, ...]


def read_records(file: TextFile, fields: Sequence[Field], step: Step) -> Iterator[Record]:
    """Records of a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` file, without blank lines.

    The header of a ``.csv`` tells whether commas, semicolons or tabs separate its columns; fields
    are quoted where they hold separators or line breaks. Nothing is quoted in a ``.tsv``. A first
    line ``{"names": [...]}`` of a ``.jsonl`` names the numbers of its labels.

    Args:
      file: what to read.
      fields: what to read of a record.
      step: of ``TextFile.reading``, for a row of another length, and a line that is no JSON object
        or lacks a key.

    Raises:
      InputError: an unreadable file, or a missing column.
    """
    if file.suffix == OBJECTS:
        yield from _objects(file, fields, step)
    elif file.suffix == PARQUET:
        yield from _parquet_rows(file, fields)
    else:
        yield from _table_rows(file, fields, step)


def record_columns(file: TextFile) -> list[str]:
    """Columns of a file as of :func:`read_records`; of a ``.jsonl`` the keys of its first object.

    Raises:
      InputError: an unreadable file.
    """
    if file.suffix == PARQUET:
        return list(_parquet_table(file).column_names)
    if file.suffix == OBJECTS:
        for line in file.lines():
            try:
                found = loads(line) if line.strip() else None
            except ValueError:
                return []  # which reading the records reports
            if isinstance(found, dict) and list(found) != ["names"]:
                return list(found)
        return []
    if file.suffix == _QUOTED:
        headers = (next(_reader(file.text(), separator), []) for separator in _SEPARATORS)
        header = max(headers, key=len)
    else:
        header = next(_tabbed_rows(file), ("", []))[1]
    return [name.strip() for name in header]


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


def _table_rows(file: TextFile, fields: Sequence[Field], step: Step) -> Iterator[Record]:
    is_quoted = file.suffix == _QUOTED
    rows = _quoted_rows(file, fields, step) if is_quoted else _tabbed_rows(file)
    header = [name.strip() for name in next(rows, ("", []))[1]]
    if not header:
        raise file.error("the file is empty", "Give a file with a header and records")
    columns = [header.index(name) for name in find_fields(file, "the header", header, fields)]
    for place, row in rows:
        with step():
            if len(row) != len(header):
                problem = f"{place} has {len(row)} columns, the header {len(header)}"
                quote = "Quote fields that hold separators, quotes or line breaks"
                raise file.error(problem, quote if is_quoted else "Write one tab between columns")
            yield Record(place, tuple(row[column] for column in columns))


def _quoted_rows(
    file: TextFile, fields: Sequence[Field], step: Step
) -> Iterator[Placed[list[str]]]:
    text = file.text()
    # Of the whole process; a field may be as long as its file.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = _reader(text, next(_fitting_separators(text, fields), _SEPARATORS[0]))
    start, long = 1, []
    while True:
        with step():
            try:
                row = next(reader, None)
            except csv.Error as error:
                lines = f"line {start}" + f" to {reader.line_num}" * (reader.line_num > start)
                problem = f"{lines} is no row of a table ({error})"
                remedy = "Close every quote, and quote line breaks"
                start = reader.line_num + 1
                raise file.error(problem, remedy) from error
            if row is None:
                break
            if any("\n" in field for field in row):
                long.append(f"line {start} to {reader.line_num}")
            if row:  # a blank line is none
                yield f"line {start}", row
            start = reader.line_num + 1
    if long:
        file.warn(
            f"{len(long)} rows have a field with a line break in it ({first_places(long)}). "
            "Where none is meant, look there for a quotation mark that nothing closes."
        )


def _fitting_separators(text: str, fields: Sequence[Field]) -> Iterator[str]:
    """Separators with which the header has all fields."""
    for separator in _SEPARATORS:
        try:
            header = {name.strip() for name in next(_reader(text, separator), [])}
        except csv.Error:
            continue
        if all(header.intersection(field.names) for field in fields):
            yield separator


def _reader(text: str, separator: str) -> Any:
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)


def _tabbed_rows(file: TextFile) -> Iterator[Placed[list[str]]]:
    quoted = []
    for number, line in enumerate(file.lines(), start=1):
        if line.strip(" \r"):
            row = line.removesuffix("\r").split("\t")
            if any(len(f) > 1 and f[0] == f[-1] == '"' and '""' in f[1:-1] for f in row):
                quoted.append(f"line {number}")
            yield f"line {number}", row
    if quoted:
        file.warn(
            f"{len(quoted)} rows have quotes that a .csv would take away ({first_places(quoted)}). "
            "They are part of the text in a .tsv."
        )


def _objects(file: TextFile, fields: Sequence[Field], step: Step) -> Iterator[Record]:
    labels = LabelNames(file)
    for number, line in enumerate(file.lines(), start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        with step():
            try:
                found = loads(line)
            except ValueError as error:
                problem = f"{place} is not JSON ({error})"
                raise file.error(problem, "Write an object a line") from error
            if not isinstance(found, dict):
                raise file.error(f"{place} is no JSON object", "Write an object a line")
            if number == 1 and list(found) == ["names"] and name_list(found["names"]):
                labels.names = found["names"]
                continue
            names = find_fields(file, place, found, fields)
            yield _record(place, fields, names, found, labels)


def _parquet_table(file: TextFile) -> Any:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        remedy = (
            "Install it with pip install pyarrow, or write the table as .jsonl, e.g. by to_json of "
            "the library datasets"
        )
        raise file.error("a Parquet table is read by pyarrow, which is not here", remedy) from error
    content = file.content()
    try:
        return parquet.read_table(io.BytesIO(content))
    except Exception as error:  # pyarrow has many
        raise file.error(f"no Parquet table ({error})", "Take the original file") from error


def _parquet_rows(file: TextFile, fields: Sequence[Field]) -> Iterator[Record]:
    table = _parquet_table(file)
    about = loads((table.schema.metadata or {}).get(b"huggingface", b"{}").decode())
    labels = LabelNames(file, about.get("info", {}).get("features"))
    names = find_fields(file, "the table", table.column_names, fields)
    for number, row in enumerate(table.select(names).to_pylist(), start=1):
        yield _record(f"row {number}", fields, names, row, labels)


def _record(
    place: str,
    fields: Sequence[Field],
    names: Sequence[str],
    found: dict[str, Any],
    labels: LabelNames,
) -> Record:
    """Values of the fields, which stand under these names."""
    values = (
        labels.text(place, name, found[name]) if field.labels else found[name]
        for field, name in zip(fields, names, strict=True)
    )
    return Record(place, tuple(values))
