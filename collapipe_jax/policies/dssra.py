"""DSSRA: dynamic segment scheduling and resource allocation, one round of drift plus penalty.

Two steps alternate: shares and powers of some candidate partitions are optimised, all clusters
together, and other partitions are proposed around the best candidate, the incumbent; the last are
its neighbours. It stays a candidate, so the objective never rises. docs/dssra.md derives the steps.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.allocate import Solution, certified
from collapipe_jax.allocation.variables import to_allocation, to_logs
from collapipe_jax.batch_axis import batch_last
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.fixed_partition import fix_partition
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import static_pipelines
from collapipe_jax.partition.candidates import Candidates, join, starting_candidates
from collapipe_jax.partition.fixed_allocation import best_micro_batches, best_segments
from collapipe_jax.partition.hysteresis import apply_hysteresis, previous_partition
from collapipe_jax.partition.joint_search import SearchConfig, optimise, propose_partitions
from collapipe_jax.partition.linked_devices import has_useless_link, linked_devices
from collapipe_jax.trees import pick

DEFAULT_SEARCH = SearchConfig()


class _Retry(NamedTuple):
    """Another search, for networks with links that carry next to nothing."""

    linked: int  # which set of :func:`linked_devices` it starts on
    micro_batches: int  # of the static pipeline there
    queue_scale: float  # of the energy queue, until neighbours are looked at


_RETRIES = _Retry(0, 32, 1.0), _Retry(1, 8, 1.0), _Retry(0, 32, 0.0), _Retry(1, 8, 3.0)
"""A last one starts from the best answer so far and looks at neighbours alone."""
_LEAST_CLUSTER_STEPS = 10
"""Of retries."""


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
        starts, before = _starts(problem, micro_batches), None
        if problem.switching is not None:
            before = previous_partition(problem, pick(starts, 0))
        found = _search(problem, starts, before, config)
        if before is None:
            return found
        return apply_hysteresis(problem, before, found, sum(config.allocation_steps))

    return batch_last(solve)(jax.lax.stop_gradient(problem))


def _starts(problem: RoundProblem, micro_batches: int) -> Decision:
    """The static pipeline, and those of the retries, ``[S, ...]``."""
    linked = linked_devices(problem)[jnp.array([retry.linked for retry in _RETRIES])]
    used = jnp.concatenate([jnp.ones_like(linked[:1]), linked])
    counts = jnp.array([micro_batches, *(retry.micro_batches for retry in _RETRIES)])

    def start(used, count):
        compute = problem.compute.replace(memory_bytes=problem.compute.memory_bytes * used)
        return static_pipelines(problem.replace(compute=compute), count)

    return jax.vmap(start)(used, counts)


def _search(
    problem: RoundProblem, starts: Decision, before: Decision | None, config: SearchConfig
) -> Solution:
    """The best answer from all starts, by one loop that is compiled once.

    Where all links are of use, only the first counts, and a batch without others skips them.
    """
    again = has_useless_link(problem)
    queue_scales = jnp.array([1.0, *(retry.queue_scale for retry in _RETRIES), 1.0])
    last = len(_RETRIES) + 1

    @jax.jit  # traced once, for its shapes and for the loop
    def solve(number, best):
        start = pick(starts, jnp.minimum(number, last - 1))
        start = jax.tree.map(lambda own, new: jnp.where(number < last, own, new), start, best)
        other = _best_partition(problem, start) if before is None else before
        candidates = starting_candidates(problem, start, config.candidates - 1)
        candidates = join(candidates, starting_candidates(problem, other, 1))
        more = jnp.maximum(config.cluster_steps, _LEAST_CLUSTER_STEPS)
        effort = config._replace(cluster_steps=jnp.where(number == 0, config.cluster_steps, more))
        return _alternate(problem, candidates, effort, queue_scales[number], number == last)

    def goes_on(state):
        number, _ = state
        return (number < 1) | ((number <= last) & jnp.any(again))

    def search(state):
        number, best = state
        found = solve(number, best.decision)
        better = (number == 0) | (again & (found.objective < best.objective))
        return number + 1, jax.tree.map(lambda new, old: jnp.where(better, new, old), found, best)

    first = jnp.zeros((), int)
    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(solve, first, pick(starts, 0)))
    return jax.lax.while_loop(goes_on, search, (first, nothing))[1]


def _best_partition(problem: RoundProblem, start: Decision) -> Decision:
    """The start with its best segments, then micro-batches, for its own shares and powers."""
    fixed = fix_partition(problem, start.segments, start.micro_batches)
    allocation = to_allocation(fixed, to_logs(fixed, start))
    segments = best_segments(problem, start.segments, start.micro_batches, allocation)
    count = best_micro_batches(problem, segments, start.micro_batches, allocation)
    return start.replace(segments=segments, micro_batches=count)


def _alternate(
    problem: RoundProblem,
    candidates: Candidates,
    config: SearchConfig,
    queue_scale: Array,
    only_nearby: Array,
) -> Solution:
    """Optimise and propose in turn, by one loop that is compiled once.

    The last proposals are neighbours; if ``only_nearby``, all are. Before them energy queues
    are scaled.
    """
    steps = jnp.array(config.allocation_steps)

    def iterate(candidates, number):
        nearby = only_nearby | (number + 2 >= len(steps))
        scale = jnp.where(nearby, 1.0, queue_scale)
        scaled = problem.with_energy_queue(scale * problem.control.energy_queue)
        incumbent = optimise(scaled, candidates, steps[number])
        candidates = jax.lax.cond(
            number + 1 < len(steps),
            lambda: propose_partitions(scaled, incumbent, config, nearby=nearby),
            lambda: candidates,
        )
        best, fixed, evaluation = incumbent
        partition = best.segments, best.micro_batches
        return candidates, certified(fixed, *partition, best.logs, evaluation)

    _, solutions = jax.lax.scan(iterate, candidates, jnp.arange(len(steps)))
    return jax.tree.map(lambda leaf: leaf[-1], solutions)
