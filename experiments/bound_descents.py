"""Descents of clusters that lose micro-batches, and what the convergence bound needs of them."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from collapipe_jax.cost.divergence import present_weight
from collapipe_jax.federated.erasures import (
    ErasureLaw,
    cluster_example_weights,
    sample_example_weights,
)
from experiments.bound_problems import Problem

BATCH = 32
"""``B`` of every cluster and local step."""

_LAWS = {
    "independent": ErasureLaw(),
    "pooled": ErasureLaw(pooled=True),
    "correlated": ErasureLaw(per_round=True),
}


@struct.dataclass
class Setting:
    """What differs between descents on a problem; array values all.

    Attributes:
      loss_probability: ``P_n [N]``.
      micro_batches: ``M_n [N]``.
      weight: ``w_n [N]``.
      step_smoothness: ``eta L_s``.
      momentum: of the server's heavy ball.
      present: who takes part, ``[S, N]``: row t modulo S in round t.
    """

    loss_probability: Array
    micro_batches: Array
    weight: Array
    step_smoothness: Array
    momentum: Array
    present: Array


class Path(NamedTuple):
    """What a descent tells.

    Attributes:
      squared_gradient: mean over rounds and local steps of ``|grad F|^2`` at the clusters'
        weighted mean before the step.
      variance: largest variance of a sample's gradient, at any cluster's own point.
      heterogeneity: largest ``|grad F_n - grad F|^2`` of a cluster, at the weighted mean.
      end: mean of the server's points over the second half of the rounds, ``[d]``.
    """

    squared_gradient: Array
    variance: Array
    heterogeneity: Array
    end: Array


class _Sums(NamedTuple):
    squared_gradient: Array
    variance: Array
    heterogeneity: Array


@partial(
    jax.jit,
    static_argnames="erasing",
    compiler_options={"xla_backend_optimization_level": 1},  # compiles in an eighth, runs as fast
)
def descend_all(
    problem: Problem,
    settings: Setting,
    keys: Array,
    *,
    rounds: Array,
    local_steps: Array,
    erasing: str = "independent",
) -> Path:
    """Repeats of descents in all settings, in one compilation for all rounds and local steps.

    Args:
      problem: where.
      settings: leaves ``[S, ...]``.
      keys: ``[S, R]``, one a descent.
      rounds: ``T``, an array value.
      local_steps: ``H``, an array value.
      erasing: as of :func:`descend` (static).

    Returns:
      Leaves ``[S, R, ...]``.
    """
    one = partial(descend, rounds=rounds, local_steps=local_steps, erasing=erasing)
    return jax.vmap(jax.vmap(one, (None, None, 0)), (None, 0, 0))(problem, settings, keys)


def descend(
    problem: Problem,
    setting: Setting,
    key: Array,
    *,
    rounds: Array,
    local_steps: Array,
    erasing: str = "independent",
) -> Path:
    """One descent from the problem's start.

    Args:
      problem: where.
      setting: of this descent.
      key: random key.
      rounds: ``T``.
      local_steps: ``H``.
      erasing: "independent" as the bound assumes; "pooled" for a mean over all survivors;
        "correlated" where one draw takes a cluster's round, "shared" the round of all.
    """

    def one_round(step, carry):
        x, velocity, sums, end = carry
        round_key = jax.random.fold_in(key, step)
        moved, sums = _local_steps(problem, setting, round_key, x, sums, local_steps, erasing)
        weight = present_weight(setting.weight, setting.present[step % setting.present.shape[0]])
        velocity = setting.momentum * velocity + x - weight @ moved
        x = x - velocity
        return x, velocity, sums, end + x * (step >= rounds // 2)

    nothing = jnp.zeros_like(problem.start)
    sums = _Sums(*(jnp.zeros(()) for _ in _Sums._fields))
    start = problem.start, nothing, sums, nothing
    _, _, sums, end = jax.lax.fori_loop(0, rounds, one_round, start)
    sums = sums._replace(squared_gradient=sums.squared_gradient / (rounds * local_steps))
    return Path(*sums, end=end / (rounds - rounds // 2))


def _local_steps(
    problem: Problem,
    setting: Setting,
    round_key: Array,
    x: Array,
    sums: _Sums,
    local_steps: Array,
    erasing: str,
) -> tuple[Array, _Sums]:
    """Points of the clusters after a round's local steps, ``[N, d]``, and what was met."""
    step_size = setting.step_smoothness / problem.smoothness
    erasure_key, data_key = jax.random.split(round_key)

    def one_step(step, carry):
        x, sums = carry
        sums = _met(problem, setting.weight, x, sums)
        weights = _example_weights(setting, erasure_key, step, erasing)
        key = jax.random.fold_in(data_key, step)
        return x - step_size * problem.sampled_gradients(key, x, weights), sums

    everywhere = jnp.tile(x[None], (setting.weight.shape[0], 1))
    return jax.lax.fori_loop(0, local_steps, one_step, (everywhere, sums))


def _met(problem: Problem, weight: Array, x: Array, sums: _Sums) -> _Sums:
    """Count what clusters meet at their points ``[N, d]``."""
    mean = jnp.tile((weight @ x)[None], (x.shape[0], 1))
    gradients = problem.gradients(mean)
    whole = weight @ gradients
    apart = jnp.max(jnp.sum((gradients - whole[None]) ** 2, axis=1))
    return _Sums(
        squared_gradient=sums.squared_gradient + jnp.sum(whole**2),
        variance=jnp.maximum(sums.variance, jnp.max(problem.variances(x))),
        heterogeneity=jnp.maximum(sums.heterogeneity, apart),
    )


def _example_weights(setting: Setting, round_key: Array, step: Array, erasing: str) -> Array:
    """Erasure weights ``[N, B]`` of a local step."""
    if erasing == "shared":  # no law of the trainer, the extreme of a common shadow
        draw = partial(sample_example_weights, round_key, BATCH, 1)
        return jax.vmap(draw)(setting.loss_probability)
    return cluster_example_weights(
        _LAWS[erasing],
        jax.random.fold_in(round_key, step),
        round_key,
        BATCH,
        setting.micro_batches,
        setting.loss_probability,
        setting.weight,
    )
