"""How clients share a round: the D2E band, and the mini-batch of their cluster.

Both may be equal, or such that the slowest is as fast as it can be.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from collapipe_jax.edge.cost.client_round import (
    client_divergence,
    client_links,
    client_micro_batches,
)
from collapipe_jax.edge.cost.decision import ClientDecision
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import sinr_at_hazard, transport_block_hazard

SHARES = ("min_max", "equal")
"""Rules for shares of the D2E band."""
SPLITS = ("min_max", "even")
"""Rules for parts of a mini-batch."""


def even_parts(batch: Array, available: Bool[Array, "N K"]) -> Int[Array, "N K"]:
    """A mini-batch over the available clients, as evenly as integers allow.

    The first clients get the remainder.
    """
    count = jnp.sum(available, axis=1, keepdims=True)
    share, remainder = jnp.divmod(jnp.asarray(batch, jnp.int32), jnp.maximum(count, 1))
    rank = jnp.cumsum(available, axis=1) - 1
    return jnp.where(available, share + (rank < remainder), 0).astype(jnp.int32)


def min_max_parts(
    latency_s: Callable[[Int[Array, "N C"]], Float[Array, "N C"]],
    batch: Array,
    takes_part: Bool[Array, "N C"],
) -> Int[Array, "N C"]:
    """Parts of every cluster's mini-batch with which its slowest client is fastest.

    Latencies grow with their own parts. So a cluster can end by ``t`` if and only if the largest
    parts with which each client ends by ``t`` sum to at least the batch. Bisection finds the least
    ``t``. Of clients that the last sample makes equally late the first ones get it, so equal
    clients get even parts.

    Args:
      latency_s: of every client, from the parts of all; each depends on its own alone.
      batch: samples of a cluster's mini-batch.
      takes_part: clients that may get a part.

    Source: docs/system-model.md (44).
    """
    batch = jnp.asarray(batch, jnp.int32)
    steps = jnp.finfo(jnp.result_type(float)).nmant + 5
    bits = 32 - jax.lax.clz(batch)

    def parts_by(limit_s: Float[Array, "N 1"]) -> Int[Array, "N C"]:
        """Largest parts that end in time, from their highest bit on."""

        def set_bit(bit, parts):
            more = parts + (1 << (bits - 1 - bit))
            ends = latency_s(jnp.where(takes_part, more, 0)) <= limit_s
            return jnp.where(ends & takes_part & (more <= batch), more, parts)

        return jax.lax.fori_loop(0, bits, set_bit, jnp.zeros_like(takes_part, jnp.int32))

    def narrow(_, ends):
        low, high, few, enough = ends
        middle = (low + high) / 2.0
        parts = parts_by(middle)
        suffices = jnp.sum(parts, axis=1, keepdims=True) >= batch
        return (
            jnp.where(suffices, low, middle),
            jnp.where(suffices, middle, high),
            jnp.where(suffices, few, parts),
            jnp.where(suffices, parts, enough),
        )

    # By the lower end parts are too few, by the upper end enough, as the even ones are.
    even = even_parts(batch, takes_part)
    longest_s = jnp.max(latency_s(even), axis=1, keepdims=True)
    ends = jnp.zeros_like(longest_s), longest_s, jnp.zeros_like(even), even
    _, _, few, enough = jax.lax.fori_loop(0, steps, narrow, ends)
    # The samples that are left go to whom they make no later than the upper end.
    room = jnp.maximum(enough - few, 0)
    left = batch - jnp.sum(few, axis=1, keepdims=True)
    parts = few + jnp.clip(left - (jnp.cumsum(room, axis=1) - room), 0, room)
    return jnp.where(jnp.isfinite(longest_s), parts, even)


_Shares = Float[Array, "N S"]
_LEAST_LOG_SHARE, _NARROWINGS = -25.0, 45


def equal_shares(sends: Bool[Array, "N S"]) -> _Shares:
    """The same share for everyone who sends, 0 for the others."""
    return jnp.where(sends, 1.0 / jnp.maximum(jnp.sum(sends), 1), 0.0)


def min_max_shares(
    latency_s: Callable[[_Shares], Float[Array, "N S"]],
    sends: Bool[Array, "N S"],
    most: _Shares | float = 1.0,
    halvings: int | None = None,
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
      halvings: of both intervals, as many as numbers have digits by default.

    Source: docs/system-model.md (23).
    """
    most = jnp.where(sends, most, 1.0)
    equal = jnp.minimum(equal_shares(sends), most)
    steps = halvings or jnp.finfo(equal.dtype).nmant + 5

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
        low, high, share = ends
        middle = (low + high) / 2.0
        narrowed = least_shares(middle)
        fits = jnp.sum(narrowed) <= 1.0
        return (
            jnp.where(fits, low, middle),
            jnp.where(fits, middle, high),
            jnp.where(fits, narrowed, share),
        )

    # Outer bisection over the time of the round, from what all could do alone to equal shares.
    longest_s = slowest_s(equal)
    share = jax.lax.fori_loop(0, steps, narrow, (slowest_s(most), longest_s, equal))[2]
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

    A narrower band has a higher SINR. All clients may have the same hazard of a message. Where the
    downlink alone has more, the limit is the equal share.

    Source: docs/system-model.md (24).
    """
    samples, radio, work = decision.samples, problem.radio, problem.workload
    bounds = client_divergence(problem, decision)
    room = problem.control.divergence_target - jnp.sum(bounds.lossless)
    hazard = jnp.log1p(jnp.maximum(room, 0.0) / jnp.sum(bounds.per_excess))
    links = client_links(problem, decision)
    message = jnp.maximum(samples, 1) / client_micro_batches(decision)
    blocks = message / radio.transport_block_bits
    down = blocks * work.activation_bits * transport_block_hazard(radio, links.downlink_sinr)
    left = (hazard - down) / (blocks * work.uplink_bits)
    least_sinr = sinr_at_hazard(radio, jnp.where(left > 0, left, 1.0))
    whole_band_sinr = links.uplink_sinr * decision.d2e_share
    most = jnp.minimum(whole_band_sinr / least_sinr, 1.0)
    return jnp.where(left > 0, most, equal_shares(samples > 0))
