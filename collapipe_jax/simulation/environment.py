"""A network over rounds: observe a problem, decide, step; without learning.

One realisation is a pure function of its key. ``jax.vmap`` over keys runs thousands.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.control.effective_queues import effective_queues
from collapipe_jax.control.queues import Queues, empty_queues, update_queues
from collapipe_jax.cost.client_decision import ClientDecision
from collapipe_jax.cost.decision import Decision, participates
from collapipe_jax.cost.evaluate import evaluate
from collapipe_jax.cost.feasibility import violations
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round_cost import RoundCost
from collapipe_jax.cost.switching import Switching
from collapipe_jax.network.channel import Radio
from collapipe_jax.network.dynamics import (
    FadingState,
    MobilityState,
    fading_power,
    sample_fading,
    step_fading,
    step_mobility,
)
from collapipe_jax.network.propagation import large_scale_gain
from collapipe_jax.policies.registry import Policy
from collapipe_jax.simulation.system import EdgeSystem, SystemParams, sample_system


class HeldPartition(NamedTuple):
    """Segments ``[N, K]`` and micro-batches ``[N]`` of each cluster's last round."""

    segments: Array
    micro_batches: Array


class SystemState(NamedTuple):
    """Part of a network that changes from round to round.

    Attributes:
      fading: of all links.
      queues: virtual queues of energy and divergence.
      held: partition of the last round, where switching has a cost.
      mobility: positions, velocities and shadowing, where devices walk.
    """

    fading: FadingState
    queues: Queues
    held: HeldPartition | None
    mobility: MobilityState | None


class Environment(NamedTuple):
    """A network before a round.

    Attributes:
      system: what does not change over rounds.
      state: what does.
      key: random key of the round.
    """

    system: EdgeSystem
    state: SystemState
    key: Array


class SystemRound(NamedTuple):
    """Record of a round on the network's side.

    Attributes:
      decision: of the policy.
      cost: of the decision.
      effective_queues: queues before the round, as the policy saw them.
      queues: after the round.
      violations: limits that the decision breaks, a boolean scalar by name.
    """

    decision: Decision | ClientDecision
    cost: RoundCost
    effective_queues: Queues
    queues: Queues
    violations: dict[str, Array]


def reset(key: Array, params: SystemParams) -> Environment:
    """Draw a network, in the state before its first round.

    Args:
      key: random key of the realisation.
      params: distribution of networks.
    """
    system_key, state_key, round_key = _realisation_keys(key)
    system = sample_system(system_key, params)
    return Environment(system, initial_state(state_key, system), round_key)


def observe(environment: Environment) -> RoundProblem:
    """The problem of the round: mean gains times fading, and the available devices.

    Where devices walk, gains follow; budgets, reference latency and divergence target stay
    those of the start.
    """
    system, state, key = environment
    problem, dynamics = system.mean_problem, system.dynamics
    clusters, nodes = problem.radio.d2e_gain.shape
    d2e = fading_power(state.fading.d2e, dynamics.d2e_rician_factor)
    node = fading_power(state.fading.node, dynamics.d2d_rician_factor)
    node = node.reshape(clusters, nodes, clusters, nodes)
    own = jnp.arange(clusters)
    radio = _mean_radio(system, state)
    radio = radio.replace(
        d2e_gain=radio.d2e_gain * d2e,
        d2d_gain=radio.d2d_gain * node[own, :, own, :],
        cross_gain=radio.cross_gain * node,
    )
    memory_bytes = problem.compute.memory_bytes
    available = jax.random.bernoulli(
        _round_keys(key).availability, dynamics.availability, memory_bytes.shape
    )
    problem = problem.replace(
        radio=radio,
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
) -> tuple[Environment, RoundCost]:
    """Carry out a decision.

    Args:
      key: random key of the next round.
      environment: before the round.
      decision: for the problem that :func:`observe` returns.

    Returns:
      The environment before the next round, and the cost of the decision.
    """
    cost = evaluate(observe(environment), decision)
    return environment._replace(state=_next_state(environment, decision, cost), key=key), cost


def simulate(key: Array, params: SystemParams, policy: Policy, rounds: int) -> SystemRound:
    """A whole horizon of one network, drawn from the key.

    Args:
      key: random key of the realisation.
      params: distribution of networks.
      policy: makes the decisions.
      rounds: length of the horizon (fixes shapes).

    Returns:
      Every leaf with a leading axis of rounds.
    """
    return simulate_system(key, draw_system(key, params), policy, rounds)


