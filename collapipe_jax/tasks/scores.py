"""How good translations are: BLEU as the field reports it, and the baseline of copying."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics import BLEU

from collapipe_jax.errors import InputError


class Score(NamedTuple):
    """A figure with what is needed to reproduce it."""

    value: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus BLEU of plain, detokenised text, one reference a sentence.

    Args:
        hypotheses: translations; an empty one is allowed and costs its brevity penalty.
        references: what they should have been, in the same order.

    Returns:
        BLEU in percent, 0 to 100, and sacrebleu's signature (tokenisation, smoothing,
        version), without which figures do not compare.

    Raises:
        InputError: no sentences, or different numbers of them.

    Source: Post, A call for clarity in reporting BLEU scores (WMT 2018).
    """
    if not hypotheses:
        raise InputError("hypotheses", 0, "no sentence to score", "Give at least one")
    if len(hypotheses) != len(references):
        problem = f"there are {len(references)} references for them"
        remedy = "Give one reference for each hypothesis"
        raise InputError("hypotheses", len(hypotheses), problem, remedy)
    metric = BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(float(score.score), str(metric.get_signature()))


def copy_baseline(sources: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU of handing the source back untranslated: what any model must beat.

    Args:
        sources: source sentences.
        references: their translations, in the same order.

    Raises:
        InputError: as in `bleu`.
    """
    return bleu(sources, references)
