"""DSSRA: dynamic segment scheduling and resource allocation, one round of drift plus penalty.

Two steps alternate: shares and powers of some candidate partitions are optimised, all clusters
together, and other partitions are proposed around the best candidate, the incumbent; in the end
its neighbours. It stays a candidate, so the objective does not rise after the first turn, which
counts energy differently. The best of several such searches is kept, or the static pipeline if
none is better. docs/dssra.md derives all.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from collapipe_jax.core.batch_axis import batch_last, improve_in_chunks, in_chunks, select
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.chain import (
    Chain,
    add_at_gateway,
    gain_to_next,
    gateway_gains,
    gateway_nodes,
)
from collapipe_jax.edge.cost.computing import set_capacity
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import (
    static_pipeline,
    static_pipelines,
    with_equal_allocation,
)
from collapipe_jax.edge.network.channel import d2d_sinr
from collapipe_jax.edge.solver.active_sets import candidate_sets
from collapipe_jax.edge.solver.allocate import (
    Solution,
    allocate_batch,
    certified,
    solution_like,
)
from collapipe_jax.edge.solver.candidates import (
    Candidates,
    Start,
    at_falling_powers,
    candidate_of,
    exact_objective,
    join,
    repeat,
    starting_candidates,
    with_candidate_axis,
)
from collapipe_jax.edge.solver.gateways import control_unit_routes, likeliest_routes
from collapipe_jax.edge.solver.joint_search import SearchConfig, optimise, propose_partitions

DEFAULT_SEARCH = SearchConfig()


class _Search(NamedTuple):
    """A search from static pipelines, or one look around the best answer."""

    linked: int | None  # which set of :func:`linked_devices` it starts on; all devices if None
    micro_batches: int | None  # of the static pipeline there; as given if None
    queue_scales: tuple[float, float] = (1.0, 1.0)
    """Of the energy queue, in the first turn and from then until the last proposals."""
    cluster_steps: int = 10  # at least
    nearby: bool = True  # whether the last proposals are neighbours; else any, as the first are


_STARTS = (
    # Low powers at first: under strong interference the clusters' partitions depend on each other.
    _Search(None, None, queue_scales=(5.0, 1.0), cluster_steps=0),
    _Search(0, 32, queue_scales=(5.0, 1.0)),
    _Search(0, 8, queue_scales=(0.0, 1.0)),
    _Search(1, 8, queue_scales=(5.0, 1.0)),
    _Search(0, 8, queue_scales=(1.0, 1.0)),
)
MOST_STARTS = len(_STARTS)
_LOOKS = _Search(None, None, nearby=False), _Search(None, None, cluster_steps=50)
_SEARCHES = (*_STARTS, *_LOOKS)
_FIRST_LOOK = MOST_STARTS
_DEVICES = 20
"""Devices times starts, at most: smaller networks get more starts in a similar time."""
_LAST_STEPS = 16
"""Gradient steps on each of the last proposals of a search, at least."""


class _Best(NamedTuple):
    """The best decision so far."""

    candidate: Candidates  # without the axis of candidates
    objective: Array  # ``[R]``
    moved: Array  # whether the last proposals changed its partition, ``[R]``


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

    Raises:
      InputError: if ``config.starts`` is not from 1 to :data:`MOST_STARTS`.
    """
    if not 1 <= config.starts <= MOST_STARTS:
        raise InputError("starts", config.starts, "no such number", f"Take 1 to {MOST_STARTS}")
    problem = jax.lax.stop_gradient(problem)
    first = static_pipeline(problem, micro_batches)
    return _improve(problem, first, micro_batches, config)


