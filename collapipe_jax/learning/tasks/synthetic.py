"""Synthetic parallel text: English-like sentences and their translation to an invented language.

The invented language differs from the source in everything a translator must learn: its
words, their order (time and place first, verb last, adjectives after nouns) and their
endings (number, definiteness and case on nouns; class and number on adjectives, determiners
and verbs). Only the full stop survives a copy, and the rules are few enough for a small
Transformer to learn.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

_Option = TypeVar("_Option")


class _Noun(NamedTuple):
    """English singular and plural, invented stem, and its class (0, 1 or 2)."""

    singular: str
    plural: str
    stem: str
    noun_class: int


class _Verb(NamedTuple):
    """English plain form, third person and past, and the invented stem."""

    plain: str
    third_person: str
    past: str
    stem: str


class _Phrase(NamedTuple):
    """A noun phrase in both languages, with the features that a verb agrees with."""

    source: str
    target: str
    noun_class: int
    plural: bool


def _entries(table: str) -> list[list[str]]:
    """Words of the entries of a table, between commas."""
    return [entry.split() for entry in table.split(",")]


def _nouns(table: str) -> list[_Noun]:
    return [_Noun(one, many, stem, int(number)) for one, many, stem, number in _entries(table)]


BEINGS = _nouns(
    """
    cat cats mirk 0, dog dogs bolt 1, bird birds pesh 2, horse horses tarun 0,
    child children linn 1, farmer farmers godar 2, teacher teachers sevim 0, sailor sailors marok 1,
    baker bakers hulep 2, doctor doctors izan 0, king kings royv 1, singer singers calid 2
    """
)
THINGS = _nouns(
    """
    apple apples pomar 0, letter letters skriv 1, book books vunt 2, stone stones garr 0,
    boat boats navun 1, lamp lamps lucet 2, knife knives tcharn 0, picture pictures imbel 1,
    ring rings zirk 2, song songs melov 0
    """
)
PLACES = _nouns(
    """
    garden gardens hortun 1, river rivers flumak 2, house houses dompen 0, bridge bridges pontir 1,
    market markets fazar 2, forest forests silvek 0, village villages wikor 1, tower towers turrim 2
    """
)
_ADJECTIVES = _entries(
    """
    old vetr, small piko, big grun, red rubel, quiet shal, young nuvim,
    happy ferin, tired moyl, strange ekzot, green verd, clever sagan, poor tenk
    """
)
_VERBS = """
    see sees saw vid, find finds found trov, carry carries carried port,
    like likes liked hals, draw draws drew grafen, lose loses lost perim,
    sell sells sold vendok, watch watches watched gorm, need needs needed bezun,
    bring brings brought adul, forget forgets forgot oblir, follow follows followed sekk
