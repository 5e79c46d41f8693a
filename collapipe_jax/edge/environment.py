"""A network over rounds: observe a problem, decide, step; without learning.

One realisation is a pure function of its key. ``jax.vmap`` over keys runs thousands.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Int

from collapipe_jax.core.batch_axis import select
from collapipe_jax.core.errors import InputError, require_kind
from collapipe_jax.edge.cost.decision import ClientDecision, Decision, participates
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import violations
from collapipe_jax.edge.cost.problem import Control, RoundProblem, Switching
from collapipe_jax.edge.cost.round_cost import RoundCost
from collapipe_jax.edge.network.channel import (
    FadingState,
    Radio,
    fading_power,
    sample_fading,
    step_fading,
)
from collapipe_jax.edge.network.mobility import MobilityState, step_mobility
from collapipe_jax.edge.network.propagation import large_scale_gain
from collapipe_jax.edge.policies.registry import Mode, ModePolicy, OfflinePolicy, Policy
from collapipe_jax.edge.policies.sit_out import without_absent
from collapipe_jax.edge.queues import Queues, effective_queues, empty_queues, update_queues
from collapipe_jax.edge.system import EdgeSystem, SystemParams, radio_gains, sample_system


class HeldPartition(NamedTuple):
    """Segments ``[N, K]`` and micro-batches ``[N]`` of each cluster's last round."""

    segments: Array
    micro_batches: Array


class SystemState(NamedTuple):
    """Part of a network that changes from round to round."""

    fading: FadingState  # of all links
    queues: Queues  # virtual queues of energy and divergence
    held: HeldPartition | None  # partition of the last round, where switching has a cost
    mobility: MobilityState | None  # positions, velocities and shadowing, where devices walk


class Environment(NamedTuple):
    """A network before a round.

    Attributes:
      system: what does not change over rounds.
      state: what does: fading, queues, and where devices walk.
      key: of the round; from :func:`reset`, of the whole horizon.

    Example:
      >>> import jax
      >>> import collapipe_jax as cp
      >>> params = cp.system_params(cp.read_config("quickstart", {"network.clusters": 2}))
      >>> environment = jax.jit(cp.reset)(jax.random.key(0), params)
      >>> environment.state.queues.energy.shape  # [N, K + 1]
      (2, 5)
    """

    system: EdgeSystem
    state: SystemState
    key: Array


class SystemRound(NamedTuple):
    """Record of a round on the network's side.

    From :func:`simulate` every array has a leading axis of rounds.

    Attributes:
      decision: of the policy.
      cost: of the decision.
      effective_queues: queues before the round, as the policy saw them, in budgets and targets.
      queues: after the round.
      violations: limits that the decision breaks, a boolean scalar by name.

    Example:
      >>> import collapipe_jax as cp
      >>> cp.SystemRound._fields
      ('decision', 'cost', 'effective_queues', 'queues', 'violations')
    """

    decision: Decision | ClientDecision
    cost: RoundCost
    effective_queues: Queues
    queues: Queues
    violations: dict[str, Array]


def reset(key: Array, params: SystemParams, index: ArrayLike = 0) -> Environment:
    """Draw a network, in the state before its first round, from the key of a realisation.

    Where networks are on file, the ``index`` of the realisation says which one it takes.
    Its key is that of the whole horizon: :func:`simulate` splits it into those of the rounds.

    Args:
      key: of the realisation; positions, shadowing, devices and fading follow from it.
      params: as of :func:`system_params`.

    Example:
      >>> import jax
      >>> import collapipe_jax as cp
      >>> params = cp.system_params(cp.read_config("quickstart", {"network.clusters": 2}))
      >>> environment = jax.jit(cp.reset)(jax.random.key(0), params)
      >>> environment.system.mean_problem.compute.memory_bytes.shape  # [N, K]
      (2, 4)
    """
    require_kind("params", params, SystemParams, "Give what system_params returns")
    system_key, state_key, horizon_key = jax.random.split(key, 3)
    system = sample_system(system_key, params, index)
    return Environment(system, initial_state(state_key, system), horizon_key)


