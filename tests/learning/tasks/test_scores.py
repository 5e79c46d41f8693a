import math
from collections import Counter

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks import scores as bleu_tokenizers
from collapipe_jax.learning.tasks.scores import (
    TOKENIZERS,
    accuracy,
    bleu,
    check_installed,
    chrf,
    likely_tokenizer,
    macro_f1,
    majority_class,
    memorised_tags,
    span_f1,
    span_recall,
)
from collapipe_jax.learning.tasks.tagging import TaggedSentence


def test_a_perfect_translation_scores_100():
    text = ["The cat sat on the mat.", "It rained all day long."]
    assert bleu(text, text, "13a").value == pytest.approx(100)


def test_against_the_formula():
    # tokens a b c d e f | a b c d e g: precisions 5/6, 4/5, 3/4, 2/3 and no brevity penalty
    found = bleu(["a b c d e f"], ["a b c d e g"], "13a")
    product = 5 / 6 * 4 / 5 * 3 / 4 * 2 / 3
    assert found.value == pytest.approx(100 * product**0.25)


def test_a_short_translation_pays_the_brevity_penalty():
    found = bleu(["a b c d e"], ["a b c d e f g h"], "13a")
    assert found.value == pytest.approx(100 * math.exp(1 - 8 / 5))


def test_the_order_of_the_arguments_matters():
    # clipped precision and the brevity penalty look at different sides
    assert bleu(["a b c d e"], ["a b c d e f g h"], "13a") != bleu(
        ["a b c d e f g h"], ["a b c d e"], "13a"
    )


def test_nothing_translated_scores_zero():
    assert bleu(["", ""], ["a b c d", "e f g h"], "13a").value == 0


def test_the_signature_names_version_and_tokenisation():
    signature = bleu(["a b c d"], ["a b c d"], "13a").signature
    assert f"version:{sacrebleu.__version__}" in signature
    assert "tok:13a" in signature
    assert "nrefs:1" in signature
    assert "eff:no" in signature


def with_a_wrong_character(sentence, place):
    return sentence[:place] + "错" + sentence[place + 1 :]


def test_chinese_is_cut_into_characters():
    characters = [chr(code) for code in range(0x4E00, 0x4E00 + 1600)]
    right = ["".join(characters[i : i + 20]) for i in range(0, 1600, 20)]
    wrong = [with_a_wrong_character(sentence, i % 20) for i, sentence in enumerate(right)]
    tokenizer = likely_tokenizer(right)
    expected = sacrebleu.corpus_bleu(wrong, [right], tokenize="zh").score
    assert bleu(right, right, tokenizer).value == pytest.approx(100)
    assert bleu(wrong, right, tokenizer).value == expected == pytest.approx(86.1, abs=2)
    assert "tok:zh" in bleu(right, right, tokenizer).signature
    assert bleu(wrong, right, "13a").value < 10


CHINESE, JAPANESE, KOREAN = "今天天气很好。", "今日はいい天気です。", "오늘은 날씨가 좋습니다."
ENGLISH, THAI = "The weather is fine today.", "วันนี้อากาศดี"


@pytest.mark.parametrize(
    ("targets", "tokenizer"),
    [
        ([], "13a"),
        (["", "1 2 3 !?"], "13a"),
        ([ENGLISH, "Погода сегодня хорошая.", "الطقس جميل"], "13a"),
        ([CHINESE], "zh"),
        ([CHINESE, ENGLISH], "zh"),  # a tenth of the letters is enough: zh cuts both
        ([*[ENGLISH] * 9, CHINESE], "13a"),
        ([JAPANESE], "ja-mecab"),
        (["ｶﾀｶﾅ"], "ja-mecab"),
        ([KOREAN], "ko-mecab"),
        ([THAI], "char"),
        (["ສະບາຍດີ"], "char"),
        ([CHINESE, THAI], "char"),
        ([CHINESE, KOREAN], "char"),
        ([JAPANESE, KOREAN, ENGLISH], "char"),
    ],
)
def test_the_tokenizer_follows_the_script(targets, tokenizer, monkeypatch):
    monkeypatch.setattr(bleu_tokenizers, "is_installed", lambda name: True)
    assert likely_tokenizer(targets) == tokenizer
    monkeypatch.setattr(bleu_tokenizers, "is_installed", lambda name: "mecab" not in name)
    without = "char" if "mecab" in tokenizer else tokenizer
    assert likely_tokenizer(targets) == without
    if targets not in ([], ["ｶﾀｶﾅ"]):  # no 4-gram in these
        assert bleu(targets, targets, without).value == pytest.approx(100)


