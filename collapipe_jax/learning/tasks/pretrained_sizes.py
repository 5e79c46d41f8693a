"""Sizes of a pretrained model that training starts from."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from collapipe_jax.core.errors import InputError, collect
from collapipe_jax.learning.models.config import BertConfig, CausalConfig

Sizes = TypeVar("Sizes", BertConfig, CausalConfig)

_SAME = ("width", "heads", "feed_forward_width", "encoder_blocks", "vocabulary_size")
_CHOSEN = ("dropout_rate", "attention_dropout_rate", "attention", "rematerialise", "compute_dtype")
_CHOSEN += ("adapters",)


def pretrained_sizes(
    directory: str, wanted: Sizes, found: Sizes, more: Sequence[str] = ()
) -> Sizes:
    """Sizes on file; training may choose dropout, precision, kernel, recomputation, adapters.

    Raises:
      InputError: sizes, ``more`` fields among them, other than in the configuration, by which the
        network prices the model; or too few positions; or all of these.
    """
    with collect() as step:
        for field in (*_SAME, *more):
            section = "task" if field == "vocabulary_size" else "model"
            ours, theirs = getattr(wanted, field), getattr(found, field)
            with step():
                if ours != theirs:
                    problem = f"the model in {directory} has {theirs}"
                    raise InputError(f"{section}.{field}", ours, problem, f"Set it to {theirs}")
        with step():
            if found.positions < wanted.positions:
                problem = f"the model in {directory} has {found.positions} positions"
                remedy = f"Lower it to {found.positions} or less"
                raise InputError("task.source_length", wanted.positions, problem, remedy)
    return dataclasses.replace(found, **{key: getattr(wanted, key) for key in _CHOSEN})