def initial_state(key: Array, system: EdgeSystem) -> SystemState:
    """State before the first round: stationary fading, empty queues, no blocks held."""
    clusters, nodes = system.mean_problem.radio.d2e_gain.shape
    fading, queues = sample_fading(key, clusters, nodes), empty_queues(clusters, nodes)
    mobility = None if system.mobility is None else system.mobility.start
    held = None
    if system.switching is not None:
        none = jnp.zeros((clusters, nodes - 1), jnp.int32)
        held = HeldPartition(none, jnp.ones(clusters, jnp.int32))
    return SystemState(fading, queues, held, mobility)


def observe(environment: Environment) -> RoundProblem:
    """The problem of the round: mean gains times fading, and the available devices.

    Where devices walk, gains follow; budgets, reference latency and divergence target stay
    those of the start.

    Example:
      >>> import jax
      >>> import collapipe_jax as cp
      >>> params = cp.system_params(cp.read_config("quickstart", {"network.clusters": 2}))
      >>> environment = jax.jit(cp.reset)(jax.random.key(0), params)
      >>> problem = jax.jit(cp.observe)(environment)
      >>> problem.radio.d2e_gain.shape  # [N, K + 1]
      (2, 5)
    """
    system, state, key = environment
    availability_key, _, _ = jax.random.split(key, 3)
    problem, dynamics = system.mean_problem, system.dynamics
    memory_bytes = problem.compute.memory_bytes
    available = jax.random.bernoulli(availability_key, dynamics.availability, memory_bytes.shape)
    problem = problem.replace(
        radio=_faded_radio(system, state),
        compute=problem.compute.replace(memory_bytes=jnp.where(available, memory_bytes, 0.0)),
    )
    queues = effective_queues(state.queues, problem, system.queue_params)
    return problem.replace(
        control=problem.control.replace(
            energy_queue=queues.energy, divergence_queue=queues.divergence
        ),
        switching=_switching(system, state),
    )


def step(
    key: Array, environment: Environment, decision: Decision | ClientDecision
) -> tuple[Environment, SystemRound]:
    """Carry out a decision for the problem that :func:`observe` returns.

    Args:
      key: of the next round.
      environment: before the round.
      decision: need not be feasible; the record names the limits that it breaks.

    Returns:
      Environment before the next round, and the record of this one.

    Example:
      >>> import jax
      >>> import collapipe_jax as cp
      >>> params = cp.system_params(cp.read_config("quickstart", {"network.clusters": 2}))
      >>> environment = jax.jit(cp.reset)(jax.random.key(0), params)
      >>> policy = cp.make_policy("static_pipeline")
      >>> @jax.jit
      ... def play(key, environment):
      ...     decision = policy(key, cp.observe(environment))
      ...     return cp.step(key, environment, decision)
      >>> environment, happened = play(jax.random.key(1), environment)
      >>> bool(happened.cost.latency_s > 0)
      True
    """
    state, record = _carry_out(environment, observe(environment), decision)
    return environment._replace(state=state, key=key), record


def simulate_round(environment: Environment, policy: Policy) -> tuple[SystemState, SystemRound]:
    """Observe, decide by a policy, and carry the decision out."""
    _, policy_key, _ = jax.random.split(environment.key, 3)
    problem, policy = observe(environment), settled(policy, environment.system)
    return _carry_out(environment, problem, policy(policy_key, problem))


def settled(policy: Policy, system: EdgeSystem) -> Policy:
    """The policy for all rounds of a system; an offline one decides here, once."""
    if not isinstance(policy, OfflinePolicy):
        return policy
    decision = policy.decide(system.mean_problem)
    return lambda key, problem: without_absent(problem, decision)


def _carry_out(
    environment: Environment, problem: RoundProblem, decision: Decision | ClientDecision
) -> tuple[SystemState, SystemRound]:
    """State after the round of a problem, and the round's record."""
    system, state, key = environment
    _, _, fading_key = jax.random.split(key, 3)
    cost, mobility = evaluate(problem, decision), state.mobility
    if system.mobility is not None and mobility is not None:
        # A fourth key, beside the three of every round.
        mobility = step_mobility(jax.random.fold_in(key, 3), mobility, system.mobility)
    state = SystemState(
        fading=step_fading(fading_key, state.fading, system.dynamics.fading_correlation),
        queues=update_queues(state.queues, problem.control, cost.energy_j, cost.divergence),
        held=_next_held(state.held, decision),
        mobility=mobility,
    )
    record = SystemRound(
        decision=decision,
        cost=cost,
        effective_queues=Queues(problem.control.energy_queue, problem.control.divergence_queue),
        queues=state.queues,
        violations=violations(problem, decision),
    )
    return state, record


