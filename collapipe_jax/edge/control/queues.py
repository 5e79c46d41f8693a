"""Virtual queues of the long-term constraints, and effective queues that policies see."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from collapipe_jax.core.quantity import Struct, quantity
from collapipe_jax.edge.control.budget_floors import control_unit_floor_j
from collapipe_jax.edge.cost.problem import Control, RoundProblem


class Queues(NamedTuple):
    """Backlogs ``q`` of energy and ``z`` of divergence, in units of the budget and the target."""

    energy: Float[Array, "N J"]
    divergence: Float[Array, ""]


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


def empty_queues(clusters: int, nodes: int) -> Queues:
    """Queues before the first round."""
    return Queues(energy=jnp.zeros((clusters, nodes)), divergence=jnp.zeros(()))


def update_queues(
    queues: Queues,
    control: Control,
    energy_j: Float[Array, "N J"],
    divergence: Float[ArrayLike, ""],
) -> Queues:
    """Queues after a round: cost arrives, the budget is served.

    Source: docs/system-model.md (20).
    """
    return Queues(
        energy=jnp.maximum(queues.energy + energy_j / control.energy_budget_j - 1.0, 0.0),
        divergence=jnp.maximum(
            queues.divergence + divergence / control.divergence_target - 1.0, 0.0
        ),
    )


def queues_before(after: Queues) -> Queues:
    """Queues before every round from those after it, ``[rounds, ...]``; the first are empty."""
    return jax.tree.map(lambda queue: jnp.roll(queue, 1, axis=0).at[0].set(0.0), after)


def effective_queues(queues: Queues, problem: RoundProblem, params: EffectiveQueueParams) -> Queues:
    """Queues as policies see them. Source: docs/system-model.md, section 5."""
    floor = control_unit_floor_j(problem) / problem.control.energy_budget_j[:, 0]
    unavoidable = params.unavoidable_arrival_weight * jnp.maximum(floor - 1.0, 0.0)
    return Queues(
        energy=jnp.maximum(queues.energy.at[:, 0].add(unavoidable), params.energy_queue_floor),
        divergence=jnp.maximum(queues.divergence, params.divergence_queue_floor),
    )
