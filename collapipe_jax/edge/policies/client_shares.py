"""Shares of the D2E band with which the slowest client of a round is as fast as it can be."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from collapipe_jax.edge.cost.client_links import client_links
from collapipe_jax.edge.cost.client_round import client_divergence
from collapipe_jax.edge.cost.decision import ClientDecision
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import sinr_at_hazard, transport_block_hazard

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

    longest_s = slowest_s(equal)
    ends = slowest_s(most), longest_s
    share = least_shares(jax.lax.fori_loop(0, steps, narrow, ends)[1])
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
