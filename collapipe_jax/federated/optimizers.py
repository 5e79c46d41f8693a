"""Optimisers by name, with the schedules that Transformers need, and their memory."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

_MOMENTUM = 0.9  # of "momentum", and of the first moment of "adam"

OPTIMIZERS = {"sgd": 8, "momentum": 12, "adam": 16}
"""Bytes in float32 of weight, gradient and the optimiser's own numbers, a parameter."""
SCHEDULES = ("constant", "cosine", "inverse_sqrt")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizers:
    """The optimisers of a run; static under jit, and compiled once an object."""

    client: optax.GradientTransformation  # of embedding and encoder, one a cluster or client
    decoder: optax.GradientTransformation  # of the decoder or head
    # On the aggregated parameters; ``optax.sgd(1.0)`` is averaging
    server: optax.GradientTransformation


def make_optimizer(
    name: str,
    learning_rate: float,
    *,
    schedule: str = "constant",
    warmup_steps: int = 0,
    total_steps: int = 0,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    """An optax optimiser.

    Where the step size changes, ``update`` needs the keyword ``step``, the number of the step in
    the run: a participant that misses rounds keeps its moments but not its place in the schedule.

    Args:
      name: one of :data:`OPTIMIZERS`.
      learning_rate: peak step size.
      schedule: one of :data:`SCHEDULES`, each after a linear warm-up: "cosine" ends with 0 at
        ``total_steps``, "inverse_sqrt" is ``sqrt(warmup / step)`` (Vaswani et al. 1706.03762).
      warmup_steps: 0 starts at the peak; "inverse_sqrt" then decays as if it were 1.
      total_steps: end of "cosine", beyond the warm-up; others do not read it.
      clip_norm: largest global norm of a gradient; 0 is off.
    """
    rate = _rate(learning_rate, schedule, warmup_steps, total_steps)
    direction = {
        "sgd": optax.identity(),
        "momentum": optax.trace(decay=_MOMENTUM),
        "adam": optax.scale_by_adam(b1=_MOMENTUM, b2=0.98, eps=1e-9),
    }[name]
    step_size = _scale_by_step(rate) if callable(rate) else optax.scale_by_learning_rate(rate)
    clipping = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    return optax.chain(*clipping, direction, step_size)


def _scale_by_step(rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Scale by the negative rate of the step that ``update`` is given, without a state."""

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple:
        del params
        size = -jnp.asarray(rate(extra["step"]))
        return jax.tree.map(lambda leaf: size.astype(leaf.dtype) * leaf, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _rate(
    peak: float, schedule: str, warmup_steps: int, total_steps: int
) -> float | optax.Schedule:
    """The step size over the steps."""
    if schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, total_steps - warmup_steps)
    elif schedule == "inverse_sqrt":
        start = max(warmup_steps, 1)
        after = lambda step: peak * (start / (start + step)) ** 0.5  # noqa: E731
    else:
        after = optax.constant_schedule(peak)
    if warmup_steps == 0:
        return peak if schedule == "constant" else after
    # Counted from 1: the very first step already moves.
    warmup = optax.linear_schedule(peak / warmup_steps, peak, max(warmup_steps - 1, 1))
    return optax.join_schedules([warmup, after], [warmup_steps])


def scale_group_rates(
    optimizer: optax.GradientTransformation, factors: Mapping[str, float]
) -> optax.GradientTransformation:
    """An optimiser whose steps are multiplied by factors of groups of parameters; 1 by default.

    Averaging over clusters divides the step of a token's embedding by N where a single
    cluster met the token, while an encoder's parameter is stepped by all of them (Ding et
    al., 2020, federated submodel averaging). A factor up to N on the embedding compensates.
    """

    def scale(updates: Any, params: Any) -> Any:
        del params
        return {
            name: optax.tree.scale(factors.get(name, 1.0), group) for name, group in updates.items()
        }

    return optax.chain(optimizer, optax.stateless(scale))
