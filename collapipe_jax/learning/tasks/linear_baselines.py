"""Linear models and trivial answers on labelled corpora: what has to be beaten.

Classes: TF-IDF of words and of characters with a linear SVM or logistic regression. Tags: a
linear SVM for each word by itself, on the word, its affixes, its shape and its neighbours. The
penalty of an SVM is chosen on the validation set.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import make_union
from sklearn.svm import LinearSVC

from collapipe_jax.core.files import finite
from collapipe_jax.learning.tasks.corpora import OUTSIDE, LabelledSets, TaggedSentence
from collapipe_jax.learning.tasks.scores import (
    Score,
    accuracy,
    macro_f1,
    majority_class,
    memorised_tags,
    span_f1,
    span_recall,
)

_TEXT_SVM, _WORD_SVM = "TF-IDF, linear SVM", "word features, linear SVM"
_INVERSE_PENALTIES = (0.1, 0.3, 1.0)
_PENALTIES = (1e-5, 1e-4, 1e-3)
_PASSES = 10
_AFFIXES = range(1, 5)


def class_scores(sets: LabelledSets) -> dict[str, Callable[[], tuple[Score, ...]]]:
    """Test accuracy and macro F1 by method, each computed when it is called."""
    texts = [[entry.text for entry in part] for part in sets[1:]]
    classes = [np.array([sets.labels.index(e.label) for e in part]) for part in sets[1:]]

    def judged(fit: Callable) -> tuple[Score, ...]:
        options: dict[str, Any] = {"sublinear_tf": True, "dtype": np.float32}
        words = TfidfVectorizer(ngram_range=(1, 2), **options)
        characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **options)
        features = make_union(words, characters)
        train = features.fit_transform(texts[0])
        validation, test = features.transform(texts[1]), features.transform(texts[2])
        model = fit(train, classes[0], lambda m: m.score(validation, classes[1]))
        return scores(model.predict(test))

    def scores(predicted: np.ndarray) -> tuple[Score, ...]:
        return accuracy(classes[2], predicted), macro_f1(classes[2], predicted)

    return {
        "majority class": lambda: scores(majority_class(classes[0], len(classes[2]))),
        "TF-IDF, logistic regression": lambda: judged(_logistic_regression),
        _TEXT_SVM: lambda: judged(_linear_svm),
    }


def tag_scores(sets: LabelledSets) -> dict[str, Callable[[], tuple[Score, ...]]]:
    """Test span F1, and recall of entities seen in training and not, by method, when called."""
    tags = [[sentence.tags for sentence in part] for part in sets[1:]]

    def judged(found: Sequence[Sequence[str]]) -> tuple[Score, ...]:
        recall = span_recall(sets.train, sets.test, found)
        shares = [np.nan if share is None else share for share in recall]
        return span_f1(sets.test, found), *(Score(share, "recall of entities") for share in shares)

    def linear() -> tuple[Score, ...]:
        options: dict[str, Any] = {"analyzer": list, "binary": True, "dtype": np.float32}
        features = CountVectorizer(**options)
        train = features.fit_transform(_features(sets.train))
        validation = features.transform(_features(sets.validation))
        test = features.transform(_features(sets.test))
        flat = [tag for sentence in tags[0] for tag in sentence]

        def judge(model: SGDClassifier) -> float:
            return span_f1(sets.validation, _by_sentence(tags[1], model.predict(validation))).value

        model = _averaged_svm(train, flat, judge)
        return judged(_by_sentence(tags[2], model.predict(test)))

    return {
        "O everywhere": lambda: judged([[OUTSIDE] * len(sentence) for sentence in tags[2]]),
        "memorised tag of the word": lambda: judged(memorised_tags(sets.train, sets.test)),
        _WORD_SVM: linear,
    }


def text_svm(sets: LabelledSets) -> dict[str, Any]:
    """Final scores of the linear SVM on texts, by the names of the model's and ``_linear``."""
    return _named(sets, class_scores(_judged(sets))[_TEXT_SVM](), "accuracy", "macro_f1")


def word_svm(sets: LabelledSets) -> dict[str, Any]:
    """Final scores of the linear SVM on words; None where no entity is to be found."""
    names = "span_f1", "recall_of_seen", "recall_of_unseen"
    return _named(sets, tag_scores(_judged(sets))[_WORD_SVM](), *names)


def _judged(sets: LabelledSets) -> LabelledSets:
    """The sets; validation is the test where there is none."""
    return sets if sets.test else sets._replace(test=sets.validation)


def _named(sets: LabelledSets, scores: tuple[Score, ...], *names: str) -> dict[str, Any]:
    prefix, pairs = "test" if sets.test else "validation", zip(names, scores, strict=True)
    return finite({f"{prefix}_{name}_linear": score.value for name, score in pairs})


def _logistic_regression(train, labels, _):
    return LogisticRegression(C=10.0, tol=1e-3, max_iter=1000).fit(train, labels)


def _linear_svm(train, labels, judge: Callable[[LinearSVC], float]) -> LinearSVC:
    """The model whose penalty does best on the validation set."""
    models = [LinearSVC(C=c, random_state=0).fit(train, labels) for c in _INVERSE_PENALTIES]
    return max(models, key=judge)


def _averaged_svm(train, labels, judge: Callable[[SGDClassifier], float]) -> SGDClassifier:
    """The same by stochastic descent, as an exact solver takes too long for so many words.

    The weights are the average over the second half of the steps.
    """
    half = _PASSES * len(labels) // 2
    settings = {"average": half, "max_iter": _PASSES, "tol": None, "random_state": 0}
    models = [SGDClassifier(alpha=a, **settings).fit(train, labels) for a in _PENALTIES]
    return max(models, key=judge)


def _by_sentence(true: Sequence[Sequence[str]], flat: Any) -> list[list[str]]:
    ends = np.cumsum([len(tags) for tags in true])
    return [part.tolist() for part in np.split(flat, ends[:-1])]


def _features(sentences: Sequence[TaggedSentence]) -> Iterator[list[str]]:
    """Of each word: itself and its neighbours, up to two words away less and less."""
    for sentence in sentences:
        own = [_of_word(word) for word in sentence.tokens]
        for i, (word, features) in enumerate(zip(sentence.tokens, own, strict=True)):
            joint = ["bias", "word=" + word, *features]
            for offset in (-2, -1, 1, 2):
                near = own[i + offset] if 0 <= i + offset < len(own) else ["edge"]
                joint += [f"{offset}:{f}" for f in (near if abs(offset) == 1 else near[:1])]
            yield joint


def _of_word(word: str) -> list[str]:
    lower = word.lower()
    affixes = [f"{n}-{lower[:n]}" for n in _AFFIXES] + [f"{lower[-n:]}-{n}" for n in _AFFIXES]
    return ["lower=" + lower, "shape=" + _shape(word), *affixes]


def _shape(word: str) -> str:
    """``Xx0-`` for a capital, small letters, digits and the rest, runs made one."""
    kinds = (
        "X" if c.isupper() else "x" if c.isalpha() else "0" if c.isdigit() else c for c in word
    )
    return "".join(kind for kind, _ in itertools.groupby(kinds))
