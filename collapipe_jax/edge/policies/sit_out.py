"""Who sits out a round under a policy that ignores the channel.

First those in outage sit out, then those past a deadline. Source: docs/system-model.md,
section 6.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from collapipe_jax.edge.cost.client_round import client_latency_s, client_links, replica_links
from collapipe_jax.edge.cost.decision import (
    ClientDecision,
    Decision,
    decision_allocation,
    fill_idle,
    participates,
)
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import has_gateway
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.cost.link_quality import link_sinrs, received_interference_w
from collapipe_jax.edge.cost.problem import RoundProblem


def within_deadline(decide: Callable[..., Decision]) -> Callable[..., Decision]:
    """A pipeline policy with an option ``deadline``, in reference latencies; 0 is off."""

    def decided(*arguments: Any, deadline: float = 0.0, **options: Any) -> Decision:
        decision, problem = decide(*arguments, **options), arguments[-1]
        if not deadline:
            return decision
        active = participates(decision.segments, blocks=problem.workload.cluster_blocks)
        out = _in_outage(problem, _worst_sinr(problem, decision), active)
        decision = _without_clusters(decision, out)
        latency_s = evaluate(problem, decision).cluster_latency_s
        return _without_clusters(decision, _is_late(problem, latency_s, active & ~out, deadline))

    return decided


def without_absent(problem: RoundProblem, decision: Decision) -> Decision:
    """The decision in which clusters sit out with blocks, or the gateway, on an absent device."""
    absent = problem.compute.memory_bytes <= 0.0
    lacks_device = jnp.any((decision.segments > 0) & absent, axis=1)
    return _without_clusters(decision, lacks_device | ~has_gateway(problem, decision))


def _without_clusters(decision: Decision, out: Bool[Array, " N"]) -> Decision:
    """The decision in which clusters sit out; the others share their part of the D2E band."""
    stays, share = ~out, jnp.where(out, 0.0, decision.d2e_share)
    left = jnp.sum(share)
    scale = jnp.sum(decision.d2e_share) / jnp.where(left > 0, left, 1.0)
    return decision.replace(
        segments=jnp.where(stays[:, None], decision.segments, 0),
        d2d_share=jnp.where(stays[:, None], decision.d2d_share, 0.0),
        d2d_power_w=jnp.where(stays[:, None], decision.d2d_power_w, 0.0),
        d2e_share=share * scale,
        d2e_power_w=jnp.where(stays, decision.d2e_power_w, 0.0),
    )


def in_time(
    problem: RoundProblem,
    build: Callable[[Bool[Array, "N C"]], ClientDecision],
    there: Bool[Array, "N C"],
    deadline: float,
) -> Bool[Array, "N C"]:
    """Clients that take part, of those that are there.

    Args:
      problem: of the round.
      build: decision with equal shares from the clients that take part.
      there: clients that are available.
      deadline: in reference latencies; 0 is off.
    """
    if not deadline:
        return there
    decision = build(there)
    there = there & ~_in_outage(
        problem, _worst_client_sinr(problem, decision), decision.samples > 0
    )
    decision = build(there)
    latency_s = client_latency_s(problem, decision)
    return there & ~_is_late(problem, latency_s, decision.samples > 0, deadline)


def _in_outage(
    problem: RoundProblem, worst_sinr: Float[Array, " N *C"], takes_part: Bool[Array, " N *C"]
) -> Bool[Array, " N *C"]:
    """Those with a link below the outage SINR, but for the best of all."""
    return _over(problem.radio.outage_threshold / worst_sinr, 1.0, takes_part)


def _is_late(
    problem: RoundProblem,
    latency_s: Float[Array, " N *C"],
    takes_part: Bool[Array, " N *C"],
    deadline: float,
) -> Bool[Array, " N *C"]:
    """Those past a deadline in reference latencies, but for the fastest of all."""
    return _over(latency_s / problem.control.reference_latency_s, deadline, takes_part)


def _over(
    load: Float[Array, " N *C"], limit: float, takes_part: Bool[Array, " N *C"]
) -> Bool[Array, " N *C"]:
    """Those over a limit, but for the least.

    Source: docs/system-model.md (25).
    """
    least = jnp.argmin(jnp.where(takes_part, load, jnp.inf))
    others = jnp.arange(load.size).reshape(load.shape) != least
    return takes_part & (load > limit) & others


def _worst_client_sinr(problem: RoundProblem, decision: ClientDecision) -> Float[Array, "N C"]:
    """Least SINR of the links of every client, or of its control unit for it."""
    links = client_links(problem, decision)
    worst = jnp.minimum(links.uplink_sinr, links.downlink_sinr)
    if decision.tier != "hierarchical":
        return worst
    inside = replica_links(problem, decision)
    return jnp.minimum(worst, jnp.minimum(inside.up_sinr, inside.down_sinr))


def _worst_sinr(problem: RoundProblem, decision: Decision) -> Float[Array, " N"]:
    """Least SINR of the messages that a micro-batch needs, of every cluster."""
    with jax.numpy_rank_promotion("allow"):
        fixed = fix_decision(problem, decision)
        allocation = fill_idle(decision_allocation(decision), fixed.chain.used, 1.0)
        sinr = link_sinrs(fixed, allocation, received_interference_w(fixed, allocation))
        hop = jnp.min(jnp.where(fixed.chain.hops, sinr.hop, jnp.inf), axis=(0, 1))
        return jnp.minimum(hop, jnp.minimum(sinr.uplink, fixed.downlink_sinr))
