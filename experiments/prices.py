"""What the limits of a round cost: by how much (P2) would fall if one gave way a little.

At the best shares and powers of a layout every limit that holds them back has a price, its
multiplier. The prices of bands and powers are slopes of (P2) in logarithms there; memory
has no slope, so the round is decided anew with room for one block more.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.scheduling.baselines import with_equal_resources
from collapipe_jax.scheduling.chain_price import add_up, first_multipliers, price_point
from collapipe_jax.scheduling.chains import chains
from collapipe_jax.scheduling.descent import TEMPERATURE, certify
from collapipe_jax.scheduling.feasibility import usable_blocks
from collapipe_jax.scheduling.lanes import on_lanes
from collapipe_jax.scheduling.resources import Tuned, to_logs, to_resources, tune_chains

_STEPS = 400
_AT_LIMIT = 1e-3


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
      decision: as :func:`collapipe_jax.scheduling.dssra.dssra` makes it.
    """
    far_off = with_equal_resources(problem, decision.segments, decision.micro_batches)
    return on_lanes(_prices)(problem, decision, far_off)


def _prices(problem, decision, far_off) -> Prices:
    chain = chains(problem, decision.segments, decision.micro_batches)
    multipliers = tune_chains(
        problem, chain, to_logs(problem, chain, far_off), first_multipliers(chain), _STEPS
    ).multipliers
    logs = to_logs(problem, chain, decision)
    priced = price_point(problem, chain, to_resources(problem, logs), multipliers, TEMPERATURE)
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
    """Multiplier of ``sum e^log <= 1``: at the optimum every slope is minus it times its share."""
    share = add_up(jnp.where(used, jnp.exp(log), 0.0))
    price = jnp.maximum(-add_up(jnp.where(used, slope, 0.0)), 0.0)
    return jnp.where(share > 1.0 - _AT_LIMIT, price, 0.0)


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
      problem: one round of one network.
      tuned: what was decided for it.
      decide: decides any round of this network's shape.

    Returns:
      Largest saving first. What another decision saves that leaves the new room empty
      counts as nothing.
    """
    decision = tuned.decision
    counts = decision.micro_batches[:, None]
    capacity = np.asarray(usable_blocks(problem, counts))
    segments = np.asarray(decision.segments)
    at_home = np.asarray(problem.compute.memory_bytes) > 0
    runs = segments.sum(axis=1, keepdims=True) > 0
    full = at_home & runs & (segments >= capacity) & (capacity < problem.workload.blocks)
    found = []
    for n, k in np.argwhere(full):
        memory_bytes = _with_room(problem, counts, n, k, int(capacity[n, k]) + 1)
        wider = problem.replace(compute=problem.compute.replace(memory_bytes=memory_bytes))
        other = decide(wider)
        uses = int(other.decision.segments[n, k]) > int(
            usable_blocks(problem, other.decision.micro_batches[:, None])[n, k]
        )
        saved = max(float(tuned.objective - other.objective), 0.0) if uses else 0.0
        found.append(FullDevice(int(n), int(k) + 1, int(segments[n, k]), saved))
    return sorted(found, key=lambda device: -device.saved)


def _with_room(problem, counts, n, k, blocks):
    """Memory of all devices, that of one just enough for this many blocks."""
    work = problem.workload
    block_bytes = work.block_static_bytes + work.batch * work.block_kept_bytes
    working_bytes = work.batch / counts[n, 0] * work.block_working_bytes
    needed_bytes = (blocks * block_bytes + working_bytes) * (1 + 1e-5)
    return problem.compute.memory_bytes.at[n, k].max(needed_bytes)
