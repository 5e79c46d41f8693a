"""Prices of the limits of a round: by how much (P2) falls if one gives way a little.

At the best shares and powers of a layout every limit that holds them back has a price, its
multiplier. The prices of bands and powers are slopes of (P2) in logarithms there; memory
has no slope, so the round is decided anew with room for one block more.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.allocation.allocate import Tuned, price_logs, to_logs, tune_chains
from collapipe_jax.allocation.projected_gradient import band_price, certify
from collapipe_jax.allocation.smooth_maximum import add_up
from collapipe_jax.allocation.variables import first_multipliers
from collapipe_jax.batching import on_lanes
from collapipe_jax.compilation import compile_for_now
from collapipe_jax.cost.chains import chains
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.memory import device_memory_bytes
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import with_equal_resources

_STEPS = 400
_AT_LIMIT = 1e-3
_FITS, _ROOM = 1 + 1e-6, 1 + 1e-5
"""Rounding forgiven of what just fits, and granted to what shall fit."""


class Prices(NamedTuple):
    """Prices of the limits on shares and powers, in units of (P2).

    Attributes:
      second: of a second of the round's latency, ``V / T_ref``.
      cluster_second: of a second of a cluster's latency, ``[N]``; sum ``second``.
      d2d_band: of the shares of a cluster, per 1 by which they could sum to more, ``[N]``;
        0 where part of the band is left empty.
      d2e_band: likewise of the clusters' D2E shares.
      d2d_power: of a node's largest power, per 1 by which its logarithm grows,
        ``[N, K + 1]``; 0 where the node sends with less.
      d2e_power: likewise, ``[N]``.
      residual: slopes that no limit explains, over the objective; prices are this good.
    """

    second: Array
    cluster_second: Array
    d2d_band: Array
    d2e_band: Array
    d2d_power: Array
    d2e_power: Array
    residual: Array


def limit_prices(problem: RoundProblem, decision: Decision) -> Prices:
    """Prices of the limits at a decision whose shares and powers are nearly optimal.

    Which cluster and which stage is worth a second comes from a descent of its own: at the
    decision itself several are equally slow, and only the way there tells them apart. It
    starts far off, lest its first point with its arbitrary multipliers be the best it meets.

    Args:
      problem: one round of one network.
      decision: as :func:`collapipe_jax.policies.dssra.dssra` makes it.
    """
    far_off = with_equal_resources(problem, decision.segments, decision.micro_batches)
    return on_lanes(_prices)(problem, decision, far_off)


def _prices(problem, decision, far_off) -> Prices:
    chain = chains(problem, decision.segments, decision.micro_batches)
    multipliers = tune_chains(
        problem, chain, to_logs(problem, chain, far_off), first_multipliers(chain), _STEPS
    ).multipliers
    logs = to_logs(problem, chain, decision)
    priced = price_logs(problem, chain, logs, multipliers)
    active, slope = chain.active, priced.slope

    def of_power(slope, log, used):
        return jnp.where(used & (log > -_AT_LIMIT), jnp.maximum(-slope, 0.0), 0.0)

    return Prices(
        second=chain.price_per_s,
        cluster_second=chain.price_per_s * priced.multipliers.cluster,
        d2d_band=_price_of_band(slope.d2d_share, logs.d2d_share, active),
        d2e_band=_price_of_band(slope.d2e_share, logs.d2e_share, active[0]),
        d2d_power=jnp.swapaxes(of_power(slope.d2d_power, logs.d2d_power, active), 0, 1),
        d2e_power=of_power(slope.d2e_power, logs.d2e_power, active[0]),
        residual=certify(priced, logs, active).residual,
    )


def _price_of_band(slope, log, used):
    """Multiplier of a band, 0 where part of it is left empty."""
    share = add_up(jnp.where(used, jnp.exp(log), 0.0))
    return jnp.where(share > 1.0 - _AT_LIMIT, band_price(slope), 0.0)


class FullDevice(NamedTuple):
    """A device without room for another block.

    Attributes:
      cluster, device: which, devices counted from 1.
      blocks: that it holds.
      saved: by room for one more, in units of (P2).
    """

    cluster: int
    device: int
    blocks: int
    saved: float


def full_devices(
    problem: RoundProblem, tuned: Tuned, decide: Callable[[RoundProblem], Tuned]
) -> list[FullDevice]:
    """Devices that are full, and what room for one block more would save on each.

    Args:
      problem: one round of one network, in NumPy's arrays.
      tuned: what was decided for it, likewise.
      decide: decides any round of this network's shape.

    Returns:
      Largest saving first. What another decision saves that leaves the new room empty
      counts as nothing.
    """
    segments, counts = tuned.decision.segments, tuned.decision.micro_batches
    memory_bytes = problem.compute.memory_bytes
    needs = compile_for_now(device_memory_bytes, problem.workload, segments, counts)
    one_more_bytes = np.asarray(needs(problem.workload, segments + 1, counts))
    runs = segments.sum(axis=1, keepdims=True) > 0
    full = runs & (memory_bytes > 0) & (one_more_bytes > memory_bytes * _FITS)
    found = []
    for n, k in np.argwhere(full & (segments < problem.workload.blocks)):
        wider_bytes = memory_bytes.copy()
        wider_bytes[n, k] = one_more_bytes[n, k] * _ROOM
        other = decide(problem.replace(compute=problem.compute.replace(memory_bytes=wider_bytes)))
        layout = other.decision.segments, other.decision.micro_batches
        uses = needs(problem.workload, *layout)[n, k] > memory_bytes[n, k] * _FITS
        saved = max(float(tuned.objective) - float(other.objective), 0.0) if uses else 0.0
        found.append(FullDevice(int(n), int(k) + 1, int(segments[n, k]), saved))
    return sorted(found, key=lambda device: -device.saved)
