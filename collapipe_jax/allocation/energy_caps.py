"""Caps on what nodes spend in a round, held by multipliers.

The logarithm of a node's energy on air is convex in logarithms of shares and powers, so a
cap keeps the problem convex. It is treated as maxima are (:mod:`power_mean`): with
``e = energy / cap`` and any ``w >= 0``,

    w T (e^(1/T) - 1)

is convex, at most 0 where the cap holds, and ``w e^(1/T)`` is a better multiplier to go on
with. At a fixed point a cap is met exactly or has no price.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.slopes import by_sender
from collapipe_jax.allocation.smooth_maximum import TEMPERATURE, add_up
from collapipe_jax.allocation.variables import Resources
from collapipe_jax.cost.chains import Caps, Chains, at_next_active, chains, computing_j
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.spending import Spent, price_of_air, spend
from collapipe_jax.cost.terms import Messages, hop_pull

_STEEPEST = 0.1
"""Excess, as a logarithm, from where a penalty goes on along its tangent. A multiplier then
grows by a third in a step, slowly enough for powers to follow."""
_FIRST_MULTIPLIER, _LEAST_MULTIPLIER = 0.1, 1e-4
"""Over the sum of the objective's weights."""
IN_REACH = 1.1
"""A cap can be kept that leaves a node this many times the least its messages can cost."""
_OUT_OF_REACH = 2.0
"""Where it cannot, the node may spend this many times that least. Nearer to it powers
vanish, and what is saved costs the whole round."""
_LEAST_J = 1e-15
LN2 = 0.6931472


class PricedCaps(NamedTuple):
    """What caps add to a price.

    Attributes:
      smooth_price: of clusters' nodes, ``[N, ...]``.
      fine: the same of the caps that are missed, 0 or more.
      price_per_w_s: of a node's energy on air, ``[P, N, ...]``.
      multiplier: better ones, likewise.
      curvature: what caps add to that of a price.
    """

    smooth_price: Array
    fine: Array
    price_per_w_s: Array
    multiplier: Array
    curvature: Resources


def capped_chains(problem: RoundProblem, segments: Array, micro_batches: Array) -> Chains:
    """Chains of a layout whose nodes' budgets are caps of this round.

    Args:
      problem: with lanes. A queue of energy that is not 0 is what the node's budget is
        thought to be worth; the cap's multiplier starts from that.
      segments, micro_batches: as in :func:`chains`.
    """
    control = problem.control
    queue = jnp.swapaxes(control.energy_queue, 0, 1)
    budget_j = jnp.swapaxes(control.energy_budget_j, 0, 1)
    no_queue = control.replace(energy_queue=jnp.zeros_like(control.energy_queue))
    chain = chains(problem.replace(control=no_queue), segments, micro_batches)
    left_j = budget_j - computing_j(problem, jnp.moveaxis(segments, 1, 0), chain.active[0])
    least_j = least_on_air_j(problem, chain)
    room_j = jnp.where(left_j >= IN_REACH * least_j, left_j, _OUT_OF_REACH * least_j)
    room_j = jnp.where(chain.active, jnp.maximum(room_j, _LEAST_J), 1.0)
    weight = control.v + control.divergence_queue
    first = jnp.where(queue > 0, queue * room_j / budget_j, _FIRST_MULTIPLIER * weight)
    return chain.replace(caps=Caps(room_j, first, _LEAST_MULTIPLIER * weight))


def least_on_air_j(problem: RoundProblem, chain: Chains) -> Array:
    """What a layout's messages cost at vanishing powers and so without interference.

    There ``log2(1 + x)`` is ``x / ln 2``, whatever the shares. ``[P, N, ...]``, 0 where idle.
    """
    watt = jnp.ones_like(chain.collect_gain)
    point = Resources(watt, watt, watt[0], watt[0])
    noise_w = jnp.broadcast_to(chain.noise_w, watt.shape)
    bit_j_hz = LN2 * problem.radio.snr_gap  # over the SINR of a watt on the whole band
    moves = jnp.stack([chain.collect_gain, chain.distribute_gain]) / noise_w
    spent = spend_on_air(
        chain,
        point,
        bit_j_hz / (chain.d2d_hz * hop_pull(chain, watt, noise_w)),
        bit_j_hz / (chain.d2d_hz * moves),
        bit_j_hz / (chain.d2e_hz * chain.uplink_gain),
    )
    return by_node(chain, spent)


def price_caps(
    chains: Chains,
    point: Resources,
    sent: Messages,
    multiplier: Array,
    temperature: float = TEMPERATURE,
) -> PricedCaps:
    """Caps of chains at a point.

    Args:
      chains: with caps.
      point: shares, and powers in watts.
      sent: messages there.
      multiplier: of every node's cap, ``[P, N, ...]``.
      temperature: of the penalty.
    """
    hop, move, up = sent.hop, sent.move, sent.up
    smooth = spend_on_air(chains, point, hop.smooth_s, move.smooth_s, up.smooth_s)
    spent_j = jnp.maximum(by_node(chains, smooth), _LEAST_J)
    penalty, slope = _penalty(log_excess(chains, spent_j), temperature)
    price = multiplier * slope
    return PricedCaps(
        add_up(multiplier * penalty),
        add_up(multiplier * jnp.maximum(penalty, 0.0)),
        jnp.where(chains.active, price / spent_j, 0.0),
        jnp.maximum(price, chains.caps.least),
        _curvature(chains, sent, smooth, price / temperature / spent_j**2),
    )


def spend_on_air(chains: Chains, point: Resources, hop_bit_s, move_bit_s, up_bit_s) -> Spent:
    """What :func:`spend` tells of energies, its prices being joules."""
    chains = chains.replace(price_per_w_s=chains.active.astype(point.d2d_power.dtype))
    down_bit_s = jnp.zeros_like(up_bit_s)
    return spend(chains, price_of_air(point, chains), hop_bit_s, move_bit_s, up_bit_s, down_bit_s)


def by_node(chains: Chains, spent: Spent) -> Array:
    """Energies on air of nodes from those of messages, 0 where idle, ``[P, N, ...]``."""
    of_node = by_sender(spent.air_price, spent.move_price, chains.active)
    return jnp.where(chains.active, of_node.at[0].add(spent.up_price), 0.0)


def log_excess(chains: Chains, spent_j: Array) -> Array:
    """Logarithm of energies on air over what caps leave for them; very low where idle."""
    return jnp.log(jnp.maximum(spent_j, _LEAST_J) / chains.caps.room_j)


def _penalty(excess: Array, temperature: float) -> tuple[Array, Array]:
    """Penalty of a cap for a multiplier of 1, and its slope."""
    bent = jnp.minimum(excess, _STEEPEST)
    slope = jnp.exp(bent / temperature)
    return temperature * (slope - 1.0) + slope * (excess - bent), slope


def _curvature(chains: Chains, sent: Messages, spent: Spent, stiffness: Array) -> Resources:
    """Stiffness times squares of slopes of energies, by shares and powers."""
    hop_j, up_j = (1.0 - sent.hop.gain) * spent.air_price, (1.0 - sent.up.gain) * spent.up_price
    d2d_j = by_sender(hop_j, (1.0 - sent.move.gain) * spent.move_price, chains.active)
    at_next = at_next_active(stiffness, chains.active)
    return Resources(
        jnp.where(chains.active, stiffness * hop_j[0] ** 2 + at_next * hop_j[1] ** 2, 0.0),
        jnp.where(chains.active, stiffness * d2d_j**2, 0.0),
        stiffness[0] * up_j**2,
        stiffness[0] * up_j**2,
    )
