"""A point of the continuous part of (P2), and what is known there. Nodes first, lanes last."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.chains import Chains


class Resources(NamedTuple):
    """Shares and powers, or a number for each of them; nodes first and lanes last.

    Attributes:
      d2d_share, d2d_power: ``[P, N, ...]``.
      d2e_share, d2e_power: ``[N, ...]``.
    """

    d2d_share: Array
    d2d_power: Array
    d2e_share: Array
    d2e_power: Array


class Multipliers(NamedTuple):
    """Weights of the maxima, sum 1 over their first axis; of two, only the first's.

    Attributes:
      forward, backward: of the hops by node, the D2E link and the longest compute stage,
        ``[P + 2, N, ...]``.
      cluster: ``[N, ...]``.
      hop, move, up: of a message's time by its SINR, against that by the ceiling of
        modulation, ``[2, P, N, ...]`` twice and ``[N, ...]``.
      caps: of the caps on nodes' energies, where there are any, ``[P, N, ...]``.
    """

    forward: Array
    backward: Array
    cluster: Array
    hop: Array
    move: Array
    up: Array
    caps: Array | None = None


def first_multipliers(chains: Chains) -> Multipliers:
    """Weights to start with: most messages stay below the ceiling."""
    nodes, clusters, *lanes = chains.active.shape
    flow = jnp.full((nodes + 2, clusters, *lanes), 1.0 / (nodes + 2))
    messages = jnp.full((2, nodes, clusters, *lanes), 0.9)
    return Multipliers(
        forward=flow,
        backward=flow,
        cluster=jnp.full((clusters, *lanes), 1.0 / clusters),
        hop=messages,
        move=messages,
        up=messages[0, 0],
        caps=None if chains.caps is None else chains.caps.multiplier,
    )


class Surroundings(NamedTuple):
    """What a cluster sees of the others while they stand still.

    Attributes:
      heard_w: interference at its nodes, ``[P, N, ...]``.
      price_per_w: what the others lose by a watt of its nodes, ``[P, N, ...]``.
      price_per_s: of its latency below the round's, ``[N, ...]``; above, it has the whole
        price of the round's.
      round_s: latency of the round, ``[...]``.
      price_per_share: of the D2E band, ``[...]``.
    """

    heard_w: Array
    price_per_w: Array
    price_per_s: Array
    round_s: Array
    price_per_share: Array


class PricedPoint(NamedTuple):
    """Price of a point and how it changes.

    Attributes:
      smooth: the smooth price, ``[...]``, at most (P2).
      objective: (P2), maxima as they are, ``[...]``.
      cluster_latency_s: ``[N, ...]``.
      slope: of the smooth price by the logarithms of shares and powers.
      price_per_heard_w: of interference that a watt of a node makes, ``[P, N, ...]``.
      curvature: about as much as the slope changes where a logarithm grows by 1.
      multipliers: better ones.
    """

    smooth: Array
    objective: Array
    cluster_latency_s: Array
    slope: Resources
    price_per_heard_w: Array
    curvature: Resources
    multipliers: Multipliers
