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
from collapipe_jax.edge.cost.client_links import client_links, sends
from collapipe_jax.edge.cost.client_round import client_divergence, client_latency_s, model_ends
from collapipe_jax.edge.cost.decision import ClientDecision
from collapipe_jax.edge.cost.memory import block_capacity
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import sinr_at_hazard, transport_block_hazard
from collapipe_jax.edge.policies.sit_out import available_in_time

SHARES = ("min_max", "equal")
"""Rules for shares of the D2E band."""
CUTS = ("half", "best")
"""Rules for the cut of a split model."""

_Build = Callable[[Bool[Array, "N C"]], ClientDecision]


def vanilla_fl(problem: RoundProblem, **options: Any) -> ClientDecision:
    """Federated averaging (McMahan et al. 1602.05629): every device trains the whole model.

    The decision may exceed memory and budgets. Options are those of :func:`whole_models`.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    return whole_models(problem, "devices", **options)


def control_unit_fl(problem: RoundProblem, **options: Any) -> ClientDecision:
    """Federated averaging over control units: devices do nothing.

    The decision may exceed memory and budgets. Options are those of :func:`whole_models`.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    return whole_models(problem, "control_units", **options)


def hierarchical_fl(problem: RoundProblem, **options: Any) -> ClientDecision:
    """Hierarchical federated averaging (HierFAVG, Liu et al. 1905.06641).

    Devices train whole models, and their control unit uploads the mean. The decision may
    exceed memory and budgets. Options are those of :func:`whole_models`.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    return whole_models(problem, "hierarchical", **options)


def whole_models(
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
        blocks = jnp.minimum(cut, client_capacity(problem, samples))
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
    remedy = f"Give a number from 0 to {blocks}, or one of: {', '.join(CUTS)}"
    raise InputError("policy.cut", cut, "no such cut", remedy)


def client_capacity(problem: RoundProblem, samples: Int[Array, "N K"]) -> Int[Array, ""]:
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
        there = available_in_time(problem, build, there, deadline)
    decision = build(there)
    if shares == "equal":
        return decision
    if shares != "min_max":
        raise InputError("policy.shares", shares, "unknown", f"Choose among: {', '.join(SHARES)}")

    def latency_s(share: Array) -> Array:
        own_s = client_latency_s(problem, decision.replace(d2e_share=share))
        return jnp.max(own_s, axis=1, keepdims=True) if decision.tier == "hierarchical" else own_s

    if problem.radio.retransmissions == "reliable":
        most = fastest_shares(latency_s, decision.d2e_share)
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


def fastest_shares(
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
