"""The continuous part of (P2) as a smooth program, for solvers that know nothing of it.

Segments and micro-batches are fixed. The variables are logarithms of shares and powers,
and one more for every maximum or minimum in the price, so that no kink is left: the
efficiency of each message (below its SINR's and below the ceiling), the longest stage of
each flow, and the latency of the round. In these variables the program is convex
(docs/system-model.md, section 5). Everything else is the package's own cost.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from collapipe_jax.cost.decision import Decision, Hops, active_nodes, participates
from collapipe_jax.cost.divergence import cluster_divergence, round_divergence
from collapipe_jax.cost.energy import node_energy_j
from collapipe_jax.cost.latency import (
    StageTimes,
    backward_flow_s,
    forward_flow_s,
    latency_parts,
    stage_times,
)
from collapipe_jax.cost.links import Links, message_links, micro_batch_hazard
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round_cost import drift_plus_penalty
from experiments.benchmarks.solver.smooth_variables import (
    Messages,
    Variables,
    band_hz,
    log_where,
    point_of,
    rates_of,
    unravel,
    with_rates,
)


class Constraints(NamedTuple):
    """Left sides of constraints of the form ``g >= 0``.

    Attributes:
      d2d_band, d2e_band: what is left of a band, ``[N]`` and scalar.
      efficiency: log of what the SINR allows over what is claimed.
      longest_s: log of the longest stage over each message, the hops and then the D2E
        message, ``[N, K + 2]`` each.
      latency_s: log of the round's latency over each cluster's, ``[N]``.
      energy_j: log of each node's budget over what it spends, ``[N, K + 1]``; a cap, where
        one is asked for.
    """

    d2d_band: Array
    d2e_band: Array
    efficiency: Messages
    longest_s: Hops
    latency_s: Array
    energy_j: Array


class Program(NamedTuple):
    """Objective and constraints at a point.

    Attributes:
      objective: log of (P2).
      constraints: all of them, flat.
    """

    objective: Array
    constraints: Array


def program(problem: RoundProblem, decision: Decision, flat: Array, smooth: bool = True) -> Program:
    """Objective and constraints.

    Args:
      problem: one round of one network.
      decision: its segments and micro-batches are used.
      flat: :class:`Variables`, raveled.
      smooth: whether efficiencies are variables; False takes those of the links, with a
        kink where one reaches the ceiling, for a third of the size.
    """
    variables = unravel(problem)(flat)
    point = point_of(problem, decision, variables)
    links = message_links(problem, point)
    if smooth:
        links = _claimed_links(problem, point, links, variables.efficiency)
    stages = stage_times(problem, point, links)
    parts = latency_parts(problem, point, links, stages)
    pauses = point.micro_batches - 1
    iteration_s = sum(
        jnp.sum(flow, axis=1) + pauses * jnp.exp(longest_s)
        for flow, longest_s in zip(
            (forward_flow_s(stages), backward_flow_s(stages)), variables.longest_s, strict=True
        )
    )
    parts = parts._replace(iterations_s=problem.workload.local_steps * iteration_s)
    energy_j = node_energy_j(problem, point, links, parts)
    active = active_nodes(point.segments)
    constraints = Constraints(
        d2d_band=1.0 - jnp.sum(point.d2d_share, axis=1),
        d2e_band=1.0 - jnp.sum(point.d2e_share),
        efficiency=_efficiency_left(problem, point, links),
        longest_s=_longest_left(point, stages, variables.longest_s),
        latency_s=variables.latency_s - log_where(participates(point.segments), sum(parts)),
        energy_j=log_where(active, problem.control.energy_budget_j) - log_where(active, energy_j),
    )
    objective = _objective(problem, point, links, energy_j, jnp.exp(variables.latency_s))
    # Its logarithm is convex too, and has slopes of one size on any link.
    return Program(jnp.log(objective), ravel_pytree(constraints)[0])


@partial(jax.jit, static_argnames="smooth")
def evaluate(
    problem: RoundProblem, decision: Decision, flat: Array, smooth: bool = True
) -> tuple[Program, Program]:
    """Derivatives by every variable, and values, of :func:`program`."""

    def values(flat):
        out = program(problem, decision, flat, smooth)
        return out, out

    return jax.jacrev(values, has_aux=True)(flat)


@partial(jax.jit, static_argnames="smooth")
def hessian(
    problem: RoundProblem,
    decision: Decision,
    flat: Array,
    multipliers: Array,
    smooth: bool = True,
) -> Array:
    """Second derivatives of objective and constraints, weighed by ``multipliers``.

    Args:
      problem, decision, flat, smooth: as in :func:`program`.
      multipliers: of the objective first, then of all constraints.
    """

    def value(flat):
        out = program(problem, decision, flat, smooth)
        return multipliers[0] * out.objective + multipliers[1:] @ out.constraints

    return jax.hessian(value)(flat)


def used_entries(
    decision: Decision, smooth: bool = True, capped: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the variables and of the constraints that a layout uses, flat.

    Args:
      decision: the layout.
      smooth: as in :func:`program`.
      capped: whether nodes' budgets are caps.
    """
    active = active_nodes(decision.segments)
    devices, present = active[:, 1:], active[:, 0]
    waits = present & (decision.micro_batches > 1)
    messages = Messages(active, active, devices, devices, present)
    messages = jax.tree.map(lambda mask: mask & smooth, messages)
    variables = Variables(
        active, active, present, present, messages, Hops(waits, waits), jnp.array(True)
    )
    stages = waits[:, None] & jnp.concatenate([active, present[:, None]], axis=1)
    constraints = Constraints(
        present, jnp.array(True), messages, Hops(stages, stages), present, active & capped
    )
    return np.asarray(ravel_pytree(variables)[0]), np.asarray(ravel_pytree(constraints)[0])


