"""Schemes of tags for entities, all of them read as IOB2.

In IOB2 an entity begins with ``B-`` and continues with ``I-``. In IOB1 it begins with ``I-``, and
with ``B-`` only right behind another entity of its type. In BIOES ``E-`` ends an entity of several
words, and ``S-`` is one of a single word. BILOU calls these ``L-`` and ``U-``; BMES has ``M-``
inside.

Source: Tjong Kim Sang and Veenstra, Representing text chunks (1999); Ratinov and Roth, Design
challenges and misconceptions in named entity recognition (2009).
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from collapipe_jax.learning.tasks.corpora import OUTSIDE, Placed, entity_type

# Letters of all schemes, and which of BIOES they are
_LETTER = {"S": "S", "U": "S", "W": "S", "E": "E", "L": "E", "M": "I", "B": "B", "I": "I"}
_TAG = re.compile(rf"{OUTSIDE}|[{''.join(_LETTER)}]-\S+")

IOB2 = "IOB2"

Sentence = Sequence[Placed[str]]
"""Tags of a sentence, and where they stand."""


class Reading(NamedTuple):
    """Sentences read in a scheme."""

    scheme: str
    sentences: list[list[str]]  # tags in IOB2
    broken: list[str]  # what the scheme does not allow, with its place


def is_tag(text: str) -> bool:
    """Whether a text is a tag of any scheme."""
    return _TAG.fullmatch(text) is not None


def to_iob2(sentences: Sequence[Sentence]) -> Reading:
    """Tags of a file in IOB2, from the scheme that forbids the fewest of them."""
    marks = {tag[0] for sentence in sentences for _, tag in sentence if is_tag(tag)}
    ends = "BILOU" if marks & set("LU") else "BMES" if marks & set("MW") else "BIOES"
    schemes: list[tuple[str, Callable[[Sentence, list[str]], list[str]]]] = [(IOB2, _iob2)]
    if marks <= set("OBI"):
        schemes.append(("IOB1", _iob1))
    else:
        schemes.append((ends, _bioes))
    readings = []
    for name, read in schemes:
        broken: list[str] = []
        readings.append(Reading(name, [read(each, broken) for each in sentences], broken))
    return min(readings, key=lambda reading: len(reading.broken))


def _iob2(sentence: Sentence, broken: list[str]) -> list[str]:
    previous = OUTSIDE
    for place, tag in sentence:
        if not re.fullmatch(r"O|[BI]-\S+", tag):
            broken.append(f"{place} has the tag {tag!r}, which is none of O, B-type and I-type")
        elif tag.startswith("I-") and entity_type(previous) != entity_type(tag):
            broken.append(f"{place} has {tag} after {previous}, an entity that nothing began")
        previous = tag
    return [tag for _, tag in sentence]


def _iob1(sentence: Sentence, broken: list[str]) -> list[str]:
    found, previous = [], ""
    for place, tag in sentence:
        kind = entity_type(tag)
        if not is_tag(tag):
            broken.append(f"{place} has the tag {tag!r}, which is none of O, B-type and I-type")
        elif tag.startswith("B-") and kind != previous:
            broken.append(f"{place} has {tag} behind no entity of its type")
        found.append(f"B-{kind}" if kind and kind != previous else tag)
        previous = kind
    return found


def _bioes(sentence: Sentence, broken: list[str]) -> list[str]:
    found, inside = [], ""  # type of the entity that has not ended yet
    for place, tag in sentence:
        kind, letter = entity_type(tag), _LETTER.get(tag[:1], "")
        goes_on = letter in ("I", "E")
        if not is_tag(tag):
            broken.append(f"{place} has the tag {tag!r}, which is none of the scheme")
        elif goes_on and inside != kind:
            broken.append(f"{place} has {tag}, which continues no entity")
        elif inside and not goes_on:
            broken.append(f"{place} has {tag} in an entity of type {inside} without an end")
        inside = kind if letter in ("B", "I") else ""
        found.append(f"{'I' if goes_on else 'B'}-{kind}" if kind else tag)
    if inside:
        place, tag = sentence[-1]
        broken.append(f"{place} has {tag} at the end of a sentence, an entity without an end")
    return found
