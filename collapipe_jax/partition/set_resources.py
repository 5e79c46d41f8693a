"""Powers and shares that suit an active set, by rules: no descent.

Every node takes the cheapest of a few powers at equal shares. Shares then follow from the
times that come out, and are narrowed where losses ask for it.
"""

import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.smooth_maximum import add_up
from collapipe_jax.batching import computed_once
from collapipe_jax.cost.messages import bit_time_s, sinr_at_hazard
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.partition.set_prices import LEVELS, Micro, Nodes, Sets

_BOTTLENECK_PART = 0.5
"""How much of the bottleneck the hops are taken to be, as long as it is not known."""
_EXPECTED_HAZARD = 1.0
_LARGEST_EXPECTED_HAZARD = 4.0
"""Hazard at which losses are priced while powers and shares are chosen, and its limit."""
_EXPECTED_GAIN = 0.6
"""Of spectral efficiency by the SINR, both in logarithms, where losses begin to matter."""
_HAZARD_TO_AIM_AT = (1e-4, 10.0)
_LEAST_PRICE = 1e-30
_DEAD_LINK = 1e30
"""Price of a block over a link that moves nothing. No block costs nothing there."""


def choose_powers(
    problem: RoundProblem, nodes: Nodes, sets: Sets, micro: Micro, balanced_s: Array
) -> tuple[Array, Array]:
    """The cheapest power of every node of every set, shares being equal.

    Blocks, moved by their devices and handed out by the control unit, are taken as split
    at will.

    Args:
      problem: with lanes.
      nodes, sets, micro: prices.
      balanced_s: time of every device with blocks split at will, ``[sets, N, R]``.

    Returns:
      Powers over their maxima, and what nodes pay at them, ``[P, sets, N, R]`` each.
    """
    work, middle = problem.workload, micro.middle_price_per_s
    level = jnp.array(LEVELS).reshape(-1, 1, 1, 1)
    paid = level * nodes.full_w * nodes.price_per_j  # [levels, P, N, R]
    sent_bits = work.local_steps * work.batch * work.activation_bits
    paid_for_bits, disturbs, collect, distribute = computed_once(
        (
            paid * sent_bits,
            level * nodes.full_w * nodes.price_per_w,
            _finite((middle + paid) * nodes.collect_s),
            _finite((middle + paid[:, :1]) * nodes.distribute_s),
        )
    )

    blocks = sets.active[1:] / micro.unit_s[:, None] * balanced_s
    blocks = jnp.concatenate([jnp.zeros_like(blocks[:1]), blocks])
    per_bit_s = _price_per_bit_s(problem, micro, sets.active)
    per_hazard = _price_per_hazard(problem, micro)
    blocks, per_bit_s, per_hazard = computed_once((blocks, per_bit_s, per_hazard))

    def by_set(of_node):
        return of_node[:, :, None]

    handed_out = add_up(jnp.moveaxis(blocks * by_set(distribute), 1, 0))
    control_unit = (jnp.arange(blocks.shape[0]) == 0).reshape(-1, 1, 1, 1)
    price = (per_bit_s + by_set(paid_for_bits)) * sets.air_s + per_hazard * sets.hazard
    price = price + by_set(disturbs) + blocks * by_set(collect)
    price = computed_once(price + jnp.where(control_unit, handed_out[:, None], 0.0))
    best, least = jnp.full_like(price[0], LEVELS[0]), price[0]
    for index, power in enumerate(LEVELS[1:], start=1):
        best = jnp.where(price[index] < least, power, best)
        least = jnp.minimum(price[index], least)
    return computed_once((best, least))


def _finite(price: Array) -> Array:
    return jnp.nan_to_num(price, nan=_DEAD_LINK, posinf=_DEAD_LINK)


def choose_shares(
    problem: RoundProblem, active: Array, full_sinr: Array, micro: Micro, balanced_s: Array
) -> Array:
    """Shares of the hops by their times at equal ones.

    In proportion to the times, which makes them equal, where hops are the bottleneck; to
    their roots, which makes the sum least, where devices are.

    Args:
      problem: with lanes.
      active: ``[P, sets, N, R]``.
      full_sinr: of both messages of a hop on the whole band, ``[2, P, sets, N, R]``.
      micro: sizes.
      balanced_s: as for :func:`choose_powers`.

    Returns:
      ``[P, sets, N, R]``; 1 on idle nodes.
    """
    band_hz = problem.radio.d2d_bandwidth_hz
    hops = add_up(active.astype(full_sinr.dtype))
    equal_s = bit_time_s(problem.radio, band_hz / hops, full_sinr * hops)
    equal_s = equal_s[0] + equal_s[1]
    mean_s = 0.5 * micro.bits * add_up(jnp.where(active, equal_s, 0.0)) / hops
    hops_wait = (mean_s > balanced_s) & (micro.batches > 1.0)
    wanted = jnp.where(hops_wait, equal_s, jnp.sqrt(equal_s))
    wanted = jnp.where(active, wanted, 0.0)
    return jnp.where(active, wanted / add_up(wanted), 1.0)


def narrow_shares(
    problem: RoundProblem, active: Array, full_sinr: Array, micro: Micro, share: Array
) -> Array:
    """Shares narrowed where losses cost more than time (docs/dssra.md, layouts of a cluster).

    Args:
      problem: with lanes.
      active, full_sinr, micro: as for :func:`choose_shares`.
      share: from there.
    """
    radio = problem.radio
    bit_s = bit_time_s(radio, share * radio.d2d_bandwidth_hz, full_sinr / share)
    of_time = (bit_s[0] + bit_s[1]) * _price_per_bit_s(problem, micro, active)
    of_hazard = jnp.maximum(_price_per_hazard(problem, micro), _LEAST_PRICE)
    hazard = (1.0 - _EXPECTED_GAIN) * of_time / (radio.harq_attempts * of_hazard)
    wanted = sinr_at_hazard(radio, jnp.clip(hazard, *_HAZARD_TO_AIM_AT))
    return jnp.where(active, jnp.minimum(share, jnp.min(full_sinr, axis=0) / wanted), 1.0)


def _price_per_bit_s(problem, micro: Micro, active) -> Array:
    """Price of a second longer for a bit of a hop's messages, ``[sets, N, R]``."""
    hops = add_up(active.astype(micro.bits.dtype))
    pauses = (micro.batches - 1.0) * _BOTTLENECK_PART / hops
    steps = problem.workload.local_steps
    return micro.middle_price_per_s * steps * micro.bits * (1.0 + pauses)


def _price_per_hazard(problem, micro: Micro) -> Array:
    """Price of a transport block's hazard on a hop at the loss expected, ``[N, R]``."""
    expected = jnp.minimum(micro.fixed_hazard + _EXPECTED_HAZARD, _LARGEST_EXPECTED_HAZARD)
    blocks = micro.bits / problem.radio.transport_block_bits
    return micro.survival_price * jnp.exp(expected) * blocks
