"""Tangents of the convex functions of a message's log SINR that no cone of a solver knows."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.cost.divergence import excess_inverse_survival
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.network.channel import spectral_efficiency, transport_block_hazard


class Tangent(NamedTuple):
    """Lines that touch a function, one an entry: ``[M]`` messages or ``[C]`` clusters each."""

    point: np.ndarray
    value: np.ndarray
    slope: np.ndarray


def slowness_of(problem, log_sinr):
    """Log of the seconds for a bit on a hertz, the ceiling aside: convex, falling."""
    radio = problem.radio.replace(max_spectral_efficiency=jnp.inf)
    return -jnp.log(spectral_efficiency(jnp.exp(log_sinr), radio))


def block_hazard(problem, log_sinr):
    """Hazard of a transport block: convex, falling."""
    return transport_block_hazard(problem.radio, jnp.exp(log_sinr))


def excess_survival(problem, hazard):
    """Excess inverse survival: convex, rising."""
    del problem
    return excess_inverse_survival(hazard)


def tangents(function: Callable, problem: RoundProblem, points: list[np.ndarray]) -> list[Tangent]:
    """Tangents of a function of one number, one for each array of points, ``[M]`` or ``[C]``."""
    lines = [_values_and_slopes(function, problem, point) for point in points]
    return [
        Tangent(point, np.asarray(value), np.asarray(slope))
        for point, (value, slope) in zip(points, lines, strict=True)
    ]


@partial(jax.jit, static_argnums=0)
def _values_and_slopes(function, problem, flat):
    return jax.vmap(jax.value_and_grad(lambda x: function(problem, x)))(flat)


def log_sinr_of(problem: RoundProblem, hazard: np.ndarray) -> np.ndarray:
    """Log SINR at which a transport block has this hazard, both ``[...]``: (6) turned round."""
    # All attempts fail with probability 1 - e^-hazard, one with that to the 1 / A_H.
    log_fails = np.log(-np.expm1(-hazard)) / float(problem.radio.harq_attempts)
    z = -np.log(-np.expm1(log_fails))
    return np.log(float(problem.radio.outage_threshold) / z)