def dssra_wide(
    problem: RoundProblem, micro_batches: int = 8, config: SearchConfig = DEFAULT_SEARCH
) -> Solution:
    """:func:`dssra` that decides gateways too, and sends parameters down by broadcast.

    It begins with the answer of :func:`dssra`, in which control units are the gateways and no
    parameters come by broadcast. Then it searches from the likeliest gateways. Unless hysteresis
    keeps the partition before, its objective is never above the one of :func:`dssra`.
    Source: docs/system-model.md, section 18.

    Args:
      problem: as of :func:`dssra`.
      micro_batches: likewise.
      config: likewise, once for each of both searches.

    Returns:
      A solution as of :func:`dssra`, whose decision has routes.

    Raises:
      InputError: as :func:`dssra`, or if moments that move have a cost.
    """
    problem = jax.lax.stop_gradient(problem)
    first = static_pipeline(problem, micro_batches).replace(routes=control_unit_routes(problem))
    routed = problem.replace(routes=likeliest_routes(problem))
    return _improve(routed, first, micro_batches, config._replace(gateways=True))


def _improve(
    problem: RoundProblem, first: Decision, micro_batches: int, config: SearchConfig
) -> Solution:
    """The best of a first decision and all searches."""

    def solve(problem, first):
        answers = _search(problem, first, micro_batches, config)
        return in_chunks(finish, times=config.candidates // len(answers))(problem, answers)

    def finish(problem, answers):
        answers = functools.reduce(join, map(with_candidate_axis, answers))
        best, fixed, evaluation = optimise(problem, answers, config.allocation_steps[-1])
        found = certified(fixed, best.segments, best.micro_batches, best.logs, evaluation)
        if problem.switching is None:
            return found
        problem = problem.replace(routes=found.decision.routes)
        before = _previous_partition(problem, micro_batches)
        return _apply_hysteresis(problem, before, found, sum(config.allocation_steps))

    return batch_last(solve, whole=True, like=solution_like)(problem, first)


def _search(
    problem: RoundProblem, first: Decision, micro_batches: int, config: SearchConfig
) -> list[Candidates]:
    """The best of a first decision and all searches, by one loop that is compiled once.

    Small networks, and those with links that carry next to nothing, start several times, then look
    around the best answer, at all active sets and at neighbours. Others start once, and look at all
    sets if a neighbour won.

    Returns:
      The best answer. Where gateways are decided all searches come twice, first without, and there
      are two: the best with control units as gateways, and the best of all.
    """
    starts = in_chunks(functools.partial(number_of_starts, least=config.starts))(problem)
    laps = 1 if config.gateways is None else 2

    def search(state):
        number, best, published = state
        lap, place = number // len(_SEARCHES), number % len(_SEARCHES)

        def improve(problem, best):
            if config.gateways is None:
                return _search_once(problem, place, best, micro_batches, config)
            # Numbers of control units, and no broadcast, are zeros.
            routes = select(lap > 0, problem.routes, jax.tree.map(jnp.zeros_like, problem.routes))
            problem, own = problem.replace(routes=routes), config._replace(gateways=lap > 0)
            return _search_once(problem, place, best, micro_batches, own)

        looks_again = (starts > 1) | ((place == _FIRST_LOOK) & best.moved)
        needed = jnp.where(place < _FIRST_LOOK, place < starts, looks_again)
        best = improve_in_chunks(improve, needed, problem, best)
        return number + 1, best, select(lap == 0, best.candidate, published)

    def start(problem, first):
        fixed = fix_decision(problem, first)
        candidate = candidate_of(fixed, first)
        objective = exact_objective(fixed, candidate.logs)
        return _Best(candidate, objective, moved=jnp.zeros(objective.shape, bool))

    best = in_chunks(start)(problem, first)
    state = jnp.zeros((), int), best, best.candidate
    count = laps * len(_SEARCHES)
    _, best, published = jax.lax.while_loop(lambda state: state[0] < count, search, state)
    return [published, best.candidate][-laps:]


def number_of_starts(problem: RoundProblem, least: int = 1) -> Array:
    """How many static pipelines to start from; with batch axis ``[R]``."""
    present = jnp.sum(problem.compute.memory_bytes > 0, axis=(0, 1))
    starts = jnp.clip(_DEVICES // jnp.maximum(present, 1), least, MOST_STARTS)
    return jnp.where(has_useless_link(problem), MOST_STARTS, starts)


def _search_once(
    problem: RoundProblem, number: Array, best: _Best, micro_batches: int, config: SearchConfig
) -> _Best:
    """The answer of one of the searches, if it is better."""
    column = {name: jnp.array(_column(name, micro_batches))[number] for name in _Search._fields}
    least = jnp.maximum(config.cluster_steps, column["cluster_steps"])
    steps = jnp.array(config.allocation_steps[:-1])
    looks, last = number >= _FIRST_LOOK, len(steps) - 1
    # A later start is compared with answers that are optimised already.
    steps = steps.at[last].multiply(jnp.where((number > 0) & ~looks, 2, 1))
    queue = problem.control.energy_queue

    def start():
        sets = linked_devices(problem)
        used = (column["linked"] < 0) | sets[column["linked"]]
        static = _static_pipeline(problem, used, column["micro_batches"])
        if problem.switching is None:
            other = _static_pipeline(problem, sets[1], 8)
        else:
            other = _previous_partition(problem, micro_batches)
        starts = *at_falling_powers(static, config.candidates - 1), Start(other)
        return starting_candidates(problem, starts)

    def take_turn(turn, state):
        candidates, before = state
        is_last = turn >= last - 1
        nearby = is_last & column["nearby"]
        scale = column["queue_scales"][jnp.minimum(turn, 1)]
        scaled = problem.with_energy_queue(jnp.where(is_last, 1.0, scale) * queue)
        cluster_steps = jnp.maximum(least, jnp.where(is_last, _LAST_STEPS, 0))
        turn_config = config._replace(cluster_steps=cluster_steps)
        # A look starts from what is optimised already.
        found = optimise(scaled, candidates, jnp.where(looks & (turn < last), 0, steps[turn]))
        candidates = jax.lax.cond(
            turn < last,
            lambda: propose_partitions(scaled, found, turn_config, nearby=nearby),
            lambda: candidates,
        )
        moved = ~_same_partition(found.candidate, before.candidate)
        return candidates, _Best(found.candidate, found.evaluation.objective, moved)

    def stay():
        candidates = repeat(best.candidate, config.candidates)
        if config.gateways is None:
            return candidates
        # The best answer may be the published one, without broadcast.
        assert candidates.routes is not None
        broadcast = candidates.routes.broadcast
        broadcast = broadcast.at[1:].set(jnp.where(config.gateways, 1, broadcast[1:]))
        return candidates._replace(routes=candidates.routes.replace(broadcast=broadcast))

    candidates = jax.lax.cond(looks, stay, start)
    first = jnp.where(looks, last - 1, 0)
    _, found = jax.lax.fori_loop(first, last + 1, take_turn, (candidates, best))
    return select(found.objective < best.objective, found, best)


def _column(name: str, micro_batches: int) -> list:
    """One field of all searches, as numbers."""
    default = {"linked": -1, "micro_batches": micro_batches}
    values = (getattr(search, name) for search in _SEARCHES)
    return [default[name] if value is None else value for value in values]


def _static_pipeline(problem: RoundProblem, used: Array, micro_batches: Array | int) -> Decision:
    """That on some of the devices, ``[N, K, R]``."""
    compute = problem.compute.replace(memory_bytes=problem.compute.memory_bytes * used)
    return static_pipelines(problem.replace(compute=compute), micro_batches)


def _previous_partition(problem: RoundProblem, micro_batches: int) -> Decision:
    return previous_partition(problem, static_pipelines(problem, micro_batches))


def _same_partition(one: Candidates, other: Candidates) -> Array:
    """Whether all clusters have the same segments, micro-batches and gateways, ``[R]``."""
    segments = jnp.all(one.segments == other.segments, axis=(0, 1))
    same = segments & jnp.all(one.micro_batches == other.micro_batches, axis=0)
    if one.routes is not None and other.routes is not None:
        same &= jnp.all(one.routes.gateway == other.routes.gateway, axis=0)
    return same


LEAST_USEFUL_SNR = 1e-5
"""Some hundreds of bits a second over 20 MHz."""


def has_useless_link(problem: RoundProblem) -> Bool[Array, " R"]:
    """Whether a link between two nodes of a cluster carries next to nothing at full power."""
    memory_bytes = problem.by_node.memory_bytes
    present = jnp.concatenate([jnp.ones_like(memory_bytes[:1], bool), memory_bytes > 0])
    others = ~jnp.eye(len(present), dtype=bool)[:, :, None, None]
    pairs = present[:, None] & present[None] & others
    return jnp.any(pairs & (_full_snr(problem) < LEAST_USEFUL_SNR), axis=(0, 1, 2))


def linked_devices(problem: RoundProblem) -> Bool[Array, "2 N K R"]:
    """Two sets of devices of every cluster with room for the encoder; all where none has.

    The first has as many devices as messages can reach. The second has the best weakest link.
    """
    wide, snr = with_candidate_axis(problem), _full_snr(problem)
    members = candidate_sets(-jnp.minimum(snr[0, 1:], snr[1:, 0])[None])  # [K, N, A, R]
    weakest = _weakest_link(snr, members, gateway_nodes(problem.routes, len(snr)))
    most_micro_batches = jnp.max(wide.workload.micro_batch_choices, axis=0)
    capacity = set_capacity(
        wide.workload, wide.by_node.memory_bytes, most_micro_batches, members, axis=0
    )
    has_room = jnp.sum(jnp.where(members, capacity, 0), axis=0) >= wide.workload.cluster_blocks
    size = jnp.where(weakest >= LEAST_USEFUL_SNR, jnp.sum(members, axis=0), 0)
    scores = jnp.stack([size + weakest / (1.0 + weakest), weakest])
    best = jnp.argmax(jnp.where(has_room, scores, -1.0), axis=2)[:, None, :, None]
    chosen = jnp.take_along_axis(members[None], best, axis=3)[:, :, :, 0]
    return jnp.swapaxes(chosen | ~jnp.any(has_room, axis=1), 1, 2)


def _full_snr(problem: RoundProblem) -> Float[Array, "J J N R"]:
    """SNR of every pair of a cluster, sender first, at full power on the whole band."""
    nodes = problem.by_node
    power_w = nodes.d2d_power_max_w[:, None]
    return d2d_sinr(problem.radio, power_w, nodes.d2d_gain, jnp.ones(()), jnp.zeros(()))


def _weakest_link(
    snr: Float[Array, "J J N R"],
    members: Bool[Array, "K N A R"],
    gateway: Bool[Array, "J N R"] | None,
) -> Float[Array, "N A R"]:
    """Least SNR of the messages of every set: along the chain, and of its blocks that move."""
    members = jnp.concatenate([jnp.ones_like(members[:1]), members])
    wide, gateway = with_candidate_axis((snr, gateway))
    chain = Chain(members, gateway)
    hops = gain_to_next(wide, chain), gain_to_next(jnp.swapaxes(wide, 0, 1), chain)
    moves = jnp.minimum(*gateway_gains(wide, gateway))
    moves = add_at_gateway(moves, jnp.asarray(jnp.inf), gateway)  # nothing moves to itself
    least = jnp.minimum(jnp.minimum(*hops), moves)
    return jnp.min(jnp.where(members, least, jnp.inf), axis=0)


def previous_partition(problem: RoundProblem, fallback: Decision) -> Decision:
    """The partition of the round before with equal shares, where possible, else a fallback."""

    def one(problem, fallback):
        switching = problem.switching
        before = with_equal_allocation(problem, switching.segments, switching.micro_batches)
        possible = is_feasible(problem, before)
        return select(possible, before, fallback)

    return jax.vmap(one, in_axes=-1, out_axes=-1)(problem, fallback)


def _apply_hysteresis(
    problem: RoundProblem, before: Decision, found: Solution, steps: int
) -> Solution:
    """A solution where it pays for the change, else the partition before, reallocated."""
    assert problem.switching is not None
    stays = allocate_batch(problem, before, steps)
    switches = found.objective < (1.0 - problem.switching.hysteresis) * stays.objective
    return select(switches, found, stays)
