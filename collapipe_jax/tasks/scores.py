"""Scores of outputs as the field reports them, and baselines that models must beat.

All raise ``InputError`` on empty input or on numbers of items that do not fit each other. The
libraries are imported where they are used: they take seconds to load.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.conll import OUTSIDE, TaggedSentence, is_bio_tag

Labels = Sequence[int] | np.ndarray


class Score(NamedTuple):
    """A score in percent, 0 to 100, and how it was counted: without it scores do not compare."""

    value: float
    signature: str


class ClassScores(NamedTuple):
    """Accuracy and macro F1."""

    accuracy: Score
    macro_f1: Score


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus BLEU of plain, detokenised text, one reference a sentence.

    An empty hypothesis costs its brevity penalty. Source: Post, A call for clarity in reporting
    BLEU scores (WMT 2018).
    """
    if not hypotheses:
        raise InputError("hypotheses", 0, "no sentence to score", "Give at least one")
    if len(hypotheses) != len(references):
        problem = f"there are {len(references)} references for them"
        remedy = "Give one reference for each hypothesis"
        raise InputError("hypotheses", len(hypotheses), problem, remedy)
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(float(score.score), str(metric.get_signature()))


def copy_baseline(sources: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU of copying the source."""
    return bleu(sources, references)


def span_f1(true_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]]) -> Score:
    """F1 of whole entities over a corpus: right only with both ends and the type.

    Entities of all types count alike (micro average). As in conlleval, an ``I-`` that continues
    nothing begins an entity. No entity predicted scores 0.

    Args:
      true_tags, predicted_tags: BIO tags of each sentence, one a word.

    Raises:
      InputError: also on something that is no BIO tag, or no true entity at all, where F1 means
        nothing.

    Source: Tjong Kim Sang and De Meulder, Introduction to the CoNLL-2003 shared task (2003);
    Nakayama, seqeval (2018).
    """
    _check_sizes(true_tags, predicted_tags)
    for number, (true, predicted) in enumerate(zip(true_tags, predicted_tags, strict=True)):
        if len(true) != len(predicted):
            problem = f"sentence {number} has {len(true)} true tags"
            remedy = "Predict one tag for each word"
            raise InputError("predicted_tags", len(predicted), problem, remedy)
    for key, sentences in (("true_tags", true_tags), ("predicted_tags", predicted_tags)):
        for tag in sorted({tag for sentence in sentences for tag in sentence}):
            if not is_bio_tag(tag):
                raise InputError(key, tag, "no tag of the scheme BIO", "Use O, B-type and I-type")
    if all(tag == OUTSIDE for sentence in true_tags for tag in sentence):
        problem = "no entity stands in the text to be scored"
        raise InputError("true_tags", OUTSIDE, problem, "Score text that has entities")
    import seqeval.metrics

    # zero_division: F1 is 0 where nothing is predicted, without a warning on its precision;
    # everything else that seqeval warns of is refused above
    value: Any = seqeval.metrics.f1_score(
        [list(tags) for tags in true_tags],
        [list(tags) for tags in predicted_tags],
        average="micro",
        zero_division=0,  # pyright: ignore[reportArgumentType]
    )
    signature = f"span F1|average:micro|mode:conlleval|scheme:BIO|seqeval:{version('seqeval')}"
    return Score(100 * float(value), signature)


def memorised_tag_baseline(
    train_tokens: Sequence[Sequence[str]],
    train_tags: Sequence[Sequence[str]],
    test_tokens: Sequence[Sequence[str]],
    test_tags: Sequence[Sequence[str]],
) -> Score:
    """Span F1 of ``memorised_tags`` on test sentences."""
    _check_words("test_tags", test_tokens, test_tags)
    return span_f1(test_tags, memorised_tags(train_tokens, train_tags, test_tokens))


def memorised_tags(
    train_tokens: Sequence[Sequence[str]],
    train_tags: Sequence[Sequence[str]],
    tokens: Sequence[Sequence[str]],
) -> list[list[str]]:
    """Each word's most frequent tag of training, ``O`` of unseen words.

    Of equally frequent tags the first in the alphabet counts, and the case of a word counts.
    """
    _check_words("train_tags", train_tokens, train_tags)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for words, tags in zip(train_tokens, train_tags, strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
    best = {word: min(seen, key=lambda t, s=seen: (-s[t], t)) for word, seen in counts.items()}
    return [[best.get(word, OUTSIDE) for word in words] for words in tokens]


class SpanRecall(NamedTuple):
    """Share of the true entities that are predicted, in percent; None where there are none.

    Attributes:
      seen: of those whose words are an entity of their type in training too.
      unseen: of all others.
    """

    seen: float | None
    unseen: float | None


def span_recall(
    train: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence],
    predicted_tags: Sequence[Sequence[str]],
) -> SpanRecall:
    """Recall of entities seen in training, and of others; tags as in ``span_f1``."""
    from seqeval.metrics.sequence_labeling import get_entities

    _check_sizes(test, predicted_tags)
    known = {
        (kind, sentence.tokens[first : last + 1])
        for sentence in train
        for kind, first, last in get_entities(list(sentence.tags))
    }
    found: dict[bool, list[bool]] = {True: [], False: []}
    for sentence, tags in zip(test, predicted_tags, strict=True):
        predicted = set(get_entities(list(tags)))
        for entity in get_entities(list(sentence.tags)):
            kind, first, last = entity
            was_seen = (kind, sentence.tokens[first : last + 1]) in known
            found[was_seen].append(entity in predicted)
    seen, unseen = (
        100.0 * sum(found[part]) / len(found[part]) if found[part] else None
        for part in (True, False)
    )
    return SpanRecall(seen, unseen)


def accuracy(true_labels: Labels, predicted_labels: Labels) -> Score:
    """Share of samples ``[n]`` with the right class."""
    import sklearn.metrics

    true, predicted = _labels(true_labels, predicted_labels)
    value = 100 * float(sklearn.metrics.accuracy_score(true, predicted))
    return Score(value, f"accuracy|scikit-learn:{sklearn.__version__}")


def macro_f1(true_labels: Labels, predicted_labels: Labels) -> Score:
    """F1 of each class, averaged over the classes that occur among true or predicted labels.

    A class that is never predicted rightly has F1 0.
    """
    import sklearn.metrics

    true, predicted = _labels(true_labels, predicted_labels)
    # zero_division as documented above: nothing is left to warn of
    options: dict[str, Any] = {"average": "macro", "zero_division": 0}
    value = sklearn.metrics.f1_score(true, predicted, **options)
    classes = len(np.union1d(true, predicted))
    signature = f"F1|average:macro|classes:{classes}|scikit-learn:{sklearn.__version__}"
    return Score(100 * float(value), signature)


def majority_class_baseline(train_labels: Labels, test_labels: Labels) -> ClassScores:
    """Test scores of the most frequent class of training; of equals the lowest."""
    train, _ = _labels(train_labels, train_labels)
    names, counts = np.unique(train, return_counts=True)
    predicted = np.full(len(test_labels), names[np.argmax(counts)])
    return ClassScores(accuracy(test_labels, predicted), macro_f1(test_labels, predicted))


def _labels(true: Labels, predicted: Labels) -> tuple[np.ndarray, np.ndarray]:
    _check_sizes(true, predicted)
    arrays = np.asarray(true), np.asarray(predicted)
    for key, array in zip(("true_labels", "predicted_labels"), arrays, strict=True):
        if not np.issubdtype(array.dtype, np.integer) or array.ndim != 1:
            problem = "no row of whole numbers"
            raise InputError(key, f"{array.dtype} {array.shape}", problem, "Give class numbers")
    return arrays


def _check_sizes(true: Sequence | np.ndarray, predicted: Sequence | np.ndarray) -> None:
    if len(true) == 0:
        raise InputError("true", 0, "nothing to score", "Give at least one")
    if len(true) != len(predicted):
        problem = f"there are {len(true)} true ones"
        raise InputError("predicted", len(predicted), problem, "Predict one for each")


def _check_words(key: str, tokens: Iterable[Sequence[str]], tags: Sequence[Sequence[str]]) -> None:
    sizes, tag_sizes = [len(words) for words in tokens], [len(row) for row in tags]
    if sizes != tag_sizes:
        problem = "the words of the sentences are not as many"
        raise InputError(key, sum(tag_sizes), problem, "Give one tag for each word")
