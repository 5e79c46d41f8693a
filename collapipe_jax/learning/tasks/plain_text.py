"""Texts without labels: lines of a file, exchanges, or the texts of the files of other tasks."""

import functools
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from collapipe_jax.learning.tasks.classification import (
    COLUMN_KEYS,
    TEXT_COLUMN,
    read_labelled_text,
)
from collapipe_jax.learning.tasks.corpora import Placed, SetFiles, TextFile
from collapipe_jax.learning.tasks.instructions import Sample, form_of, read_exchanges, text_of
from collapipe_jax.learning.tasks.records import (
    SUFFIXES,
    Field,
    read_records,
    record_columns,
    text_values,
)
from collapipe_jax.learning.tasks.sampling import draw_rows
from collapipe_jax.learning.tasks.tagging import read_tagged_text

_Text = TypeVar("_Text", str, Sample)


class TextSets(NamedTuple, Generic[_Text]):
    """Texts of each set."""

    train: list[_Text]
    validation: list[_Text]
    test: list[_Text]  # empty without a file of them


def read_text_sets(
    *,
    train: str,
    validation: str = "",
    test: str = "",
    seed: int,
    samples: int = 0,
    validation_samples: int = 0,
    text_column: str = "",
    tagged: bool = False,
    skip_broken: bool = False,
) -> TextSets[Sample]:
    """Read texts to learn from, those of validation, and those of the test if they are named.

    Args:
      train, test: names of files as in ``read_texts``.
      validation: name of a file; empty takes texts from ``train``.
      seed: of the draws below.
      samples: most texts to train on, drawn at random; 0 takes all.
      validation_samples: texts taken from ``train`` before, as in ``take_validation``; 0 is a
        tenth, 1000 at most.
      text_column, tagged: as in ``read_texts``.
      skip_broken: as of ``TextFile``.

    Raises:
      InputError: a missing or broken file, or a number that does not fit; or all of these.
    """
    read = functools.partial(_placed, text_column=text_column, tagged=tagged)
    options = {"validation_samples": validation_samples, "skip_broken": skip_broken}
    sets = SetFiles(read, text_of).sets(train, validation, test, seed=seed, **options)
    drawn = [sets.train[row] for row in draw_rows(range(len(sets.train)), samples, seed)]
    return TextSets(drawn, sets.validation, sets.test)


def read_texts(file: TextFile, *, text_column: str = "", tagged: bool = False) -> list[Sample]:
    """Texts of a file in its order, without white space at their ends; its suffix gives the format.

    A file as of ``read_records`` has them in a column or under a key, or exchanges in one of the
    forms of ``instructions.py``. A ``.json`` file is one of classification. Any other has a text
    a line.

    Args:
      file: the file.
      text_column: column or key; empty is ``text``.
      tagged: whether the file is one of tagging, whatever its suffix. Its sentences are words with
        spaces between.

    Raises:
      InputError: an unreadable file, a missing column or split, or no text.
    """
    return [text for _, text in _placed(file, text_column=text_column, tagged=tagged)]


def _placed(file: TextFile, *, text_column: str, tagged: bool) -> Sequence[Placed[Sample]]:
    placed: list[Placed[Sample]]
    if tagged:
        sentences = read_tagged_text(file)
        placed = [(f"sentence {i}", " ".join(s.tokens)) for i, s in enumerate(sentences, start=1)]
    elif file.suffix == ".json":
        entries = read_labelled_text(file, text_column)
        placed = [(f"entry {i}", entry.text) for i, entry in enumerate(entries, start=1)]
    elif file.suffix in SUFFIXES and not text_column and (columns := exchange_columns(file)):
        with file.reading() as step:
            placed = list(read_exchanges(file, columns, step))
    elif file.suffix in SUFFIXES:
        field, placed = Field((TEXT_COLUMN,), COLUMN_KEYS[0], text_column), []
        with file.reading() as step:
            for record in read_records(file, [field], step):
                with step():
                    placed.append((record.place, text_values(file, record)[0]))
    else:
        placed = [(f"line {i}", line) for i, line in enumerate(file.lines(), start=1)]
    placed = [(p, each.strip() if isinstance(each, str) else each) for p, each in placed if each]
    placed = [(p, each) for p, each in placed if each]
    if not placed:
        raise file.error("it holds no text", "Give a file with texts")
    return placed


def exchange_columns(file: TextFile) -> tuple[str, ...]:
    """Columns of the exchanges in a file; empty where it has a column of texts, or none."""
    columns = record_columns(file)
    return () if TEXT_COLUMN in columns else form_of(columns)
