"""Debt that a path of fades leaves to every control unit, whatever decides.

A queue after the last round is the largest sum of overdrafts over some last rounds, and what
an uplink spends is at least its floor times a factor that grows with its SINR, while a low
SINR loses micro-batches, of which the target of divergence allows so many over all rounds.
Lagrange's multiplier of that target makes the rounds independent, and any multiplier gives a
lower bound: docs/theory.md (T23).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.control.budget_floors import control_unit_floor_j, uplink_floor_j
from collapipe_jax.cost.divergence import (
    erasure_terms,
    excess_inverse_survival,
    loss_free_divergence,
    noise_weight,
    present_weight,
)
from collapipe_jax.cost.feasibility import can_run
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.network.channel import spectral_efficiency, transport_block_hazard

_MULTIPLIERS = np.concatenate([[0.0], np.logspace(-6, 6, 97)])
_SINRS = np.logspace(-6, 6, 6001)
_PRICES = np.logspace(-10, 14, 481)


class _Fades(NamedTuple):
    """What rounds ask for at the least, in units of budgets and of the target.

    Attributes:
      uplink, rest: least energy of a control unit, ``[S, R, N]``.
      loss_weight: divergence for each unit of ``e^Lambda - 1`` of a cluster, ``[S, R, N]``.
      loss_free: divergence of a round without losses, ``[S, R]``.
    """

    uplink: np.ndarray
    rest: np.ndarray
    loss_weight: np.ndarray
    loss_free: np.ndarray


def unavoidable_debt(problems: RoundProblem, divergence_limit: float) -> np.ndarray:
    """Least energy queue of every control unit after some rounds, ``[S, N]``.

    Source: docs/theory.md (T23). No decisions that keep the mean divergence end below it.

    Args:
      problems: of networks that share workload and radio constants, and of their rounds in
        order; every leaf with leading axes ``[S, R]``.
      divergence_limit: mean divergence over its target that is still allowed; infinite to
        allow any.
    """
    fades = _Fades(*(np.asarray(part, np.float64) for part in _fades(problems)))
    rounds = fades.loss_free.shape[1]
    room = divergence_limit * rounds - fades.loss_free.sum(axis=1)
    multiplier = _MULTIPLIERS[:, None, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        price = np.where(fades.uplink > 0, multiplier * fades.loss_weight / fades.uplink, 0.0)
        allowed = np.where(multiplier > 0, multiplier * room[:, None, None], 0.0)
    first = jax.tree.map(lambda leaf: leaf[0, 0], problems)
    overdraft = fades.uplink * _least_factor(first, price) + fades.rest - 1.0  # [P, S, R, N]
    last_rounds = np.cumsum(overdraft[:, :, ::-1], axis=2)
    return np.maximum(np.max(last_rounds - allowed, axis=(0, 2)), 0.0)


@jax.jit
@jax.vmap
@jax.vmap
def _fades(problem: RoundProblem) -> tuple[Array, ...]:
    learning, work, control = problem.learning, problem.workload, problem.control
    present, budget_j = can_run(problem), control.energy_budget_j[:, 0]
    uplink_j = uplink_floor_j(problem)
    heterogeneity = erasure_terms(learning) * learning.gradient_heterogeneity
    excess = learning.gradient_variance / work.batch
    excess += heterogeneity / jnp.max(work.micro_batch_choices)
    weight = noise_weight(learning, present_weight(learning.cluster_weight, present))
    return (
        uplink_j / budget_j,
        (control_unit_floor_j(problem) - uplink_j) / budget_j,
        weight * excess / control.divergence_target,
        loss_free_divergence(learning, work.batch, present) / control.divergence_target,
    )


def _least_factor(problem: RoundProblem, price: np.ndarray) -> np.ndarray:
    """Least of an uplink's energy over its floor plus losses at a price, at least 1, ``[...]``.

    With ``e(x)`` the energy of a bit at SINR ``x`` over that at vanishing power and ``l(x)``
    the least ``e^Lambda - 1``, that of the smallest micro-batches: ``min_x e(x) + price l(x)``,
    from below. One grows with ``x`` and the other falls, so between two points of a grid the
    sum is above the one at its left end and the other at its right; over prices the least is
    concave, so a chord lies below it.
    """
    work, radio = problem.workload, problem.radio
    batch = work.batch / jnp.max(work.micro_batch_choices)
    blocks = batch * (work.activation_bits + work.target_bits) / radio.transport_block_bits
    with jax.enable_x64(True):
        sinr = jnp.asarray(_SINRS)
        energy = sinr / (radio.snr_gap * np.log(2.0) * spectral_efficiency(sinr, radio))
        loss = excess_inverse_survival(blocks * transport_block_hazard(radio, sinr))
    energy = np.concatenate([[1.0], np.maximum(energy, 1.0)])
    loss = np.concatenate([np.asarray(loss), [0.0]])
    prices = np.concatenate([[0.0], _PRICES])
    least = [np.min(energy + one * loss) for one in prices]
    return np.interp(price, prices, least)
