"""Validation taken from training, which shares no text with what is left of it."""

import functools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.sampling import seeded_generator, stratified_draw

_VARIATION_SELECTORS = range(0xFE00, 0xFE10)  # how a character such as an emoji looks


def text_key(text: str) -> str:
    """A text without case and punctuation, or as it is without any letter."""
    return " ".join(_words().findall(text.casefold())) or text


@functools.cache
def _words() -> re.Pattern[str]:
    """Words of any script: with the marks of vowels, which are no letters to the module re."""
    marks = (code for code in range(0x300, 0x20000) if code not in _VARIATION_SELECTORS)
    of_words = "".join(chr(c) for c in marks if unicodedata.category(chr(c)) in ("Mn", "Mc"))
    # Most words end at an ASCII character, for which no mark need be looked up.
    return re.compile(rf"\w+(?:(?![\0-\x7f])[{of_words}]+\w*)*")


def equal_texts(texts: Sequence[str]) -> list[list[int]]:
    """Rows of texts of one ``text_key``, in the order in which the keys first come."""
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        rows.setdefault(text_key(text), []).append(row)
    return list(rows.values())


def take_validation(
    texts: Sequence[str],
    validation: str,
    wanted: int,
    seed: int,
    strata: Sequence[str | bool] | None = None,
) -> tuple[list[int], list[int]]:
    """Rows of training texts to validate on, and rows to train on, both in order.

    Texts of equal ``text_key`` stay together. Validation has the first text of each group that is
    drawn, and the others of the group are in neither set.

    Args:
      texts: of training, of pairs the sources.
      validation: name of a validation file; with one nothing is taken.
      wanted: texts to take, no two of them equal; 0 leaves it to ``validation_size``.
      seed: of the draw.
      strata: of each text a class, such that validation has of every class its share of groups. A
        class of one group stays in training where the others have enough.

    Raises:
      InputError: as of ``validation_size``.
    """
    groups = equal_texts(texts)
    size = validation_size(validation, wanted, len(groups))
    if strata is None:
        drawn = seeded_generator(seed).permutation(len(groups))[:size]
    else:
        classes = np.array([strata[group[0]] for group in groups])
        _, numbers, counts = np.unique(classes, return_inverse=True, return_counts=True)
        several = np.flatnonzero(counts[numbers] > 1)
        pool = several if len(several) >= size else np.arange(len(groups))
        drawn = pool[stratified_draw(classes[pool], size, seed)]
    taken = {int(group) for group in drawn}
    left = [row for number, group in enumerate(groups) if number not in taken for row in group]
    return sorted(groups[number][0] for number in taken), sorted(left)


def validation_size(validation: str, wanted: int, available: int) -> int:
    """Texts of training to take for validation; none where a file has them.

    Otherwise as many as wanted, or a tenth of those available, 1000 at most.

    Raises:
      InputError: if there is a file too, or none would be left to train on.
    """
    key = "task.validation_samples"
    if validation:
        if wanted:
            remedy = "Use 0, or leave task.validation empty"
            raise InputError(key, wanted, "task.validation names a file", remedy)
        return 0
    size = wanted or max(1, min(1000, round(0.1 * available)))
    if size >= available:
        problem = f"training has {available} different texts, none would be left to train on"
        raise InputError(key, wanted, problem, "Lower it, or name a file in task.validation")
    return size


def draw_rows(rows: Sequence[int], samples: int, seed: int) -> list[int]:
    """As many of the rows as wanted, at random and in their order; 0 takes all."""
    drawn = seeded_generator(seed).permutation(len(rows))[: samples or None]
    return [rows[number] for number in np.sort(drawn)]