def simulate(
    environment: Environment, policy: Policy, rounds: int, cuts: Int[ArrayLike, " C"] | None = None
) -> SystemRound:
    """A whole horizon from a :func:`reset`, every leaf with a leading axis of rounds.

    Rounds have the keys ``jax.random.split(environment.key, rounds)``.

    Args:
      environment: before the first round.
      policy: as of :func:`make_policy`, or any ``policy(key, problem) -> decision``.
      rounds: their number, which fixes shapes.
      cuts: numbers of blocks that the edge server may hold. The horizon has the one with which the
        policy's first round has the least :func:`trial_value`, the first where all break limits.
        None leaves the number to the network.

    Example:
      >>> import jax
      >>> import collapipe_jax as cp
      >>> params = cp.system_params(cp.read_config("quickstart", {"network.clusters": 2}))
      >>> policy = cp.make_policy("static_pipeline")
      >>> run = jax.jit(lambda key: cp.simulate(cp.reset(key, params), policy, rounds=5))
      >>> history = run(jax.random.key(0))
      >>> history.cost.latency_s.shape, history.cost.energy_j.shape
      ((5,), (5, 2, 5))
    """
    require_kind("environment", environment, Environment, "Give what reset returns")
    if not callable(policy):
        problem = "no function of a key and a problem"
        raise InputError("policy", policy, problem, "Give what make_policy returns")
    if not isinstance(rounds, int | np.integer) or rounds < 0:
        remedy = "Give an integer from 1 on, which fixes shapes"
        raise InputError("rounds", rounds, "no number of rounds", remedy)
    if cuts is not None:
        return _scan_cuts_and_rounds(environment, policy, rounds, jnp.asarray(cuts))[1]
    return _scan_rounds(environment, policy, rounds, lambda before, record: record)


def observed_problems(environment: Environment, policy: Policy, rounds: int) -> RoundProblem:
    """Problems of all rounds of :func:`simulate`."""
    return _scan_rounds(environment, policy, rounds, lambda before, record: observe(before))


def _scan_rounds(
    start: Environment,
    policy: Policy,
    rounds: int,
    output: Callable[[Environment, SystemRound], Any],
) -> Any:
    policy = settled(policy, start.system)

    def one(state, key):
        before = Environment(start.system, state, key)
        state, record = simulate_round(before, policy)
        return state, output(before, record)

    return jax.lax.scan(one, start.state, jax.random.split(start.key, rounds))[1]


# What the first round decides for all rounds: the cut between clusters and edge server, and the
# mode. Source: docs/system-model.md, sections 16 and 22.


class TrialValue(NamedTuple):
    """What speaks against a way to run a network, by a trial round: the least comes first."""

    absent: Array  # clusters that sit out, infinite if the decision breaks a limit
    objective: Array  # of the round


def try_cut(system: EdgeSystem, server_blocks: ArrayLike) -> EdgeSystem:
    """The system in whose first round a number of blocks at the edge server is tried.

    All devices are there, since one round's absences say nothing about the others.
    """
    everyone = jnp.ones_like(system.dynamics.availability)
    system = system.with_cut(server_blocks)
    return system.replace(dynamics=system.dynamics.replace(availability=everyone))


def trial_value(
    cost: RoundCost, violations: Mapping[str, Array], budgets: Control | None = None
) -> TrialValue:
    """Value of a trial round with these limits broken.

    With ``budgets`` a round that overdraws one, or that misses the divergence target, breaks a
    limit too. So judge a policy that ignores queues: it would do the same in every round.
    """
    broken = jnp.any(jnp.stack(list(violations.values())))
    if budgets is not None:
        broken |= jnp.any(cost.energy_j > budgets.energy_budget_j)
        broken |= cost.divergence > budgets.divergence_target
    values = TrialValue(jnp.sum(cost.absent), cost.objective)
    return TrialValue(*(jnp.where(broken, jnp.inf, value) for value in values))


def best_trial(values: TrialValue) -> Int[Array, ""]:
    """Which of the values ``[C]`` is the least; the first of equals.

    Source: docs/system-model.md (59).
    """
    return jnp.lexsort((values.objective, values.absent))[0]


