"""Maxima made smooth: weighted power means, whose weights are multipliers.

A maximum of positive numbers is at least their weighted power mean, for any weights of
sum 1,

    max_k v_k >= (sum_k w_k v_k^(1/T))^T,

with equality once the weights have gathered on maximal entries; and the mean keeps the
convexity in logarithms of what it averages. So with its maxima made smooth a convex problem
has an optimum that is a lower bound, at any temperature T, and the parts that entries have
in the mean are better weights to go on with (the exponential method of multipliers, Tseng
and Bertsekas 1993).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.batching import computed_once, few_lanes

TEMPERATURE = 0.1
"""Inverse order of the means: sharp enough to tell a bottleneck, soft enough for gradient
steps."""
_LEAST_WEIGHT = 1e-6


def add_up(values: Array) -> Array:
    """Sum over the first axis.

    Over many lanes it is written out: one pass over them, several times faster than a
    reduction. Over few there is nothing to gain, and a reduction is compiled sooner.
    """
    if few_lanes(values):
        return jnp.sum(values, axis=0)
    return computed_once(sum(values[i] for i in range(values.shape[0])))


def largest(values: Array) -> Array:
    """Maximum over the first axis, written out over many lanes like :func:`add_up`."""
    if few_lanes(values):
        return jnp.max(values, axis=0)
    rows = [values[i] for i in range(values.shape[0])]
    return computed_once(functools.reduce(jnp.maximum, rows))


class Maximum(NamedTuple):
    """A maximum made smooth.

    Attributes:
      smooth: the mean, without the axis of entries.
      slope: of the mean by each entry.
      part: of each entry in the mean; sum 1.
      weight: the next ones, none 0.
    """

    smooth: Array
    slope: Array
    part: Array
    weight: Array


def to_inverse(ratio: Array, temperature: float) -> Array:
    """``ratio^(1 / temperature)``, by products where that is a whole power.

    Args:
      ratio: between 0 and 1.
      temperature: of a mean; no traced value.
    """
    order = 1.0 / temperature
    if order.is_integer():
        return jax.lax.integer_pow(ratio, int(order))
    return jnp.exp(order * jnp.log(jnp.maximum(ratio, 1e-30)))


def power_mean(values: Array, weights: Array, temperature: float) -> Maximum:
    """Weighted power mean over the first axis, at most the maximum.

    Args:
      values: 0 or more, ``[E, ...]``.
      weights: sum 1, ``[E, ...]``.
      temperature: inverse order of the mean.
    """
    top = largest(values)
    some = jnp.where(top > 0, top, 1.0)
    # All zero in a cluster that sits out, where any weights do.
    ratio = jnp.where(top > 0, values / some, 1.0)
    part = weights * to_inverse(ratio, temperature)
    total = add_up(part)
    part = part / total
    smooth = top * jnp.exp(temperature * jnp.log(total))
    slope = part * smooth / jnp.where(values > 0, values, 1.0)
    return Maximum(smooth, slope, part, none_lost(part, values.shape[0]))


def none_lost(part: Array, entries: int) -> Array:
    """Weights of sum 1 kept from 0, from where none would come back.

    Args:
      part: of each of the entries in a mean.
      entries: how many there are.
    """
    return _LEAST_WEIGHT + (1.0 - entries * _LEAST_WEIGHT) * part
