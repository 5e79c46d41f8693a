"""Fading of the links from round to round.

Fading within a round is in ``channel.py``: the law of rates, and the hazard.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray

from collapipe_jax.core.quantity import Struct, quantity
from collapipe_jax.edge.network.propagation import symmetric


class DynamicsParams(Struct):
    """Fading over rounds, and availability of devices."""

    fading_correlation: Array = quantity(
        "correlation of the scattered field from round to round", bounds=">= 0 and <= 1"
    )
    d2e_rician_factor: Array = quantity("direct over scattered power of a D2E link")
    d2d_rician_factor: Array = quantity("direct over scattered power of a D2D link")
    availability: Array = quantity("probability that a device is available", bounds=">= 0 and <= 1")


class FadingState(NamedTuple):
    """Scattered fields of all links, complex normal of unit power, as (real, imaginary)."""

    d2e: Float[Array, "N J 2"]
    node: Float[Array, "N*J N*J 2"]


def sample_fading(key: PRNGKeyArray, clusters: int, nodes: int) -> FadingState:
    """Draw the scattered fields of ``N`` clusters of ``K + 1`` nodes, reciprocal."""
    d2e_key, node_key = jax.random.split(key)
    size = clusters * nodes
    field = jax.random.normal(node_key, (size, size, 2)) * jnp.sqrt(0.5)
    return FadingState(
        d2e=jax.random.normal(d2e_key, (clusters, nodes, 2)) * jnp.sqrt(0.5), node=symmetric(field)
    )


def step_fading(
    key: PRNGKeyArray, state: FadingState, correlation: Float[ArrayLike, ""]
) -> FadingState:
    """Fields after a round of the Gauss-Markov process ``h' = rho h + sqrt(1 - rho^2) w``.

    A correlation ``rho`` of 1 freezes the channel, 0 draws it anew; the law is stationary.
    """
    clusters, nodes = state.d2e.shape[:2]
    innovation = sample_fading(key, clusters, nodes)
    scale = jnp.sqrt(1.0 - correlation**2)
    return jax.tree.map(lambda old, new: correlation * old + scale * new, state, innovation)


def fading_power(
    field: Float[Array, "*any 2"], rician_factor: Float[ArrayLike, ""]
) -> Float[Array, "*any"]:
    """Power gain of Rician fading, of mean 1, from the scattered field."""
    direct = jnp.sqrt(rician_factor / (1.0 + rician_factor))
    scattered = field * jnp.sqrt(1.0 / (1.0 + rician_factor))
    return (direct + scattered[..., 0]) ** 2 + scattered[..., 1] ** 2