def budgets_of_trial(mode: Mode, system: EdgeSystem) -> Control | None:
    """What :func:`trial_value` of a mode takes for ``budgets``."""
    return None if mode.entry.heeds_queues else system.mean_problem.control


def simulate_modes(
    environment: Environment,
    policy: ModePolicy,
    rounds: int,
    cuts: Int[ArrayLike, " C"] | None = None,
) -> list[tuple[TrialValue, SystemRound]]:
    """All rounds in every mode, and the values of their trials, of which the least is taken.

    Args:
      environment: as of :func:`simulate`.
      policy: of ``make_policy("best_mode")``.
      rounds: as of :func:`simulate`.
      cuts: likewise, of modes with pipelines.
    """
    blocks = jnp.atleast_1d(environment.system.mean_problem.workload.server_blocks)

    def one(mode: Mode) -> tuple[TrialValue, SystemRound]:
        own = blocks if cuts is None or mode.entry.by_clients else jnp.asarray(cuts)
        budgets = budgets_of_trial(mode, environment.system)
        return _scan_cuts_and_rounds(environment, mode.policy, rounds, own, budgets)

    return [one(mode) for mode in policy.modes]


def _scan_cuts_and_rounds(
    start: Environment,
    policy: Policy,
    rounds: int,
    cuts: Array,
    budgets: Control | None = None,
) -> tuple[TrialValue, SystemRound]:
    """The least value of the cuts ``[C]``, and all rounds at that cut.

    Cuts are tried in the first turns of the same scan, so the policy is compiled once.
    """

    def one(carry: tuple[SystemState, TrialValue], turn: tuple[Array, Array]) -> Any:
        (state, values), (number, key) = carry, turn
        is_trial = number < len(cuts)
        tried = try_cut(start.system, cuts[number])
        system = select(is_trial, tried, start.system.with_cut(cuts[best_trial(values)]))
        after, record = simulate_round(Environment(system, state, key), policy)
        value = trial_value(record.cost, record.violations, budgets)
        known = jax.tree.map(lambda all_, own: all_.at[number].set(own), values, value)
        return select(is_trial, (state, known), (after, values)), record

    keys = jax.random.split(start.key, rounds)
    # Every cut is tried under the fading of the first round.
    keys = jnp.concatenate([jnp.repeat(keys[:1], len(cuts), axis=0), keys])
    unknown = TrialValue(*2 * (jnp.full(len(cuts), jnp.inf),))
    turns = jnp.arange(len(keys)), keys
    (_, values), records = jax.lax.scan(one, (start.state, unknown), turns)
    least = jax.tree.map(lambda leaf: leaf[best_trial(values)], values)
    return least, jax.tree.map(lambda leaf: leaf[len(cuts) :], records)


def _faded_radio(system: EdgeSystem, state: SystemState) -> Radio:
    """The radio at the present positions, under fading."""
    radio, dynamics, mobility = system.mean_problem.radio, system.dynamics, system.mobility
    d2e_gain, node_gain = radio.d2e_gain, radio.cross_gain
    if mobility is not None and state.mobility is not None:
        position_m, _, shadowing = state.mobility
        gain = large_scale_gain(position_m, shadowing, mobility.topology, mobility.propagation)
        d2e_gain, node_gain = gain.d2e, gain.node
    d2e_fading = fading_power(state.fading.d2e, dynamics.d2e_rician_factor)
    node_fading = fading_power(state.fading.node, dynamics.d2d_rician_factor)
    node_fading = node_fading.reshape(node_gain.shape)
    return radio.replace(**radio_gains(d2e_gain * d2e_fading, node_gain * node_fading))


def _switching(system: EdgeSystem, state: SystemState) -> Switching | None:
    if system.switching is None or state.held is None:
        return None
    return Switching(**state.held._asdict(), **vars(system.switching))


def _next_held(
    held: HeldPartition | None, decision: Decision | ClientDecision
) -> HeldPartition | None:
    """A cluster that does not participate keeps its blocks; clients hold no partition."""
    if held is None or isinstance(decision, ClientDecision):
        return held
    active = participates(decision.segments)
    return HeldPartition(
        jnp.where(active[:, None], decision.segments, held.segments),
        jnp.where(active, decision.micro_batches, held.micro_batches),
    )
