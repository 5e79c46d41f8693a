"""Linear models and trivial answers on the corpora of the models: what has to be beaten.

    python -m experiments.benchmarks.linear_baselines --samples=2000

Classes: TF-IDF of words and of characters with a linear SVM or logistic regression. Tags: a
linear SVM for each word by itself, on the word, its affixes, its shape and its neighbours.
Each is trained on the whole training set and on ``--samples`` texts or sentences of it, the
ones that a model gets with the same seed; the penalty of an SVM is chosen on the validation
set. Corpora are found through COLLAPIPE_DATA. About 10 minutes on 2 cores.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import make_union
from sklearn.svm import LinearSVC

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.errors import InputError
from collapipe_jax.tables import console_for_tables, make_table
from collapipe_jax.tasks.classification import read_sets
from collapipe_jax.tasks.corpora import OUTSIDE, LabelledSets, TaggedSentence
from collapipe_jax.tasks.scores import (
    Score,
    accuracy,
    macro_f1,
    majority_class,
    memorised_tags,
    span_f1,
    span_recall,
)
from collapipe_jax.tasks.tagging import read_tagged
from experiments.benchmarks.timing import timed


def _sets(folder: str, train: str, validation: str, test: str) -> dict[str, Any]:
    """Files of a corpus by set."""
    names = {"train": train, "validation": validation, "test": test}
    return {part: name and f"{folder}/{name}" for part, name in names.items()}


_CLINC150 = ("data_full.json#train", "data_full.json#val", "data_full.json#test")
_WNUT17 = ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
CLASSIFICATION = {
    "cls_clinc150": _sets("cls_clinc150", *_CLINC150),
    "cls_banking77": _sets("cls_banking77", "train.csv", "", "test.csv")
    | {"validation_samples": 1000},
}
TAGGING = {
    "ner_bc5cdr": _sets("ner_bc5cdr", "train.tsv", "devel.tsv", "test.tsv"),
    "ner_wnut17": _sets("ner_wnut17", *_WNUT17),
}

_WIDTH = 120
_INVERSE_PENALTIES = (0.1, 0.3, 1.0)
_PENALTIES = (1e-5, 1e-4, 1e-3)
_PASSES = 10
_AFFIXES = range(1, 5)


class Row(NamedTuple):
    """A line of the table: scores on the test set, in percent."""

    corpus: str
    samples: int
    method: str
    scores: tuple[Score, ...]  # accuracy and macro F1, or span F1 and recall of seen and unseen
    seconds: float


def main(argv: Sequence[str]) -> None:
    """Measure every baseline on every corpus and print one table."""
    known = [*CLASSIFICATION, *TAGGING]
    samples, seed = (0, "also on so many; 0: only on all"), (0, "of the draw of the samples")
    parser = make_parser(__doc__, samples=samples, seed=seed)
    parser.add_argument("--corpora", nargs="+", choices=known, default=known)
    options = parser.parse_args(argv)
    for name in ("samples", "seed"):
        if (number := getattr(options, name)) < 0:
            raise InputError(f"--{name}", number, "a negative number", "Use 0 or more")
    console, rows = console_for_tables(_WIDTH), []
    sizes = (0, options.samples) if options.samples else (0,)
    for name, samples in itertools.product(options.corpora, sizes):
        if name in CLASSIFICATION:
            sets = read_sets(**CLASSIFICATION[name], samples=samples, seed=options.seed)
            methods = class_scores(sets)
        else:
            sets = read_tagged(**TAGGING[name], samples=samples, seed=options.seed)
            methods = tag_scores(sets)
        for method, work in methods.items():
            run_s, scores = timed(work)
            rows.append(Row(name, len(sets.train), method, scores, run_s))
            texts = ", ".join(f"{score.value:.2f}" for score in scores)
            console.print(f"{name}, {len(sets.train)} samples, {method}: {texts}")
    console.print(_table(rows))
    for signature in dict.fromkeys(score.signature for row in rows for score in row.scores):
        console.print(signature)


def class_scores(sets: LabelledSets) -> dict[str, Callable[[], tuple[Score, ...]]]:
    """Test accuracy and macro F1 by method, each computed when it is called."""
    texts = [[entry.text for entry in part] for part in sets[1:]]
    classes = [np.array([sets.labels.index(e.label) for e in part]) for part in sets[1:]]

    def judged(fit: Callable) -> tuple[Score, ...]:
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, dtype=np.float32)
        characters = TfidfVectorizer(
            analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, dtype=np.float32
        )
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
        "TF-IDF, linear SVM": lambda: judged(_linear_svm),
    }


def tag_scores(sets: LabelledSets) -> dict[str, Callable[[], tuple[Score, ...]]]:
    """Test span F1, and recall of entities seen in training and not, by method, when called."""
    tags = [[sentence.tags for sentence in part] for part in sets[1:]]

    def judged(found: Sequence[Sequence[str]]) -> tuple[Score, ...]:
        recall = span_recall(sets.train, sets.test, found)
        shares = [np.nan if share is None else share for share in recall]
        return span_f1(sets.test, found), *(Score(share, "recall of entities") for share in shares)

    def linear() -> tuple[Score, ...]:
        features = CountVectorizer(analyzer=list, binary=True, dtype=np.float32)
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
        "word features, linear SVM": linear,
    }


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


def _by_sentence(true: Sequence[Sequence[str]], flat: np.ndarray) -> list[list[str]]:
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


def _table(rows: Sequence[Row]) -> Table:
    cells = []
    for row in rows:
        scores = [f"{score.value:.1f}" for score in row.scores]
        scores = [*scores, *[""] * 3] if row.corpus in CLASSIFICATION else ["", "", *scores]
        cells.append((row.corpus, row.method, str(row.samples), *scores, f"{row.seconds:.1f}"))
    headings = ("trained on", "accuracy", "macro F1", "span F1", "seen", "unseen", "s")
    title = "test scores, %; seen and unseen: recall of entities that training has, and has not"
    return make_table(("corpus", "method", *headings), cells, left=2, title=title)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
