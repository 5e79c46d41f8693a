"""Effective queues: virtual queues with floors and unavoidable arrivals."""

import jax.numpy as jnp
from jax import Array

from collapipe_jax.control.budget_floors import control_unit_floor_j
from collapipe_jax.control.queues import Queues
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.quantity import Struct, quantity


class EffectiveQueueParams(Struct):
    """From virtual queues to those that policies see, docs/system-model.md, section 5.

    With all at 0 they are the same, and policies see (P2) as it is. The virtual queues follow
    (20) in any case. Compare Neely's place-holder backlog.
    """

    energy_queue_floor: Array = quantity(
        "least effective queue of energy; with an empty queue energy is free", unit="budgets"
    )
    divergence_queue_floor: Array = quantity(
        "least effective queue of divergence; with an empty queue divergence is free",
        unit="targets",
    )
    unavoidable_arrival_weight: Array = quantity(
        "share of a control unit's unavoidable arrival that counts in its effective queue before "
        "the round",
        bounds=">= 0 and <= 1",
    )


def effective_queues(queues: Queues, problem: RoundProblem, params: EffectiveQueueParams) -> Queues:
    """Queues as policies see them. Source: docs/system-model.md, section 5.

    Args:
      queues: virtual queues before the round.
      problem: the round; its own queues are not read.
      params: floors, and weight of unavoidable arrivals.
    """
    floor = control_unit_floor_j(problem) / problem.control.energy_budget_j[:, 0]
    unavoidable = params.unavoidable_arrival_weight * jnp.maximum(floor - 1.0, 0.0)
    return Queues(
        energy=jnp.maximum(queues.energy.at[:, 0].add(unavoidable), params.energy_queue_floor),
        divergence=jnp.maximum(queues.divergence, params.divergence_queue_floor),
    )
