"""SCAFFOLD: control variates that remove the drift of clients towards their own optima.

A client descends ``g - c_n + c`` in the place of its gradient ``g``: ``c_n`` estimates the gradient
of its objective, and ``c`` that of all. With plain SGD of one rate in all steps of a round, the
mean gradient of these steps is option II of the paper, ``c_n - c + (x - y_n) / (H eta)``. Other
optimisers get the corrected gradient as well, without the paper's theorems.

Source: Karimireddy et al. 1910.06378.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from collapipe_jax.learning.federated.aggregation import aggregate
from collapipe_jax.learning.models.layers import Params


class ControlVariates(NamedTuple):
    """Control variates; a client that sits out keeps its own."""

    client_variates: Params  # ``c_n``, leaves ``[N, ...]``
    server_variate: Params  # ``c``


def initial_variates(params: Params, clients: int) -> ControlVariates:
    """Zeros: the first round is that of federated averaging."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    copies = jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), params)
    return ControlVariates(copies, zeros)


def corrected_gradient(gradients: PyTree, variates: ControlVariates | None) -> PyTree:
    """Gradients ``[N, ...]`` of all clients with their corrections."""
    if variates is None:
        return gradients
    return jax.tree.map(lambda g, own, common: g - own + common[None], gradients, *variates)


def updated_variates(
    variates: ControlVariates | None,
    mean_gradients: PyTree,
    shares: Float[Array, " N"],
    presence: Float[Array, ""],
) -> ControlVariates | None:
    """Control variates after a round.

    ``c`` moves by the weighted mean of the participants' changes times their share of all
    weight: ``|S| / N`` in the paper, whose weights are equal.

    Args:
      variates: before the round.
      mean_gradients: of the local steps, uncorrected, leaves ``[N, ...]``.
      shares: as in ``federated``.
      presence: share of the weight of all clients that participates.
    """
    if variates is None:
        return None

    def updated(new: Array, own: Array) -> Array:
        return jnp.where((shares > 0.0).reshape(-1, *[1] * (new.ndim - 1)), new, own)

    clients = jax.tree.map(updated, mean_gradients, variates.client_variates)
    change = aggregate(jax.tree.map(jnp.subtract, clients, variates.client_variates), shares)
    server = jax.tree.map(lambda c, mean: c + presence * mean, variates.server_variate, change)
    return ControlVariates(clients, server)
