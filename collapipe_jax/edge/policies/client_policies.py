"""Policies of data-parallel learning: every client trains a copy of the model.

All send at full power and ignore energy; those of whole models ignore memory too.
``shares`` of the D2E band are ``equal`` or ``min_max``; with ``broadcast`` parameters come down in
one transmission; a ``deadline`` above 0 lets clients sit out. Source: docs/system-model.md,
section 6.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.client_round import (
    client_divergence,
    client_latency_s,
    client_links,
    model_ends,
    replica_links,
    sends,
)
from collapipe_jax.edge.cost.computing import block_capacity
from collapipe_jax.edge.cost.decision import (
    ClientDecision,
    Decision,
    decision_allocation,
    decision_partition,
    fill_idle,
    participates,
)
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.fixed_partition import fix_partition
from collapipe_jax.edge.cost.link_quality import link_sinrs, received_interference_w
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import sinr_at_hazard, transport_block_hazard

# Who sits out a round under a policy that ignores the channel.
#
# First those in outage sit out, then those past a deadline. Source: docs/system-model.md,
# section 6.


def within_deadline(decide: Callable[..., Decision]) -> Callable[..., Decision]:
    """A pipeline policy with an option ``deadline``, in reference latencies; 0 is off."""

    def decided(*arguments: Any, deadline: float = 0.0, **options: Any) -> Decision:
        decision, problem = decide(*arguments, **options), arguments[-1]
        if not deadline:
            return decision
        active = participates(decision.segments)
        out = _in_outage(problem, _worst_sinr(problem, decision), active)
        decision = _without_clusters(decision, out)
        latency_s = evaluate(problem, decision).cluster_latency_s
        return _without_clusters(decision, _is_late(problem, latency_s, active & ~out, deadline))

    return decided


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


def _available_in_time(
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
      deadline: in reference latencies.
    """
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
        fixed = fix_partition(problem, *decision_partition(decision))
        allocation = fill_idle(decision_allocation(decision), fixed.active, 1.0)
        sinr = link_sinrs(fixed, allocation, received_interference_w(fixed, allocation))
        hop = jnp.min(jnp.where(fixed.active, sinr.hop, jnp.inf), axis=(0, 1))
        return jnp.minimum(hop, jnp.minimum(sinr.uplink, fixed.downlink_sinr))


SHARES = ("min_max", "equal")
"""Rules for shares of the D2E band."""
_CUTS = ("half", "best")
"""Rules for the cut of a split model."""

_Build = Callable[[Bool[Array, "N C"]], ClientDecision]


def vanilla_fl(problem: RoundProblem, **options: Any) -> ClientDecision:
    """Federated averaging (McMahan et al. 1602.05629): every device trains the whole model.

    The decision may exceed memory and budgets. Options are those of :func:`_whole_models`.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    return _whole_models(problem, "devices", **options)


def control_unit_fl(problem: RoundProblem, **options: Any) -> ClientDecision:
    """Federated averaging over control units: devices do nothing.

    The decision may exceed memory and budgets. Options are those of :func:`_whole_models`.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    return _whole_models(problem, "control_units", **options)


