"""A policy with one number of micro-batches for all clusters, at its best number."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.problem import RoundProblem


def at_best_micro_batches(decide: Callable[..., Decision]) -> Callable[..., Decision]:
    """A policy with an option ``best_micro_batches``.

    With the option it decides for every allowed number, and takes the decision of least
    latency in the round. Otherwise it decides for the number ``micro_batches``.
    """

    def decided(
        problem: RoundProblem,
        micro_batches: int,
        best_micro_batches: bool = False,
        **options: Any,
    ) -> Decision:
        if not best_micro_batches:
            return decide(problem, micro_batches, **options)
        choices = problem.workload.micro_batch_choices
        decisions = jax.vmap(lambda count: decide(problem, count, **options))(choices)
        latency_s = jax.vmap(lambda each: evaluate(problem, each).latency_s)(decisions)
        best = jnp.argmin(latency_s)
        return jax.tree.map(lambda leaf: leaf[best], decisions)

    return decided
