"""DSSRA: dynamic segment scheduling and resource allocation, one round of drift plus penalty.

Two steps alternate: shares and powers of some candidate partitions are optimised, all clusters
together, and other partitions are proposed around the best candidate, the incumbent; the last are
its neighbours. It stays a candidate, so the objective never rises. docs/dssra.md derives the steps.
"""

import jax
import jax.numpy as jnp

from collapipe_jax.allocation.allocate import Solution, certified
from collapipe_jax.batch_axis import batch_last
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import static_pipelines
from collapipe_jax.partition.candidates import Candidates, starting_candidates, with_last
from collapipe_jax.partition.fixed_allocation import repartitioned
from collapipe_jax.partition.hysteresis import apply_hysteresis, previous_partition
from collapipe_jax.partition.joint_search import SearchConfig, optimise, propose_partitions

DEFAULT_SEARCH = SearchConfig()
_USELESS_LOG_SHARE = -20.0
"""A share of 2e-9 of a band, under which even links in deep fades need not go."""


def dssra(
    problem: RoundProblem, micro_batches: int = 8, config: SearchConfig = DEFAULT_SEARCH
) -> Solution:
    """Decide a round by drift plus penalty.

    Args:
      problem: one round of one network; ``jax.vmap`` over problems is the fast way.
      micro_batches: of the static pipeline to start from.
      config: how much to search.

    Returns:
      A feasible decision, its objective, and a certificate of its shares and powers. The
      objective is at most that of this static pipeline, unless hysteresis keeps the
      partition before. No gradient flows through it: that of the objective at the decision
      held constant is the gradient of the optimum (envelope theorem).
    """

    def solve(problem):
        static = static_pipelines(problem, micro_batches)
        candidates = _starting_candidates(problem, static, config.candidates)
        if problem.switching is None:
            return _alternate(problem, candidates, config)
        before = previous_partition(problem, static)
        candidates = with_last(candidates, starting_candidates(problem, before, 1))
        found = _alternate(problem, candidates, config)
        return apply_hysteresis(problem, before, found, sum(config.allocation_steps))

    return batch_last(solve)(jax.lax.stop_gradient(problem))


def _starting_candidates(problem: RoundProblem, static: Decision, count: int) -> Candidates:
    """The static pipeline at different powers, and shares narrowed until messages arrive.

    Where one of its links carries nothing at any useful share, descent does not leave its device.
    There the second candidate has another partition.
    """
    own = starting_candidates(problem, static, count)
    shares = own.logs.d2d_share.min((0, 1)), own.logs.d2e_share.min(0)  # the narrowest, [C, R]
    swapped = (jnp.minimum(*shares) < _USELESS_LOG_SHARE) & (jnp.arange(count) == 1)[:, None]

    def swap():
        other = starting_candidates(problem, repartitioned(problem, static), count)
        return jax.tree.map(lambda new, old: jnp.where(swapped, new, old), other, own)

    return jax.lax.cond(jnp.any(swapped), swap, lambda: own)


def _alternate(problem: RoundProblem, candidates: Candidates, config: SearchConfig) -> Solution:
    """Optimise and propose in turn, by one loop that is compiled once."""
    steps = jnp.array(config.allocation_steps)

    def iterate(candidates, number):
        incumbent = optimise(problem, candidates, steps[number])
        candidates = jax.lax.cond(
            number + 1 < len(steps),
            lambda: propose_partitions(problem, incumbent, config, nearby=number + 2 == len(steps)),
            lambda: candidates,
        )
        best, fixed, evaluation = incumbent
        partition = best.segments, best.micro_batches
        return candidates, certified(fixed, *partition, best.logs, evaluation)

    _, solutions = jax.lax.scan(iterate, candidates, jnp.arange(len(steps)))
    return jax.tree.map(lambda leaf: leaf[-1], solutions)