def _claimed_links(
    problem: RoundProblem, point: Decision, links: Links, efficiency: Messages
) -> Links:
    """Links whose rates are the variables' claim."""
    bands = band_hz(problem, point)
    rates = Messages(*(band * jnp.exp(log) for band, log in zip(bands, efficiency, strict=True)))
    return with_rates(links, rates)


def _efficiency_left(problem: RoundProblem, point: Decision, claimed: Links) -> Messages:
    """Log of the rates that the SINRs allow, the ceiling aside, over the claimed ones."""
    radio = problem.radio.replace(max_spectral_efficiency=jnp.inf)
    allowed = rates_of(message_links(problem.replace(radio=radio), point))
    active = active_nodes(point.segments)
    used = Messages(active, active, active[:, 1:], active[:, 1:], active[:, 0])
    return Messages(
        *(
            log_where(mask, rate) - log_where(mask, claim)
            for mask, rate, claim in zip(used, allowed, rates_of(claimed), strict=True)
        )
    )


def _longest_left(point: Decision, stages: StageTimes, longest_s: Hops) -> Hops:
    """Log of the longest stages over each of the messages."""
    present = participates(point.segments)[:, None]
    used = jnp.concatenate([active_nodes(point.segments), present], axis=1)
    messages = (
        jnp.concatenate([stages.hop_s.forward, stages.uplink_s[:, None]], axis=1),
        jnp.concatenate([stages.hop_s.backward, stages.downlink_s[:, None]], axis=1),
    )
    return Hops(
        *(
            longest[:, None] - log_where(used, message)
            for longest, message in zip(longest_s, messages, strict=True)
        )
    )


def _objective(problem: RoundProblem, point: Decision, links: Links, energy_j, latency_s: Array):
    """(P2) with the latency that is claimed."""
    hazard = micro_batch_hazard(problem, point, links)
    batch = problem.workload.batch
    cluster = cluster_divergence(hazard, point.micro_batches, batch, problem.learning)
    divergence = round_divergence(cluster, participates(point.segments), problem.learning)
    return drift_plus_penalty(problem, latency_s, energy_j, divergence)
