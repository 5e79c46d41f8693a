import re

import pytest

from collapipe_jax.learning.tasks.scores import bleu
from collapipe_jax.learning.tasks.synthetic import (
    BEINGS,
    CLASS_ENDING,
    PLACES,
    TENSE_SUFFIX,
    THINGS,
    TIMES,
    VERBS,
    generate_parallel_text,
)


@pytest.fixture(scope="module")
def text():
    return generate_parallel_text(0, 3000)


def test_the_text_is_the_same_on_every_platform():
    # golden values: a change here changes every figure trained on synthetic text
    assert generate_parallel_text(0, 7)[5:] == [
        ("Your children forgot many apples.", "Linnen doris poli pomararko oblirulis."),
        ("The doctor will watch two big farmers.", "Izanla zu godarothko grunus gormesho."),
    ]


def test_a_longer_text_starts_with_the_shorter_one(text):
    assert generate_parallel_text(0, 100) == text[:100]


def test_seeds_differ(text):
    other = generate_parallel_text(1, 3000)
    assert len({s for s, _ in other} & {s for s, _ in text}) < 300


def test_no_source_comes_twice(text):
    assert len({source for source, _ in text}) == len(text) == 3000


def test_the_docstring_tells_the_lengths(text):
    words = [len(source.split()) for source, _ in text]
    assert min(words) >= 5
    assert max(words) <= 29


def test_copying_the_source_scores_next_to_nothing(text):
    sources, targets = zip(*text, strict=True)
    assert bleu(sources, targets, "13a").value < 0.5


def test_no_word_is_shared_between_the_languages(text):
    sources, targets = (" ".join(side).lower() for side in zip(*text, strict=True))
    assert not set(re.findall(r"\w+", sources)) & set(re.findall(r"\w+", targets))


def test_stems_are_distinct():
    entries = [*BEINGS, *THINGS, *PLACES, *VERBS]
    assert len({entry.stem for entry in entries}) == len(entries)
    assert {noun.noun_class for noun in BEINGS} == {0, 1, 2}


def test_verbs_stand_last_and_agree_with_the_subject(text):
    simple = re.compile(r"the (\w+) (\w+) (?:the|an?|my|your) \w+\.")
    singular = {noun.singular: noun for noun in BEINGS}
    verbs = {verb.past: (verb, "past") for verb in VERBS}
    verbs |= {verb.third_person: (verb, "present") for verb in VERBS}
    checked = 0
    for source, target in text:
        match = simple.fullmatch(source.lower())
        if not match or match[1] not in singular or match[2] not in verbs:
            continue
        verb, tense = verbs[match[2]]
        ending = CLASS_ENDING[singular[match[1]].noun_class]
        assert target.split()[-1] == verb.stem + TENSE_SUFFIX[tense] + ending + "."
        checked += 1
    assert checked > 10


def test_time_comes_first_in_the_target_wherever_it_stands_in_the_source(text):
    ends, starts = 0, 0
    for source, target in text:
        if len(source.split()) > 8:
            continue  # one clause only
        for english, invented in (pair for times in TIMES.values() for pair in times):
            if english in source.lower():
                assert target.lower().startswith(invented)
                ends += source.endswith(english + ".")
                starts += source.lower().startswith(english)
    assert ends > 50
    assert starts > 50


def test_articles_are_english(text):
    sources = " ".join(source.lower() for source, _ in text)
    assert re.search(r"\ban [aeiou]", sources)
    assert not re.search(r"\ban [^aeiou]|\ba [aeiou]", sources)
