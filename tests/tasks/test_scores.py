import math
from collections import Counter

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.conll import TaggedSentence
from collapipe_jax.tasks.scores import (
    accuracy,
    bleu,
    copy_baseline,
    macro_f1,
    majority_class_baseline,
    memorised_tag_baseline,
    span_f1,
    span_recall,
)


def test_a_perfect_translation_scores_100():
    text = ["The cat sat on the mat.", "It rained all day long."]
    assert bleu(text, text).value == pytest.approx(100)


def test_against_the_formula():
    # tokens a b c d e f | a b c d e g: precisions 5/6, 4/5, 3/4, 2/3 and no brevity penalty
    score = bleu(["a b c d e f"], ["a b c d e g"])
    product = 5 / 6 * 4 / 5 * 3 / 4 * 2 / 3
    assert score.value == pytest.approx(100 * product**0.25)


def test_a_short_translation_pays_the_brevity_penalty():
    score = bleu(["a b c d e"], ["a b c d e f g h"])
    assert score.value == pytest.approx(100 * math.exp(1 - 8 / 5))


def test_the_order_of_the_arguments_matters():
    # clipped precision and the brevity penalty look at different sides
    assert bleu(["a b c d e"], ["a b c d e f g h"]) != bleu(["a b c d e f g h"], ["a b c d e"])


def test_nothing_translated_scores_zero():
    assert bleu(["", ""], ["a b c d", "e f g h"]).value == 0


def test_the_signature_names_version_and_tokenisation():
    signature = bleu(["a b c d"], ["a b c d"]).signature
    assert f"version:{sacrebleu.__version__}" in signature
    assert "tok:13a" in signature
    assert "nrefs:1" in signature
    assert "eff:no" in signature


def test_copying_is_scored_like_any_translation():
    sources, references = (
        ["We met Mary in Boston."],
        ["Wir haben gestern Mary in Boston getroffen."],
    )
    assert copy_baseline(sources, references) == bleu(sources, references)
    assert copy_baseline(sources, references) != bleu(references, sources)
    assert copy_baseline(references, references).value == pytest.approx(100)


def test_wrong_numbers_of_sentences_are_named():
    with pytest.raises(InputError, match="hypotheses = 0: no sentence to score"):
        bleu([], [])
    with pytest.raises(InputError, match="hypotheses = 2: there are 1 references"):
        bleu(["a", "b"], ["a"])


def spans(tags):
    """Entities as conlleval reads them: (type, first word, end)."""
    found, name, start = set(), None, 0
    for i, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        if name is not None and (mark != "I" or kind != name):
            found.add((name, start, i))
            name = None
        if mark != "O" and name is None:
            name, start = kind, i
    return found


tag = st.sampled_from(["O", "B-x", "I-x", "B-y", "I-y"])
sentences = st.lists(st.lists(st.tuples(tag, tag), max_size=8), min_size=1, max_size=5)


@given(sentences)
def test_span_f1_against_counting(rows):
    true = [[a for a, _ in row] for row in rows]
    predicted = [[b for _, b in row] for row in rows]
    in_truth, in_answer, right = 0, 0, 0
    for a, b in zip(true, predicted, strict=True):
        in_truth, in_answer = in_truth + len(spans(a)), in_answer + len(spans(b))
        right += len(spans(a) & spans(b))
    if not in_truth:
        return
    expected = 200 * right / (in_truth + in_answer)
    assert span_f1(true, predicted).value == pytest.approx(expected)


def test_span_f1_by_hand():
    true = [["B-x", "I-x", "O", "B-y"], ["B-x", "O"]]
    # one of three found; one with a wrong end, one with a wrong type: 2 * 1 / (3 + 3)
    wrong = [["B-x", "O", "O", "B-x"], ["B-x", "O"]]
    assert span_f1(true, wrong).value == pytest.approx(100 / 3)
    assert span_f1(true, true).value == 100
    # an entity may begin with I-, as in conlleval
    assert span_f1(true, [["I-x", "I-x", "O", "I-y"], ["I-x", "O"]]).value == 100
    signature = span_f1(true, wrong).signature
    assert "mode:conlleval" in signature
    assert "seqeval:" in signature


def test_finding_nothing_scores_zero_without_a_warning():
    assert span_f1([["B-x", "I-x", "O"], ["O"]], [["O", "O", "O"], ["O"]]).value == 0


