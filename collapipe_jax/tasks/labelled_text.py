"""Texts with a label each, from CSV, TSV and JSON files."""

import csv
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.corpora import CorpusName, read_text

LABEL_COLUMNS = ("category", "label")

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_FORMS = "Use .csv, .tsv or .json, and name the split of a .json as FILE.json#SPLIT"


class LabelledText(NamedTuple):
    """A text, with runs of white space replaced by one space, and its label."""

    text: str
    label: str


def read_labelled_text(
    path: CorpusName, text_column: str = "text", label_column: str = "", key: str = "task.train"
) -> list[LabelledText]:
    """Labelled texts of a UTF-8 file, in file order; its suffix gives the format.

    Args:
      path: a ``.csv`` or ``.tsv`` file with a header, fields quoted where they hold
        separators or line breaks; or a ``.json`` file with a list whose entries are
        ``[text, label]`` or objects; or an object of such lists, with ``#`` and the name of one
        as in ``data.json#train``.
      text_column, label_column: column, or key of JSON objects; an empty one of the labels takes
        ``category`` or ``label``.
      key: key of the file in the configuration, for errors.

    Raises:
      InputError: an unreadable file, another format, a missing column or split, an entry
        without text or label, or no entries.
    """
    file, split = split_name(path)
    suffix = Path(file).suffix.lower()
    if suffix in _SEPARATORS:
        rows = _table_rows(file, _SEPARATORS[suffix], text_column, label_column, key)
    elif suffix == ".json":
        rows = _json_rows(file, split, text_column, label_column, key)
    else:
        raise InputError(key, str(path), f"{suffix or 'no suffix'} is no known form", _FORMS)
    entries = []
    for place, text, label in rows:
        entry = LabelledText(" ".join(text.split()), label.strip())
        if not all(entry):
            missing = "label" if entry.text else "text"
            problem = f"{place} has no {missing}"
            raise InputError(key, str(path), problem, "Fill it or remove the entry")
        entries.append(entry)
    if not entries:
        raise InputError(key, str(path), "it holds no entry", "Give a file with labelled texts")
    return entries


def read_domains(path: CorpusName, key: str = "task.domains") -> dict[str, str]:
    """Domain of every label, from a JSON object of lists ``{domain: [label, ...]}``.

    Raises:
      InputError: an unreadable file, another format, or a label in two domains.
    """
    domains = _read_json(path, key)
    if not isinstance(domains, dict) or not all(
        isinstance(labels, list) and all(isinstance(label, str) for label in labels)
        for labels in domains.values()
    ):
        remedy = 'Write {"domain": ["label", ...], ...}'
        raise InputError(key, str(path), "no JSON object of lists of labels", remedy)
    domain_of: dict[str, str] = {}
    for domain, labels in domains.items():
        for label in labels:
            if domain_of.setdefault(label, domain) != domain:
                problem = f"{label!r} stands in {domain_of[label]!r} and in {domain!r}"
                raise InputError(key, str(path), problem, "Give each label one domain")
    return domain_of


def split_name(path: CorpusName) -> tuple[str, str]:
    """File and split of a name such as ``data.json#train``; the split is empty without one."""
    match = re.fullmatch(r"(.*\.json)#([^#/]+)", str(path), flags=re.IGNORECASE)
    return (match[1], match[2]) if match else (str(path), "")


def _table_rows(
    path: str, separator: str, text_column: str, label_column: str, key: str
) -> Iterable[tuple[str, str, str]]:
    reader = csv.reader(io.StringIO(read_text(path, key), newline=""), delimiter=separator)
    header = [name.strip() for name in next(reader, [])]
    text_at = _column(header, (text_column,), path, key)
    label_at = _column(header, (label_column,) if label_column else LABEL_COLUMNS, path, key)
    start = reader.line_num + 1
    for row in reader:
        if row:  # a blank line is none
            if len(row) != len(header):
                problem = f"line {start} has {len(row)} columns, the header {len(header)}"
                remedy = "Quote fields that hold separators, quotes or line breaks"
                raise InputError(key, path, problem, remedy)
            yield f"line {start}", row[text_at], row[label_at]
        start = reader.line_num + 1


def _column(header: list[str], names: tuple[str, ...], path: str, key: str) -> int:
    found = [name for name in names if name in header]
    if not found:
        problem = f"no column {' or '.join(names)} among {', '.join(header) or 'none'}"
        raise InputError(key, path, problem, "Name the column, or write a header that has it")
    return header.index(found[0])


def _json_rows(
    path: str, split: str, text_key: str, label_key: str, key: str
) -> Iterable[tuple[str, str, str]]:
    entries = _entries(_read_json(path, key), path, split, key)
    entry: Any
    for number, entry in enumerate(entries, start=1):
        if isinstance(entry, dict):
            labels = [label_key] if label_key else [k for k in LABEL_COLUMNS if k in entry]
            entry = [entry.get(text_key), *(entry.get(k) for k in labels[:1])]
        if not (
            isinstance(entry, list) and len(entry) == 2 and all(isinstance(e, str) for e in entry)
        ):
            problem = f"entry {number} is no text with a label"
            remedy = 'Write entries as ["text", "label"] or {"text": "...", "label": "..."}'
            raise InputError(key, path, problem, remedy)
        yield f"entry {number}", entry[0], entry[1]


def _entries(content: Any, path: str, split: str, key: str) -> list:
    if isinstance(content, dict):
        if split not in content:
            problem = f"no split {split!r} among {', '.join(content) or 'none'}"
            raise InputError(key, path, problem, "Name one as FILE.json#SPLIT")
        content = content[split]
    elif split:
        problem = f"the file has no splits, so no {split!r}"
        raise InputError(key, path, problem, f"Leave out #{split}")
    if not isinstance(content, list):
        raise InputError(key, path, "no JSON list of entries", _FORMS)
    return content


def _read_json(path: CorpusName, key: str) -> Any:
    text = read_text(path, key)
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(key, str(path), f"not JSON ({error})", "Correct the file") from error