def simulate_system(key: Array, system: EdgeSystem, policy: Policy, rounds: int) -> SystemRound:
    """A whole horizon of a given network; arguments as of :func:`simulate`."""
    return _scan_rounds(key, system, policy, rounds, lambda environment, record: record)


def simulate_batch(keys: Array, params: SystemParams, policy: Policy, rounds: int) -> SystemRound:
    """Many realisations at once: :func:`simulate` over keys ``[R]``.

    Returns:
      Every leaf with leading axes ``[R, rounds]``.
    """
    return jax.vmap(lambda key: simulate(key, params, policy, rounds))(keys)


def observed_problems(
    key: Array, params: SystemParams, policy: Policy, rounds: int
) -> RoundProblem:
    """Problems of all rounds of :func:`simulate`, with its arguments.

    Returns:
      Every leaf with a leading axis of rounds.
    """
    system = draw_system(key, params)
    return _scan_rounds(key, system, policy, rounds, lambda environment, _: observe(environment))


def draw_system(key: Array, params: SystemParams) -> EdgeSystem:
    """The network of a realisation; arguments as of :func:`reset`."""
    return sample_system(_realisation_keys(key)[0], params)


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


def simulate_round(environment: Environment, policy: Policy) -> tuple[SystemState, SystemRound]:
    """One round of one network.

    Args:
      environment: before the round.
      policy: makes the decision.

    Returns:
      State after the round, and its record.
    """
    problem = observe(environment)
    decision = policy(_round_keys(environment.key).policy, problem)
    cost = evaluate(problem, decision)
    state = _next_state(environment, decision, cost)
    record = SystemRound(
        decision=decision,
        cost=cost,
        effective_queues=Queues(problem.control.energy_queue, problem.control.divergence_queue),
        queues=state.queues,
        violations=violations(problem, decision),
    )
    return state, record


def _scan_rounds(key, system, policy, rounds, output):
    _, state_key, rounds_key = _realisation_keys(key)

    def one(state, round_key):
        environment = Environment(system, state, round_key)
        state, record = simulate_round(environment, policy)
        return state, output(environment, record)

    start = initial_state(state_key, system)
    return jax.lax.scan(one, start, jax.random.split(rounds_key, rounds))[1]


def _next_state(
    environment: Environment, decision: Decision | ClientDecision, cost: RoundCost
) -> SystemState:
    system, state, key = environment
    correlation = system.dynamics.fading_correlation
    return SystemState(
        fading=step_fading(_round_keys(key).fading, state.fading, correlation),
        queues=update_queues(
            state.queues, system.mean_problem.control, cost.energy_j, cost.divergence
        ),
        held=None if state.held is None else _next_held(state.held, decision),
        mobility=_next_mobility(key, system, state),
    )


def _next_held(held: HeldPartition, decision: Decision | ClientDecision) -> HeldPartition:
    """A cluster that does not participate keeps its blocks; clients hold no partition."""
    if isinstance(decision, ClientDecision):
        return held
    active = participates(decision.segments)
    return HeldPartition(
        jnp.where(active[:, None], decision.segments, held.segments),
        jnp.where(active, decision.micro_batches, held.micro_batches),
    )


def _next_mobility(key: Array, system: EdgeSystem, state: SystemState) -> MobilityState | None:
    if system.mobility is None or state.mobility is None:
        return None
    # A fourth key, beside the three of every round.
    return step_mobility(jax.random.fold_in(key, 3), state.mobility, system.mobility)


def _mean_radio(system: EdgeSystem, state: SystemState) -> Radio:
    """The radio before fading, at the present positions."""
    radio, mobility = system.mean_problem.radio, system.mobility
    if mobility is None or state.mobility is None:
        return radio
    position_m, _, shadowing = state.mobility
    gain = large_scale_gain(position_m, shadowing, mobility.topology, mobility.propagation)
    own = jnp.arange(len(position_m))
    return radio.replace(
        d2e_gain=gain.d2e, d2d_gain=gain.node[own, :, own, :], cross_gain=gain.node
    )


def _switching(system: EdgeSystem, state: SystemState) -> Switching | None:
    if system.switching is None or state.held is None:
        return None
    params = system.switching
    return Switching(
        **state.held._asdict(),
        switching_cost=params.switching_cost,
        hysteresis=params.hysteresis,
    )


class _RoundKeys(NamedTuple):
    availability: Array
    policy: Array
    fading: Array


def _round_keys(key: Array) -> _RoundKeys:
    return _RoundKeys(*jax.random.split(key, 3))


def _realisation_keys(key: Array) -> Array:
    """Of the network, its first state and its rounds."""
    return jax.random.split(key, 3)