"""
VERBS = [_Verb(*words) for words in _entries(_VERBS)]
# source singular, source plural, target word before the noun, after it (agreeing), suffix
_DETERMINERS = (
    ("the", "the", "", "", "la"),
    ("a", "some", "", "", ""),
    ("this", "these", "", "tel", "la"),
    ("my", "my", "", "mer", ""),
    ("your", "your", "", "dor", ""),
    ("", "two", "zu", "", ""),
    ("", "many", "poli", "", ""),
)
TIMES = {
    "present": (("today", "odi"), ("now", "nunk")),
    "past": (("yesterday", "heras"), ("last week", "semu pel")),
    "future": (("tomorrow", "krasu"), ("next year", "anu nes")),
}
_PREPOSITIONS = (("in", "en"), ("near", "prok"), ("behind", "tras"))
_CONJUNCTIONS = (("and", "sa"), ("but", "ano"), ("because", "temi"))
TENSE_SUFFIX = {"present": "at", "past": "ul", "future": "esh"}
CLASS_ENDING = ("o", "i", "u")
_PLURAL_SUFFIX = ("ar", "en", "oth")
_CASE_SUFFIX = {"subject": "", "object": "ko", "place": "ves"}


def generate_parallel_text(seed: int, pairs: int) -> list[tuple[str, str]]:
    """Distinct sentences of the grammar with their translations, 5 to 29 words a source.

    The translation is a function of the source sentence, and no source occurs twice, so any
    split of the list leaves held-out sources unseen. A longer list with the same seed starts
    with the shorter one. Draws use ``random.Random.random`` alone, whose sequence Python
    guarantees over versions and platforms.
    """
    rng = random.Random(seed)
    text: dict[str, str] = {}
    while len(text) < pairs:
        text.setdefault(*_sentence(rng))
    return list(text.items())


def _choose(rng: random.Random, options: Sequence[_Option]) -> _Option:
    # random() alone: choice() may change between versions of Python
    return options[int(rng.random() * len(options))]


def _sentence(rng: random.Random) -> tuple[str, str]:
    source, target = _clause(rng)
    if rng.random() < 0.1:
        conjunction = _choose(rng, _CONJUNCTIONS)
        second = _clause(rng)
        source = f"{source} {conjunction[0]} {second[0]}"
        target = f"{target} {conjunction[1]} {second[1]}"
    return source[0].upper() + source[1:] + ".", target[0].upper() + target[1:] + "."


def _clause(rng: random.Random) -> tuple[str, str]:
    """Subject, verb, object, maybe place and time -> time, place, subject, object, verb."""
    tense = _choose(rng, tuple(TENSE_SUFFIX))
    subject = _noun_phrase(rng, BEINGS, "subject")
    verb = _verb(rng, tense, subject)
    thing = _noun_phrase(rng, BEINGS + THINGS, "object")
    source = [subject.source, verb[0], thing.source]
    target = [subject.target, thing.target, verb[1]]
    if rng.random() < 0.3:
        preposition, place = _choose(rng, _PREPOSITIONS), _noun_phrase(rng, PLACES, "place")
        source += [preposition[0], place.source]
        target = [preposition[1], place.target, *target]
    if rng.random() < 0.3:
        time = _choose(rng, TIMES[tense])
        source = [time[0], *source] if rng.random() < 0.5 else [*source, time[0]]
        target = [time[1], *target]
    return " ".join(source), " ".join(target)


def _noun_phrase(rng: random.Random, nouns: Sequence[_Noun], case: str) -> _Phrase:
    noun = _choose(rng, nouns)
    singular, plural_word, before, after, suffix = _choose(rng, _DETERMINERS)
    plural = not singular or rng.random() < 0.4
    agreement = CLASS_ENDING[noun.noun_class] + ("s" if plural else "")
    source = [plural_word if plural else singular]
    target = [before] if before else []
    number = _PLURAL_SUFFIX[noun.noun_class] if plural else ""
    target.append(noun.stem + number + suffix + _CASE_SUFFIX[case])
    if rng.random() < 0.3:
        adjective, stem = _choose(rng, _ADJECTIVES)
        source.append(adjective)
        target.append(stem + agreement)
    if after:
        target.append(after + agreement)
    source.append(noun.plural if plural else noun.singular)
    english = " ".join(source)
    if english.startswith("a ") and english[2] in "aeiou":
        english = "an" + english[1:]
    return _Phrase(english, " ".join(target), noun.noun_class, plural)


def _verb(rng: random.Random, tense: str, subject: _Phrase) -> tuple[str, str]:
    verb = _choose(rng, VERBS)
    negated = rng.random() < 0.25
    if tense == "future":
        source = f"will {'not ' if negated else ''}{verb.plain}"
    elif negated:
        present = "do not" if subject.plural else "does not"
        source = f"{'did not' if tense == 'past' else present} {verb.plain}"
    elif tense == "past":
        source = verb.past
    else:
        source = verb.plain if subject.plural else verb.third_person
    agreement = CLASS_ENDING[subject.noun_class] + ("s" if subject.plural else "")
    return source, ("nu " if negated else "") + verb.stem + TENSE_SUFFIX[tense] + agreement
