"""Active sets at their powers, and which of them are worth a closer look.

Shares are equal here, and blocks split at will: no set is filled yet.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.smooth_maximum import add_up
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.partition.set_prices import Micro, Nodes, Sets
from collapipe_jax.partition.set_resources import choose_powers


class PoweredSets(NamedTuple):
    """Active sets with powers, for one number of micro-batches.

    Attributes:
      active: ``[P, sets, N, R]``.
      pull: SINR of both messages of a hop on the whole band at full power,
        ``[2, P, sets, N, R]``.
      power: over its maximum, ``[P, sets, N, R]``.
      balanced_s: time of every device if blocks could be split at will, ``[sets, N, R]``.
      price: estimated, of what differs between sets, likewise.
    """

    active: Array
    pull: Array
    power: Array
    balanced_s: Array
    price: Array


def power_sets(problem: RoundProblem, nodes: Nodes, sets: Sets, micro: Micro) -> PoweredSets:
    """Powers of every set and its price at them.

    Args:
      problem: with lanes.
      nodes, sets, micro: prices.
    """
    work, compute = problem.workload, problem.compute
    member = sets.active[1:].astype(micro.unit_s.dtype)
    balanced_s = work.blocks / add_up(member / micro.unit_s[:, None])
    power, paid = choose_powers(problem, nodes, sets, micro, balanced_s)
    devices = add_up(member)
    busy_s = (work.local_steps * devices + micro.pauses) * (1.0 + work.backward_ratio) * balanced_s
    overhead_s = 2.0 * work.local_steps * (devices + 1.0) * compute.link_overhead_s
    energy = balanced_s * add_up(member * (nodes.block_price / micro.unit_s)[:, None])
    on_air = add_up(jnp.where(sets.active, paid, 0.0))
    price = on_air + energy + micro.middle_price_per_s * (busy_s + overhead_s)
    return PoweredSets(sets.active, sets.pull, power, balanced_s, price)