def test_every_tokenizer_is_known_to_sacrebleu():
    from sacrebleu.metrics import bleu as theirs

    assert set(TOKENIZERS) - {"auto"} <= set(theirs._TOKENIZERS)


def test_a_tokenizer_without_its_dictionary_is_refused(monkeypatch):
    monkeypatch.setattr(bleu_tokenizers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"k = 'ja-mecab': needs MeCab .*sacrebleu\[ja\]"):
        check_installed("k", "ja-mecab")
    check_installed("k", "zh")


def test_chrf_needs_no_tokenizer():
    found = chrf([ENGLISH, CHINESE], [ENGLISH, CHINESE])
    assert found.value == pytest.approx(100)
    assert found.signature.startswith("chrF2|nrefs:1|")
    assert chrf(["今天天气好"], [CHINESE]).value == pytest.approx(
        sacrebleu.corpus_chrf(["今天天气好"], [[CHINESE]]).score
    )


def score(true, predicted):
    return span_f1([TaggedSentence((), tuple(tags)) for tags in true], predicted)


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
    assert score(true, predicted).value == pytest.approx(expected)


def test_span_f1_by_hand():
    true = [["B-x", "I-x", "O", "B-y"], ["B-x", "O"]]
    # one of three found; one with a wrong end, one with a wrong type: 2 * 1 / (3 + 3)
    wrong = [["B-x", "O", "O", "B-x"], ["B-x", "O"]]
    assert score(true, wrong).value == pytest.approx(100 / 3)
    assert score(true, true).value == 100
    # an entity may begin with I-, as in conlleval
    assert score(true, [["I-x", "I-x", "O", "I-y"], ["I-x", "O"]]).value == 100
    signature = score(true, wrong).signature
    assert "mode:conlleval" in signature
    assert "seqeval:" in signature


def test_finding_nothing_scores_zero_without_a_warning():
    assert score([["B-x", "I-x", "O"], ["O"]], [["O", "O", "O"], ["O"]]).value == 0


def test_memorised_tags():
    # Oslo is a place twice of three times, "in" never one, and Rome was never seen
    train = [
        TaggedSentence(("Oslo", "in", "Oslo"), ("B-x", "O", "B-x")),
        TaggedSentence(("Oslo", "oslo"), ("O", "O")),
    ]
    test = [TaggedSentence(("Oslo", "Rome", "in", "oslo"), ())]
    assert memorised_tags(train, test) == [["B-x", "O", "O", "O"]]
    # of equally frequent tags the first in the alphabet
    tie = [TaggedSentence(("a",), ("O",)), TaggedSentence(("a",), ("B-x",))]
    assert memorised_tags(tie, tie) == [["B-x"], ["B-x"]]


def test_recall_tells_what_is_remembered_from_what_is_new():
    train = [TaggedSentence(("New", "York", "lead"), ("B-x", "I-x", "B-y"))]
    test = [
        TaggedSentence(("New", "York", "lead"), ("B-x", "I-x", "B-x")),  # lead as x is new
        TaggedSentence(("York", "lead", "zinc"), ("B-x", "B-y", "B-y")),
    ]
    found = [["B-x", "I-x", "O"], ["B-x", "O", "O"]]
    # seen: New York found, lead missed; unseen: York found, lead as x and zinc missed
    assert span_recall(train, test, found) == [50.0, pytest.approx(100 / 3)]
    assert span_recall(train, test[:1], [["B-x", "I-y", "B-x"]]) == [0.0, 100.0]
    assert span_recall(train, train, [train[0].tags]) == [100.0, None]


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
    assert majority_class([2, 1, 2, 1, 0], 3).tolist() == [1, 1, 1]  # of equals the lowest
