"""The network over rounds: state, decision, price and queues, with no learning.

One realisation is a pure function of its key; ``jax.vmap`` over keys makes thousands,
and one ``jax.lax.scan`` runs the rounds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.control.effective_queues import effective_queues
from collapipe_jax.control.queues import Queues, empty_queues, update_queues
from collapipe_jax.cost.client_decision import ClientDecision
from collapipe_jax.cost.decision import Decision, is_present
from collapipe_jax.cost.feasibility import violations
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import price
from collapipe_jax.cost.round_cost import RoundCost
from collapipe_jax.cost.switching import Switching
from collapipe_jax.network.channel import Radio
from collapipe_jax.network.dynamics import (
    FadingState,
    fading_power,
    sample_availability,
    sample_fading,
    step_fading,
)
from collapipe_jax.network.mobility import MobilityState, step_mobility
from collapipe_jax.network.propagation import large_scale_gain
from collapipe_jax.policies.registry import Policy
from collapipe_jax.simulation.system import EdgeSystem, SystemParams, sample_system


class HeldLayout(NamedTuple):
    """Segments ``[N, K]`` and micro-batches ``[N]`` of the last round that a cluster was in."""

    segments: Array
    micro_batches: Array


class SystemState(NamedTuple):
    """What changes from round to round.

    Attributes:
      fading: of all links.
      queues: of energy and divergence.
      held: layout of the last round, where leaving it has a price.
      mobility: positions, velocities and shadowing, where devices walk.
    """

    fading: FadingState
    queues: Queues
    held: HeldLayout | None
    mobility: MobilityState | None


class SystemRound(NamedTuple):
    """What happened in a round on the network's side.

    Attributes:
      decision: of the policy.
      cost: its price.
      shown: queues before the round, as the policy saw them.
      queues: after the round.
      violations: limits that the decision breaks, a boolean scalar by name.
    """

    decision: Decision | ClientDecision
    cost: RoundCost
    shown: Queues
    queues: Queues
    violations: dict[str, Array]


def initial_state(key: Array, system: EdgeSystem) -> SystemState:
    """State before the first round: stationary fading, empty queues, nobody holds a block."""
    clusters, nodes = system.mean_problem.radio.d2e_gain.shape
    fading, queues = sample_fading(key, clusters, nodes), empty_queues(clusters, nodes)
    mobility = None if system.mobility is None else system.mobility.start
    if system.switching is None:
        return SystemState(fading, queues, None, mobility)
    nothing = jnp.zeros((clusters, nodes - 1), jnp.int32)
    held = HeldLayout(nothing, jnp.ones(clusters, jnp.int32))
    return SystemState(fading, queues, held, mobility)


def round_problem(key: Array, system: EdgeSystem, state: SystemState) -> RoundProblem:
    """The problem of a round: mean gains with this round's fading, devices that are there.

    Where devices walk, gains follow; budgets, reference latency and target of divergence stay
    those of the start.

    Args:
      key: random key, for availability.
      system: the network.
      state: its state.
    """
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
    there = sample_availability(key, dynamics.availability, memory_bytes.shape)
    problem = problem.replace(
        radio=radio,
        compute=problem.compute.replace(memory_bytes=jnp.where(there, memory_bytes, 0.0)),
    )
    shown = effective_queues(state.queues, problem, system.queue_params)
    return problem.replace(
        control=problem.control.replace(
            energy_queue=shown.energy, divergence_queue=shown.divergence
        ),
        switching=_switching(system, state),
    )


def _mean_radio(system: EdgeSystem, state: SystemState) -> Radio:
    """The radio before fading: of the network, or of where its devices have walked."""
    radio, mobility = system.mean_problem.radio, system.mobility
    if mobility is None:
        return radio
    position_m, _, shadowing = state.mobility
    gain = large_scale_gain(position_m, shadowing, mobility.topology, mobility.propagation)
    own = jnp.arange(len(position_m))
    return radio.replace(
        d2e_gain=gain.d2e, d2d_gain=gain.node[own, :, own, :], cross_gain=gain.node
    )


def _switching(system: EdgeSystem, state: SystemState) -> Switching | None:
    if system.switching is None:
        return None
    params = system.switching
    return Switching(
        **state.held._asdict(),
        switching_cost=params.switching_cost,
        hysteresis=params.hysteresis,
    )


def simulate_round(
    key: Array, system: EdgeSystem, state: SystemState, policy: Policy
) -> tuple[SystemState, SystemRound]:
    """One round of one network.

    Args:
      key: random key of the round.
      system: the network.
      state: before the round.
      policy: who decides.

    Returns:
      State after the round, and what happened.
    """
    there_key, policy_key, fading_key = _round_keys(key)
    problem = round_problem(there_key, system, state)
    decision = policy(policy_key, problem)
    cost = price(problem, decision)
    queues = update_queues(state.queues, problem.control, cost.energy_j, cost.divergence)
    fading = step_fading(fading_key, state.fading, system.dynamics.fading_correlation)
    held = None if state.held is None else _held_after(state.held, decision)
    shown = Queues(problem.control.energy_queue, problem.control.divergence_queue)
    happened = SystemRound(decision, cost, shown, queues, violations(problem, decision))
    return SystemState(fading, queues, held, _mobility_after(key, system, state)), happened


def _round_keys(key: Array) -> Array:
    """Of a round: for who is there, its policy and its fading."""
    return jax.random.split(key, 3)


def _mobility_after(key: Array, system: EdgeSystem, state: SystemState) -> MobilityState | None:
    """Where nodes are next, from the key of a round."""
    if system.mobility is None:
        return None
    # A fourth key, beside the three that a round splits off in any case.
    return step_mobility(jax.random.fold_in(key, 3), state.mobility, system.mobility)


def _held_after(held: HeldLayout, decision: Decision | ClientDecision) -> HeldLayout:
    """Whoever sits out keeps what it held; clients hold no layout."""
    if isinstance(decision, ClientDecision):
        return held
    present = is_present(decision.segments)
    return HeldLayout(
        jnp.where(present[:, None], decision.segments, held.segments),
        jnp.where(present, decision.micro_batches, held.micro_batches),
    )


def draw_system(key: Array, params: SystemParams) -> EdgeSystem:
    """The network of a realisation.

    Args:
      key: of the realisation.
      params: what the network is drawn from.
    """
    return sample_system(_keys(key)[0], params)


def _keys(key: Array) -> Array:
    """Of a realisation: for its network, its first state and its rounds."""
    return jax.random.split(key, 3)


def simulate(key: Array, params: SystemParams, policy: Policy, rounds: int) -> SystemRound:
    """A whole horizon of one network, drawn from the key.

    Args:
      key: random key of the realisation.
      params: what the network is drawn from.
      policy: who decides.
      rounds: length of the horizon (fixes shapes).

    Returns:
      Every leaf with a leading axis of rounds.
    """
    return simulate_system(key, draw_system(key, params), policy, rounds)


def simulate_system(key: Array, system: EdgeSystem, policy: Policy, rounds: int) -> SystemRound:
    """A whole horizon of a network that is drawn already; arguments as of :func:`simulate`.

    Returns:
      Every leaf with a leading axis of rounds.
    """
    _, state_key, rounds_key = _keys(key)

    def step(state, round_key):
        return simulate_round(round_key, system, state, policy)

    _, history = jax.lax.scan(
        step, initial_state(state_key, system), jax.random.split(rounds_key, rounds)
    )
    return history


def problems_met(key: Array, params: SystemParams, policy: Policy, rounds: int) -> RoundProblem:
    """What a policy was shown in every round of :func:`simulate`, with its arguments.

    Returns:
      Every leaf with a leading axis of rounds.
    """
    system = draw_system(key, params)
    _, state_key, rounds_key = _keys(key)

    def step(state, round_key):
        problem = round_problem(_round_keys(round_key)[0], system, state)
        after, _ = simulate_round(round_key, system, state, policy)
        return after, problem

    start = initial_state(state_key, system)
    return jax.lax.scan(step, start, jax.random.split(rounds_key, rounds))[1]


def simulate_batch(keys: Array, params: SystemParams, policy: Policy, rounds: int) -> SystemRound:
    """Many realisations at once: :func:`simulate` over keys ``[R]``.

    Returns:
      Every leaf with leading axes ``[R, rounds]``.
    """
    return jax.vmap(lambda key: simulate(key, params, policy, rounds))(keys)
