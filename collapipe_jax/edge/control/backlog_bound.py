"""Lower bound of the control units' backlogs on a sample path, for every policy.

A queue after the last round is the largest sum of arrivals less service over some last
rounds. An uplink spends at least its floor times a factor that grows with its SINR; a low
SINR loses micro-batches, and the divergence target limits the losses over all rounds. The
Lagrange multiplier of that target separates the rounds, and any multiplier gives a lower
bound: docs/theory.md (T23).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from collapipe_jax.edge.control.budget_floors import control_unit_floor_j, uplink_floor_j
from collapipe_jax.edge.cost.divergence import (
    cluster_divergence,
    excess_inverse_survival,
    participating_weight,
)
from collapipe_jax.edge.cost.feasibility import can_run
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import spectral_efficiency, transport_block_hazard

_MULTIPLIERS = np.concatenate([[0.0], np.logspace(-6, 6, 97)])
_SINRS = np.logspace(-6, 6, 6001)
_LOSS_COSTS = np.logspace(-10, 14, 481)


class _Floors(NamedTuple):
    """Floors of a round, in units of budgets and of the target."""

    uplink: Float[Array | np.ndarray, "*rounds N"]  # least energy of a control unit's uplink
    rest: Float[Array | np.ndarray, "*rounds N"]  # and of all else that it does
    per_excess: Float[Array | np.ndarray, "*rounds N"]  # divergence per unit of e^hazard - 1
    lossless: Float[Array | np.ndarray, "*rounds"]  # divergence of a round without losses


def backlog_lower_bound(
    problems: RoundProblem, divergence_limit: float
) -> Float[np.ndarray, "S N"]:
    """Least energy queue of every control unit after the last round.

    No decisions within the limit of the mean divergence end below it.

    Source: docs/theory.md (T23).

    Args:
      problems: of ``S`` networks that share workload and radio constants, and of their ``R``
        rounds in order; every leaf with leading axes ``[S, R]``.
      divergence_limit: mean divergence over its target that is still allowed; infinite to
        allow any.
    """
    floors = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), _floors(problems))
    rounds = floors.lossless.shape[1]
    room = divergence_limit * rounds - floors.lossless.sum(axis=1)
    multiplier = _MULTIPLIERS[:, None, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.where(floors.uplink > 0, multiplier * floors.per_excess / floors.uplink, 0.0)
        allowed = np.where(multiplier > 0, multiplier * room[:, None, None], 0.0)
    first = jax.tree.map(lambda leaf: leaf[0, 0], problems)
    arrivals = floors.uplink * _least_factor(first, cost) + floors.rest  # [P, S, R, N]
    last_rounds = np.cumsum(arrivals[:, :, ::-1] - 1.0, axis=2)
    return np.maximum(np.max(last_rounds - allowed, axis=(0, 2)), 0.0)


@jax.jit
@jax.vmap
@jax.vmap
def _floors(problem: RoundProblem) -> _Floors:
    learning, work, control = problem.learning, problem.workload, problem.control
    budget_j, uplink_j = control.energy_budget_j[:, 0], uplink_floor_j(problem)
    weight = participating_weight(learning.cluster_weight, can_run(problem))
    smallest = jnp.max(work.micro_batch_choices)
    divergence = cluster_divergence(learning, weight, work.batch, smallest)
    return _Floors(
        uplink=uplink_j / budget_j,
        rest=(control_unit_floor_j(problem) - uplink_j) / budget_j,
        per_excess=divergence.per_excess / control.divergence_target,
        lossless=jnp.sum(divergence.lossless) / control.divergence_target,
    )


def _least_factor(
    problem: RoundProblem, loss_cost: Float[np.ndarray, "*any"]
) -> Float[np.ndarray, "*any"]:
    """Least of an uplink's energy over its floor plus the cost of losses, at least 1.

    With ``e(x)`` the energy of a bit at SINR ``x`` over that at vanishing power and ``l(x)``
    the least ``e^hazard - 1``, that of the smallest micro-batches: ``min_x e(x) + cost l(x)``,
    from below. One grows with ``x`` and the other falls, so between two points of a grid the
    sum is above the one at its left end and the other at its right; the least is concave in
    the cost, so a chord lies below it.
    """
    work, radio = problem.workload, problem.radio
    batch = work.batch / jnp.max(work.micro_batch_choices)
    transport_blocks = batch * work.uplink_bits / radio.transport_block_bits
    with jax.enable_x64(True):
        sinr = jnp.asarray(_SINRS)
        energy = sinr / (radio.snr_gap * np.log(2.0) * spectral_efficiency(sinr, radio))
        loss = excess_inverse_survival(transport_blocks * transport_block_hazard(radio, sinr))
    energy = np.concatenate([[1.0], np.maximum(energy, 1.0)])
    loss = np.concatenate([np.asarray(loss), [0.0]])
    costs = np.concatenate([[0.0], _LOSS_COSTS])
    least = [np.min(energy + cost * loss) for cost in costs]
    return np.interp(loss_cost, costs, least)