def test_memorised_tags():
    # Oslo is a place twice of three times, "in" never one, and Rome was never seen
    train = [["Oslo", "in", "Oslo"], ["Oslo", "oslo"]], [["B-x", "O", "B-x"], ["O", "O"]]
    test = [["Oslo", "Rome", "in", "oslo"]]
    assert memorised_tag_baseline(*train, test, [["B-x", "O", "O", "O"]]).value == 100
    assert memorised_tag_baseline(*train, test, [["B-x", "B-x", "O", "O"]]).value == pytest.approx(
        200 / 3
    )
    # of equally frequent tags the first in the alphabet
    tie = [["a"], ["a"]], [["O"], ["B-x"]]
    assert memorised_tag_baseline(*tie, [["a"]], [["B-x"]]).value == 100


def test_recall_tells_what_is_remembered_from_what_is_new():
    train = [TaggedSentence(("New", "York", "lead"), ("B-x", "I-x", "B-y"))]
    test = [
        TaggedSentence(("New", "York", "lead"), ("B-x", "I-x", "B-x")),  # lead as x is new
        TaggedSentence(("York", "lead", "zinc"), ("B-x", "B-y", "B-y")),
    ]
    found = [["B-x", "I-x", "O"], ["B-x", "O", "O"]]
    # seen: New York found, lead missed; unseen: York found, lead as x and zinc missed
    assert span_recall(train, test, found) == (50.0, pytest.approx(100 / 3))
    assert span_recall(train, test[:1], [["B-x", "I-y", "B-x"]]) == (0.0, 100.0)
    assert span_recall(train, train, [train[0].tags]) == (100.0, None)
    with pytest.raises(InputError, match="predicted = 1"):
        span_recall(train, test, found[:1])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_accuracy_and_macro_f1_against_counting(pairs):
    true, predicted = zip(*pairs, strict=True)
    assert accuracy(true, predicted).value == pytest.approx(
        100 * np.mean(np.array(true) == predicted)
    )
    right = Counter(a for a, b in pairs if a == b)
    both = Counter(true) + Counter(predicted)
    expected = np.mean([200 * right[c] / both[c] for c in both])
    assert macro_f1(true, predicted).value == pytest.approx(expected)
    assert f"classes:{len(both)}" in macro_f1(true, predicted).signature
    assert "scikit-learn:" in accuracy(true, predicted).signature


def test_the_majority_class():
    scores = majority_class_baseline([2, 1, 2, 1, 0], [1, 1, 2, 0])
    assert scores.accuracy.value == 50  # of equals the lowest, 1
    # class 1: 2 * 2 / (2 + 4); 0 and 2: nothing
    assert scores.macro_f1.value == pytest.approx(100 * (2 / 3) / 3)
    # a class that never occurs in the test set counts, as it was predicted
    assert majority_class_baseline([7], [0, 1]) == (
        accuracy([0, 1], [7, 7]),
        macro_f1([0, 1], [7, 7]),
    )


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda: span_f1([], []), "true = 0: nothing to score"),
        (lambda: span_f1([["O"]], []), "predicted = 0: there are 1 true ones"),
        (lambda: span_f1([["B-x"], ["O"]], [["O"], []]), "sentence 1 has 1 true tags"),
        (lambda: span_f1([["B-x"]], [["x"]]), "predicted_tags = 'x': no tag of the scheme BIO"),
        (lambda: span_f1([["E-x"]], [["O"]]), "true_tags = 'E-x'"),
        (lambda: span_f1([["O"]], [["B-x"]]), "no entity stands in the text to be scored"),
        (lambda: memorised_tag_baseline([["a"]], [[]], [], []), "train_tags = 0"),
        (lambda: memorised_tag_baseline([], [], [["a"]], [["O", "O"]]), "test_tags = 2"),
        (lambda: accuracy([], []), "nothing to score"),
        (lambda: macro_f1([1, 2], [1]), "predicted = 1: there are 2 true ones"),
        (lambda: accuracy([1.0, math.nan], [1, 1]), "true_labels = .*no row of whole numbers"),
        (lambda: accuracy([1], [math.nan]), "predicted_labels = .*no row of whole numbers"),
        (lambda: majority_class_baseline([], [1]), "nothing to score"),
        (lambda: majority_class_baseline([1], []), "nothing to score"),
    ],
)
def test_what_cannot_be_scored_is_named(score, message):
    with pytest.raises(InputError, match=message):
        score()
