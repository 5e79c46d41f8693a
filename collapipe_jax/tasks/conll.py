"""Sentences with a tag on every word, from two-column CoNLL files."""

import re
from typing import NamedTuple

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.corpora import CorpusName, read_lines

OUTSIDE = "O"

_BLANKS = " \t\r"
_BIO_TAG = re.compile(r"O|[BI]-\S+")


class TaggedSentence(NamedTuple):
    """Words and their tags, one each: ``O``, or ``B-`` and ``I-`` with a type of entity."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


def read_conll(path: CorpusName, key: str = "task.train") -> list[TaggedSentence]:
    """Sentences of a file with a word a line, its first column the word, its last the tag.

    Tabs separate columns, or blanks in lines without a tab. A line of white space ends a
    sentence, and so does a line that starts with ``-DOCSTART-``.

    Args:
      path: UTF-8 file, tags in the scheme BIO (also IOB2): an entity begins with ``B-`` and
        continues with ``I-`` of the same type.
      key: key of the file in the configuration, for errors.

    Returns:
      The sentences in file order, none of them empty.

    Raises:
      InputError: an unreadable file, a line of one column, another tag, an ``I-`` that
        continues no entity of its type (refused, not repaired: a file in another scheme would
        change its entities), or a file without words.

    Source: Ramshaw and Marcus, Text chunking using transformation-based learning (1995); Tjong
    Kim Sang and De Meulder, Introduction to the CoNLL-2003 shared task (2003).
    """
    sentences: list[TaggedSentence] = []
    tokens: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*read_lines(path, key), ""], start=1):
        if line.strip() and not line.startswith("-DOCSTART-"):
            token, tag = _columns(line, number, path, key)
            _check_tag(tag, tags[-1] if tags else OUTSIDE, number, path, key)
            tokens.append(token)
            tags.append(tag)
        elif tokens:
            sentences.append(TaggedSentence(tuple(tokens), tuple(tags)))
            tokens, tags = [], []
    if not sentences:
        raise InputError(key, str(path), "the file holds no word", "Give a file with sentences")
    return sentences


def is_bio_tag(tag: str) -> bool:
    """Whether a tag is ``O``, or ``B-`` or ``I-`` followed by a type."""
    return _BIO_TAG.fullmatch(tag) is not None


def entity_type(tag: str) -> str:
    """Type of entity that a tag names; empty for ``O``."""
    return tag.partition("-")[2]


def _columns(line: str, number: int, path: CorpusName, key: str) -> tuple[str, str]:
    # not split(): a word may hold a no-break space
    columns = re.split("\t+" if "\t" in line else " +", line.strip(_BLANKS))
    if len(columns) < 2:
        problem = f"line {number} has one column"
        raise InputError(key, str(path), problem, "Write a word a line as word<TAB>tag")
    return columns[0].strip(_BLANKS), columns[-1].strip(_BLANKS)


def _check_tag(tag: str, previous: str, number: int, path: CorpusName, key: str) -> None:
    if not is_bio_tag(tag):
        problem = f"line {number} has the tag {tag!r}, which is none of O, B-type and I-type"
        raise InputError(key, str(path), problem, "Write tags in the scheme BIO (IOB2)")
    if tag.startswith("I-") and entity_type(previous) != entity_type(tag):
        problem = f"line {number} has {tag} after {previous}, an entity that nothing began"
        raise InputError(key, str(path), problem, "Convert the tags to the scheme BIO (IOB2)")
