import math

import pytest
import sacrebleu

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.scores import bleu, copy_baseline


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
