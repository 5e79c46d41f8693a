"""Aggregation of the clusters' parameters and the server's step on the result."""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def present_shares(weights: jax.Array, present: jax.Array) -> jax.Array:
    """Weights ``[N]`` rescaled to sum 1 over the present clusters; all 0 if nobody is.

    Args:
      weights: ``w_n [N]``, >= 0.
      present: ``[N]`` bool.

    Returns:
      ``[N]``.
    """
    held = jnp.where(present, weights, 0.0)
    total = held.sum()
    return held / jnp.where(total > 0.0, total, 1.0)


def aggregate(clients: Any, weights: jax.Array, present: jax.Array, previous: Any) -> Any:
    """Weighted mean of the present clusters' parameters.

    Source: docs/system-model.md, section 1, step 5 (McMahan et al. 1602.05629).

    Args:
      clients: tree with leaves ``[N, ...]``. What an absent cluster holds is never read,
        NaN included.
      weights: ``w_n [N]``, >= 0; rescaled to sum 1 over the present clusters.
      present: ``[N]`` bool.
      previous: tree with leaves ``[...]``, returned when nobody is present or all
        present weights are 0.

    Returns:
      Tree with leaves ``[...]``.
    """
    shares = present_shares(weights, present)
    counted = shares > 0.0

    def mean(leaf: jax.Array, old: jax.Array) -> jax.Array:
        held = jnp.where(counted.reshape(-1, *[1] * old.ndim), leaf, 0.0)
        return jnp.where(counted.any(), jnp.tensordot(shares, held, axes=1), old)

    return jax.tree.map(mean, clients, previous)


def server_update(
    previous: Any,
    mean: Any,
    server_state: optax.OptState,
    server_tx: optax.GradientTransformation,
    anyone: jax.Array | bool = True,
) -> tuple[Any, optax.OptState]:
    """The server's optimiser on the pseudo-gradient ``previous - mean``.

    Source: Reddi et al. 2003.00295. Plain averaging is ``optax.sgd(1.0)``.

    Args:
      previous: global parameters at the start of the round.
      mean: aggregated parameters, same structure.
      server_state: state of ``server_tx``.
      server_tx: an optax optimiser.
      anyone: scalar bool; where False neither parameters nor state change, momentum
        included.

    Returns:
      ``(parameters, server_state)`` after the step.
    """
    pseudo_gradient = jax.tree.map(jnp.subtract, previous, mean)
    updates, stepped = server_tx.update(pseudo_gradient, server_state, previous)
    moved = optax.apply_updates(previous, updates)
    return select(anyone, (moved, stepped), (previous, server_state))


def select(condition: jax.Array | bool, yes: Any, no: Any) -> Any:
    """Leaf by leaf, ``yes`` where the condition holds and ``no`` elsewhere.

    Args:
      condition: ``[]``, or ``[N]`` for trees whose leaves are ``[N, ...]``.
      yes: tree of arrays.
      no: tree of the same structure.

    Returns:
      Tree of that structure.
    """
    condition = jnp.asarray(condition)

    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        lifted = condition.reshape(*condition.shape, *[1] * (jnp.ndim(a) - condition.ndim))
        return jnp.where(lifted, a, b)

    return jax.tree.map(pick, yes, no)