def hierarchical_fl(problem: RoundProblem, **options: Any) -> ClientDecision:
    """Hierarchical federated averaging (HierFAVG, Liu et al. 1905.06641).

    Devices train whole models, and their control unit uploads the mean. The decision may
    exceed memory and budgets. Options are those of :func:`_whole_models`.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    return _whole_models(problem, "hierarchical", **options)


def _whole_models(
    problem: RoundProblem,
    tier: str,
    shares: str = "min_max",
    accumulation: int = 1,
    broadcast: bool = True,
    deadline: float = 0.0,
) -> ClientDecision:
    """Clients with whole models in a tier of :class:`.ClientDecision`."""
    model_ends(problem.workload)
    fixed = {"whole_model": True, "tier": tier, "broadcast": broadcast}
    fixed |= {"accumulation": jnp.int32(accumulation)}

    def build(available: Bool[Array, "N C"]) -> ClientDecision:
        samples = split_batch(problem.workload.batch, available)
        blocks = jnp.int32(problem.workload.blocks)
        return _at_full_power(problem, samples=samples, client_blocks=blocks, **fixed)

    there = problem.compute.memory_bytes > 0
    if tier == "control_units":
        there = jnp.ones_like(there[:, :1])
    return _decide(problem, build, there, shares, deadline)


def splitfed(
    problem: RoundProblem,
    cut: str = "half",
    shares: str = "min_max",
    broadcast: bool = True,
    deadline: float = 0.0,
) -> ClientDecision:
    """Split federated learning (Thapa et al. 2004.12088): the first blocks on every device.

    They are at most as many as fit the smallest participating device. Where none fits,
    clients train the embedding alone. The decision may exceed budgets, and memory where not
    even the embedding fits.

    Args:
      problem: of the round.
      cut: blocks on a device; ``half`` of them; or ``best``, with the least latency.
      shares: ``min_max`` or ``equal``.
      broadcast: send parameters to all clients in one transmission.
      deadline: of a client, in reference latencies; 0 is off.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder, or there is no
        such cut.
    """
    work, there = problem.workload, problem.compute.memory_bytes > 0

    def build_at(cut: Array, available: Bool[Array, "N K"]) -> ClientDecision:
        samples = split_batch(work.batch, available)
        blocks = jnp.minimum(cut, _client_capacity(problem, samples))
        return _at_full_power(
            problem, samples=samples, client_blocks=blocks, whole_model=False, broadcast=broadcast
        )

    def latency_s(cut: Array) -> Array:
        decision = _decide(problem, lambda there: build_at(cut, there), there, shares, 0.0)
        return jnp.max(client_latency_s(problem, decision))

    wanted = find_cut(cut, work.blocks)
    if wanted == "best":
        # A cut above what memory holds is that one again, and the first of equals is taken.
        wanted = jnp.argmin(jax.vmap(latency_s)(jnp.arange(work.blocks + 1)))
    blocks = jnp.int32(wanted)
    return _decide(problem, lambda there: build_at(blocks, there), there, shares, deadline)


def find_cut(cut: str, blocks: int) -> int | str:
    """Blocks on a client, or ``best``.

    Raises:
      InputError: if it is neither a rule nor a number up to the blocks.
    """
    if cut == "best":
        return cut
    if cut == "half":
        return blocks // 2
    if cut in map(str, range(blocks + 1)):
        return int(cut)
    remedy = f"Give a number from 0 to {blocks}, or one of: {', '.join(_CUTS)}"
    raise InputError("policy.cut", cut, "no such cut", remedy)


def _client_capacity(problem: RoundProblem, samples: Int[Array, "N K"]) -> Int[Array, ""]:
    """Most blocks that fit every device with a sample, up to all of them."""
    work = problem.workload
    largest = jnp.max(samples, axis=1, keepdims=True)
    room_bytes = problem.compute.memory_bytes - model_ends(work).embedding_static_bytes
    fits = block_capacity(work.replace(batch=largest, capacity=None), room_bytes, 1, 1)
    return jnp.min(fits, where=samples > 0, initial=work.blocks)


def split_batch(batch: Array, available: Bool[Array, "N K"]) -> Int[Array, "N K"]:
    """A mini-batch over the available clients, as evenly as integers allow.

    The first clients get the remainder.
    """
    count = jnp.sum(available, axis=1, keepdims=True)
    share, remainder = jnp.divmod(jnp.asarray(batch, jnp.int32), jnp.maximum(count, 1))
    rank = jnp.cumsum(available, axis=1) - 1
    return jnp.where(available, share + (rank < remainder), 0).astype(jnp.int32)


def _decide(
    problem: RoundProblem, build: _Build, there: Array, shares: str, deadline: float
) -> ClientDecision:
    """Decision of the available clients, less those that sit out, and its shares."""
    if deadline:
        there = _available_in_time(problem, build, there, deadline)
    decision = build(there)
    if shares == "equal":
        return decision
    if shares != "min_max":
        raise InputError("policy.shares", shares, "unknown", f"Choose among: {', '.join(SHARES)}")

    def latency_s(share: Array) -> Array:
        own_s = client_latency_s(problem, decision.replace(d2e_share=share))
        return jnp.max(own_s, axis=1, keepdims=True) if decision.tier == "hierarchical" else own_s

    if problem.radio.retransmissions == "reliable":
        most = _fastest_shares(latency_s, decision.d2e_share)
    elif decision.whole_model:
        most = 1.0
    else:
        most = reliable_shares(problem, decision)
    return decision.replace(d2e_share=min_max_shares(latency_s, sends(decision), most))


def _at_full_power(problem: RoundProblem, samples: Array, **others: Any) -> ClientDecision:
    """A decision with equal shares and full power."""
    limit_w = problem.radio.d2e_power_max_w[:, None]
    none = jnp.zeros_like(samples, limit_w.dtype)
    decision = ClientDecision(samples=samples, d2e_share=none, d2e_power_w=none, **others)
    used = sends(decision)
    return decision.replace(d2e_share=equal_shares(used), d2e_power_w=jnp.where(used, limit_w, 0.0))


_Shares = Float[Array, "N S"]
_LEAST_LOG_SHARE, _NARROWINGS = -25.0, 45


def equal_shares(sends: Bool[Array, "N S"]) -> _Shares:
    """The same share for everyone who sends, 0 for the others."""
    return jnp.where(sends, 1.0 / jnp.maximum(jnp.sum(sends), 1), 0.0)


def min_max_shares(
    latency_s: Callable[[_Shares], Float[Array, "N S"]],
    sends: Bool[Array, "N S"],
    most: _Shares | float = 1.0,
) -> _Shares:
    """Shares that minimise the largest latency.

    Latencies fall as their own shares grow. So a round can last ``t`` if and only if the least
    shares with which everyone ends by ``t`` sum to at most 1. Bisection finds the least ``t``, and
    inside it the shares, to rounding. What is left of the band goes to all in proportion, up to
    the limits. Equal shares remain where a link is dead.

    Args:
      latency_s: of every sender, from the shares of all; each depends on its own alone.
      sends: who takes part.
      most: largest share of everyone.

    Source: docs/system-model.md (23).
    """
    most = jnp.where(sends, most, 1.0)
    equal = jnp.minimum(equal_shares(sends), most)
    steps = jnp.finfo(equal.dtype).nmant + 5

    def slowest_s(share: _Shares) -> Float[Array, ""]:
        return jnp.max(jnp.where(sends, latency_s(share), 0.0))

    def least_shares(limit_s: Float[Array, ""]) -> _Shares:
        def halve(_, ends):
            low, high = ends
            middle = (low + high) / 2.0
            late = latency_s(jnp.exp(middle)) > limit_s
            return jnp.where(late, middle, low), jnp.where(late, high, middle)

        ends = jnp.full_like(equal, _LEAST_LOG_SHARE), jnp.log(most)
        return jnp.where(sends, jnp.exp(jax.lax.fori_loop(0, steps, halve, ends)[1]), 0.0)

    def narrow(_, ends):
        low, high = ends
        middle = (low + high) / 2.0
        fits = jnp.sum(least_shares(middle)) <= 1.0
        return jnp.where(fits, low, middle), jnp.where(fits, middle, high)

    # Outer bisection over the time of the round, from what all could do alone to equal shares.
    longest_s = slowest_s(equal)
    ends = slowest_s(most), longest_s
    share = least_shares(jax.lax.fori_loop(0, steps, narrow, ends)[1])
    # Hand out what is left.
    total = jnp.sum(share)
    share = jnp.minimum(share / jnp.where(total > 0, total, 1.0), most)
    return jnp.where(jnp.isfinite(longest_s), share, equal)


def _fastest_shares(
    latency_s: Callable[[_Shares], Float[Array, "N S"]], like: _Shares
) -> Float[Array, "N S"]:
    """Shares at which everyone is fastest, up to 1: a wider band needs more attempts.

    A latency is convex in the logarithm of its share, so it falls up to there, and ternary search
    finds it; 1 where a link is dead.

    Args:
      latency_s: as of :func:`min_max_shares`.
      like: shares of the same shape.

    Source: docs/system-model.md (34).
    """

    def narrow(_, ends):
        low, high = ends
        left, right = (2.0 * low + high) / 3.0, (low + 2.0 * high) / 3.0
        # On the right attempts may overflow.
        rises = latency_s(jnp.exp(left)) <= latency_s(jnp.exp(right))
        return jnp.where(rises, low, left), jnp.where(rises, right, high)

    ends = jnp.full_like(like, _LEAST_LOG_SHARE), jnp.zeros_like(like)
    share = jnp.exp(jax.lax.fori_loop(0, _NARROWINGS, narrow, ends)[1])
    return jnp.where(jnp.isfinite(latency_s(share)), share, 1.0)


def reliable_shares(problem: RoundProblem, decision: ClientDecision) -> _Shares:
    """Largest shares with which split models keep the divergence target.

    A narrower band has a higher SINR. All clients may have the same hazard of a step. Where the
    downlink alone has more, the limit is the equal share.

    Source: docs/system-model.md (24).
    """
    samples, radio, work = decision.samples, problem.radio, problem.workload
    bounds = client_divergence(problem, decision)
    room = problem.control.divergence_target - jnp.sum(bounds.lossless)
    hazard = jnp.log1p(jnp.maximum(room, 0.0) / jnp.sum(bounds.per_excess))
    links = client_links(problem, decision)
    blocks = jnp.maximum(samples, 1) / radio.transport_block_bits
    down = blocks * work.activation_bits * transport_block_hazard(radio, links.downlink_sinr)
    left = (hazard - down) / (blocks * work.uplink_bits)
    least_sinr = sinr_at_hazard(radio, jnp.where(left > 0, left, 1.0))
    whole_band_sinr = links.uplink_sinr * decision.d2e_share
    most = jnp.minimum(whole_band_sinr / least_sinr, 1.0)
    return jnp.where(left > 0, most, equal_shares(samples > 0))
