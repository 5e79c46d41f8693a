"""Prices of a round: the queues, and what policies are shown above them."""

import jax.numpy as jnp
from flax import struct
from jax import Array

from collapipe_jax.control.budget_floors import control_unit_floor_j
from collapipe_jax.control.queues import Queues
from collapipe_jax.cost.problem import RoundProblem


@struct.dataclass(kw_only=True)
class PriceParams:
    """What policies are shown in place of the queues, docs/system-model.md, section 5.

    With all at 0 they are shown the queues themselves, (P2) to the letter. The queues follow
    (20) in any case.

    Attributes:
      energy_reserve, divergence_reserve: least price of a node's energy and of divergence.
        With an empty queue one round could otherwise spend more than many others save.
      certain_debt_weight: part of the debt which a round's fading leaves a control unit
        whatever is decided, that its price counts before the round.
    """

    energy_reserve: Array
    divergence_reserve: Array
    certain_debt_weight: Array


def shown_queues(queues: Queues, problem: RoundProblem, params: PriceParams) -> Queues:
    """The prices of a round: queues as policies see them.

    Source: docs/system-model.md, section 5.

    Args:
      queues: before the round.
      problem: the round; its own queues are not looked at.
      params: how they are shown.
    """
    floor = control_unit_floor_j(problem) / problem.control.energy_budget_j[:, 0]
    certain = params.certain_debt_weight * jnp.maximum(floor - 1.0, 0.0)
    return Queues(
        energy=jnp.maximum(queues.energy.at[:, 0].add(certain), params.energy_reserve),
        divergence=jnp.maximum(queues.divergence, params.divergence_reserve),
    )
