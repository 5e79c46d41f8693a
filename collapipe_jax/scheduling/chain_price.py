"""Price of shares and powers on given chains, its maxima made smooth, and its slopes.

(P2) has maxima: of the clusters' latencies, and of the stages of either flow. A maximum of
positive numbers is at least their weighted power mean, for any weights of sum 1,

    max_k v_k >= (sum_k w_k v_k^(1/T))^T,

with equality once the weights have gathered on maximal entries; and the mean keeps the
convexity in logarithms of what it averages. So weights are multipliers: the optimum of the
smooth price is a lower bound of (P2) at any temperature T, and the weights returned with a
price are the better ones to go on with (the exponential method of multipliers, Tseng and
Bertsekas 1993).

Slopes are written out rather than left to automatic differentiation: the terms that make
them up also bound the curvature, and the loop around them is the solver's inner one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.decision import Hops
from collapipe_jax.cost.divergence import excess_inverse_survival
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.network.channel import spectral_efficiency
from collapipe_jax.scheduling.chains import Chains, at_next_active, from_previous_active


class Resources(NamedTuple):
    """Shares and powers, or a number for each of them; nodes first and lanes last.

    Attributes:
      d2d_share, d2d_power: ``[P, N, ...]``.
      d2e_share, d2e_power: ``[N, ...]``.
    """

    d2d_share: Array
    d2d_power: Array
    d2e_share: Array
    d2e_power: Array


class Multipliers(NamedTuple):
    """Weights of the maxima, sum 1 over their first axis.

    Attributes:
      forward, backward: of the hops by node, the D2E link and the longest compute stage,
        ``[P + 2, N, ...]``.
      cluster: ``[N, ...]``.
    """

    forward: Array
    backward: Array
    cluster: Array


class PricedPoint(NamedTuple):
    """Price of a point and how it changes.

    Attributes:
      smooth: the smooth price, ``[...]``, at most (P2).
      objective: (P2), maxima as they are, ``[...]``.
      cluster_latency_s: ``[N, ...]``.
      slope: of the smooth price by the logarithms of shares and powers.
      price_per_heard_w: of interference that a watt of a node makes, ``[P, N, ...]``.
      curvature: about as much as the slope changes where a logarithm grows by 1.
      multipliers: better ones.
    """

    smooth: Array
    objective: Array
    cluster_latency_s: Array
    slope: Resources
    price_per_heard_w: Array
    curvature: Resources
    multipliers: Multipliers


def uniform_multipliers(chains: Chains) -> Multipliers:
    """Weights to start with."""
    nodes, clusters, *lanes = chains.active.shape
    flow = jnp.full((nodes + 2, clusters, *lanes), 1.0 / (nodes + 2))
    return Multipliers(flow, flow, jnp.full((clusters, *lanes), 1.0 / clusters))


def add_up(values: Array) -> Array:
    """Sum over the first axis, written out.

    Compiled as one pass over the lanes, several times faster than a reduction.
    """
    return sum(values[i] for i in range(values.shape[0]))


def heard_w(cross_gain: Array, power_w: Array) -> Array:
    """Interference at every node, docs/system-model.md (1), with lanes.

    Args:
      cross_gain: as in :class:`Chains`, ``[P, N, P, N, ...]``.
      power_w: 0 on idle nodes, ``[P, N, ...]``.
    """
    nodes, clusters = cross_gain.shape[:2]
    # Without the barrier the compiler works each power out anew for every hearer.
    power_w = jax.lax.optimization_barrier(power_w)
    return sum(power_w[i, n] * cross_gain[i, n] for i in range(nodes) for n in range(clusters))


class MessageTime(NamedTuple):
    """Time on air of a bit, and its fall when the logarithm of the SINR grows by 1, relative."""

    bit_s: Array
    gain: Array


def message_time(radio, share_hz, sinr) -> MessageTime:
    efficiency = spectral_efficiency(sinr, radio)
    reduced = sinr / radio.snr_gap
    below = efficiency < radio.max_spectral_efficiency
    nats = efficiency * jnp.log(2.0)
    gain = jnp.where(below, reduced / ((1.0 + reduced) * jnp.where(nats > 0, nats, 1.0)), 0.0)
    return MessageTime(1.0 / (share_hz * efficiency), gain)


class MessageLoss(NamedTuple):
    """Hazard of a transport block, and its fall when the logarithm of the SINR grows by 1."""

    hazard: Array
    fall: Array


def message_loss(radio, sinr) -> MessageLoss:
    """Hazard and slope from few elementary functions; errors under 1e-6 of a hazard of 1.

    With ``q = 1 - e^-z``, ``lambda = -log(1 - q^A)``; beyond ``z = 8`` its expansion in
    ``e^-z``, where ``1 - q^A`` would cancel.
    """
    attempts, z = radio.harq_attempts, radio.outage_threshold / sinr
    far = z > _FAR[sinr.dtype.name]
    near_z = jnp.where(far, 1.0, z)
    thin = jnp.exp(-near_z)
    q = -jnp.expm1(-near_z)
    lost = jnp.exp(attempts * jnp.log(q))
    arrives = 1.0 - lost
    tail = 0.5 * (attempts - 1.0) * jnp.exp(-z)
    return MessageLoss(
        jnp.where(far, z - jnp.log(attempts) + tail, -jnp.log1p(-lost)),
        z * jnp.where(far, 1.0 - tail, attempts * lost * thin / (q * arrives)),
    )


_FAR = {"float32": 8.0, "float64": 18.0}


class _Maximum(NamedTuple):
    """A maximum of stages: smooth and true, slopes by entry, the next weights."""

    smooth: Array
    true: Array
    slope: Array
    weight: Array


def _power_mean(values, weights, temperature) -> _Maximum:
    top = jnp.max(values, axis=0)
    some = jnp.where(top > 0, top, 1.0)
    ratio = values / some
    part = weights * jnp.exp(jnp.log(jnp.maximum(ratio, 1e-30)) / temperature)
    total = add_up(part)
    weight = part / total
    smooth = some * jnp.exp(temperature * jnp.log(total))
    slope = weight * smooth / jnp.where(values > 0, values, 1.0)
    return _Maximum(smooth, top, slope, weight)


class _Flow(NamedTuple):
    total_s: Array
    longest: _Maximum


def _flow(hop_s, link_s, fixed_s, longest_fixed_s, weights, temperature) -> _Flow:
    stages = jnp.concatenate([hop_s, link_s[None], longest_fixed_s[None]])
    longest = _power_mean(stages, weights, temperature)
    return _Flow(add_up(hop_s) + link_s + fixed_s, longest)


class Surroundings(NamedTuple):
    """What a cluster sees of the others while they stand still.

    Attributes:
      heard_w: interference at its nodes, ``[P, N, ...]``.
      price_per_w: what the others lose by a watt of its nodes, ``[P, N, ...]``.
      price_per_s: of its latency below the round's, ``[N, ...]``; above, it has the whole
        price of the round's.
      round_s: latency of the round, ``[...]``.
      price_per_share: of the D2E band, ``[...]``.
    """

    heard_w: Array
    price_per_w: Array
    price_per_s: Array
    round_s: Array
    price_per_share: Array


def price_point(
    problem: RoundProblem,
    chains: Chains,
    point: Resources,
    multipliers: Multipliers,
    temperature: Array,
    around: Surroundings | None = None,
) -> PricedPoint:
    """(P2) with its maxima replaced by weighted power means, and its slopes.

    Args:
      problem: with lanes; only its radio is used.
      chains: of the layout.
      point: shares, and powers in watts; positive where used.
      multipliers: weights of the means.
      temperature: of the means, relative to their size.
      around: where given, every cluster is priced on its own: prices are ``[N, ...]``,
        and the last multipliers ``[2, N, ...]``, of its latency and the round's.
    """
    radio, active, present = problem.radio, chains.active, chains.active[0]
    share, power_w = point.d2d_share, point.d2d_power
    if around is None:
        noise_w = chains.noise_w + heard_w(chains.cross_gain, jnp.where(active, power_w, 0.0))
    else:
        noise_w = chains.noise_w + around.heard_w
    # Messages: both of a hop stacked, then parameters, then the base station's.
    hop_sinr = jnp.stack(
        [
            power_w * (chains.gain.forward / at_next_active(noise_w, active)) / share,
            at_next_active(power_w, active) * (chains.gain.backward / noise_w) / share,
        ]
    )
    hop = message_time(radio, share * chains.d2d_hz, hop_sinr)
    move_sinr = jnp.stack(
        [
            power_w * (chains.collect_gain / noise_w[0]),
            power_w[0] * (chains.distribute_gain / noise_w),
        ]
    )
    move = message_time(radio, chains.d2d_hz, move_sinr)
    up_sinr = point.d2e_power * chains.uplink_gain / point.d2e_share
    up = message_time(radio, point.d2e_share * chains.d2e_hz, up_sinr)
    down_bit_s = 1.0 / (point.d2e_share * chains.d2e_hz * chains.downlink_efficiency)

    # Latency.
    overhead_s = jnp.where(present, chains.overhead_s, 0.0)
    hop_s = hop.bit_s * chains.hop_bits
    stage_s = hop_s + jnp.where(active, overhead_s, 0.0)
    up_s = up.bit_s * chains.uplink_bits
    down_s = down_bit_s * chains.downlink_bits
    fixed, longest_fixed = chains.fixed_s, chains.longest_fixed_s
    forward = _flow(
        stage_s[0], up_s + overhead_s, fixed.forward, longest_fixed.forward,
        multipliers.forward, temperature,
    )  # fmt: skip
    backward = _flow(
        stage_s[1], down_s + overhead_s, fixed.backward, longest_fixed.backward,
        multipliers.backward, temperature,
    )  # fmt: skip
    move_s = move.bit_s * chains.move_bits
    model_up_s, model_down_s = up.bit_s * chains.model_bits, down_bit_s * chains.model_bits
    fixed_latency_s = (
        chains.local_steps * (forward.total_s + backward.total_s)
        + add_up(move_s[0])
        + add_up(move_s[1])
        + model_up_s
        + model_down_s
    )
    pauses = chains.local_steps * (chains.micro_batches - 1.0)
    latency_s = fixed_latency_s + pauses * (forward.longest.true + backward.longest.true)
    smooth_s = fixed_latency_s + pauses * (forward.longest.smooth + backward.longest.smooth)
    if around is None:
        round_s = _power_mean(smooth_s, multipliers.cluster, temperature)
        cluster_price = chains.price_per_s * round_s.slope  # of a second of its latency
        latency_price = chains.price_per_s * jnp.max(latency_s, axis=0)
        smooth_latency_price = chains.price_per_s * round_s.smooth
        round_weight = round_s.weight
    else:
        both = jnp.stack([smooth_s, jnp.broadcast_to(around.round_s, smooth_s.shape)])
        round_s = _power_mean(both, multipliers.cluster, temperature)
        rest = chains.price_per_s - around.price_per_s
        cluster_price = around.price_per_s + rest * round_s.slope[0]
        latency_price = around.price_per_s * latency_s + rest * jnp.maximum(latency_s, around.round_s)
        smooth_latency_price = around.price_per_s * smooth_s + rest * round_s.smooth
        round_weight = round_s.weight[0]

    # Energy.
    steps = chains.local_steps * chains.micro_batches
    price_per_s = power_w * chains.price_per_w_s
    price_per_hop_s = jnp.stack([price_per_s, at_next_active(price_per_s, active)])
    air_price = price_per_hop_s * hop_s * steps
    move_price = jnp.stack([price_per_s, jnp.broadcast_to(price_per_s[0], share.shape)]) * move_s
    up_energy_price = (
        point.d2e_power * chains.price_per_w_s[0] * (steps * up_s + model_up_s)
    )

    # Losses.
    hop_loss = message_loss(radio, hop_sinr)
    up_loss = message_loss(radio, up_sinr)
    hop_hazard = jnp.where(active, hop_loss.hazard[0] + hop_loss.hazard[1], 0.0)
    hazard = (
        chains.hazard_per_hop * add_up(hop_hazard)
        + chains.hazard_per_uplink * up_loss.hazard
        + chains.fixed_hazard
    )
    excess = excess_inverse_survival(hazard)
    lost_price = chains.price_per_survival * excess
    drift = add_up(add_up(air_price + move_price)) + up_energy_price + lost_price
    if around is None:
        drift = add_up(drift + chains.cluster_price)
    else:
        heard_price = jnp.where(active, power_w * around.price_per_w, 0.0)
        band_price = jnp.where(present, point.d2e_share * around.price_per_share, 0.0)
        drift = drift + chains.cluster_price + add_up(heard_price) + band_price
    smooth = drift + smooth_latency_price

    # Slopes by the logarithms of times.
    step_price = chains.local_steps * cluster_price
    pause_price = pauses * cluster_price
    nodes = active.shape[0]
    longest_slope = jnp.stack([forward.longest.slope, backward.longest.slope])
    longest_price = pause_price * longest_slope
    hop_plain = hop_s * step_price + air_price
    hop_longest = hop_s * longest_price[:, :nodes]
    hop_time = hop_plain + hop_longest
    move_time = move_s * cluster_price + move_price
    model_price = model_up_s * cluster_price
    up_plain = up_s * step_price + model_price + up_energy_price
    up_longest = up_s * longest_price[0, nodes]
    down_plain = down_s * step_price + model_down_s * cluster_price
    down_longest = down_s * longest_price[1, nodes]

    # Slopes by the logarithms of SINRs, signs turned.
    survival_price = jnp.where(present, chains.price_per_survival, 0.0) * (
        1.0 + jnp.minimum(excess, _LARGEST_EXCESS)
    )
    hop_hurt = jnp.where(active, survival_price * chains.hazard_per_hop * hop_loss.fall, 0.0)
    up_hurt = survival_price * chains.hazard_per_uplink * up_loss.fall
    hop_worth = hop.gain * hop_time + hop_hurt
    move_worth = move.gain * move_time
    up_worth = up.gain * (up_plain + up_longest) + up_hurt

    # Slopes by the logarithms of shares and powers.
    hop_both = hop_time[0] + hop_time[1]
    worth_both = hop_worth[0] + hop_worth[1]
    paid = air_price[0] + move_price[0] + from_previous_active(air_price[1], active)
    paid = paid.at[0].add(add_up(move_price[1]))
    sent = hop_worth[0] + from_previous_active(hop_worth[1], active) + move_worth[0]
    sent = sent.at[0].add(add_up(move_worth[1]))
    hearing = from_previous_active(hop_worth[0], active) + hop_worth[1] + move_worth[1]
    hearing = hearing.at[0].add(add_up(move_worth[0]))
    down_time = down_plain + down_longest
    band_slope = up_worth - up_plain - up_longest - down_time
    if around is None:
        price_per_w = heard_w(chains.gain_heard_from, hearing / noise_w)
        disturbs = power_w * price_per_w
    else:
        price_per_w = around.price_per_w
        disturbs = heard_price
        band_slope = band_slope + band_price
    slope = Resources(
        d2d_share=jnp.where(active, worth_both - hop_both, 0.0),
        d2d_power=jnp.where(active, paid + disturbs - sent, 0.0),
        d2e_share=jnp.where(present, band_slope, 0.0),
        d2e_power=jnp.where(present, up_energy_price - up_worth, 0.0),
    )

    # Curvatures: a bottleneck's grows with the sharpness of its mean, a loss's with its size.
    sharpness = 1.0 / temperature
    longest_weight = jnp.stack([forward.longest.weight, backward.longest.weight])
    stiff = 1.0 + sharpness * (1.0 - longest_weight)
    hop_curvature = hop_plain + hop_longest * stiff[:, :nodes]
    # Where losses are most of the price, steps go by its logarithm, which is much less bent.
    bend = jnp.clip(1.0 - lost_price / smooth, 0.0, 1.0)
    hop_loss_curvature = hop_hurt * (
        radio.harq_attempts + bend * chains.hazard_per_hop * hop_loss.fall
    )
    up_curvature = up_plain + up_longest * stiff[0, nodes]
    up_loss_curvature = up_hurt * (
        radio.harq_attempts + bend * chains.hazard_per_uplink * up_loss.fall
    )
    # The round's latency bends with the square of a variable's part in it.
    round_stiff = (
        sharpness
        * (1.0 - round_weight)
        / jnp.where(present, cluster_price * smooth_s, 1.0)
    )

    def with_round(curvature, part):
        return curvature + round_stiff * part**2

    hop_latency = hop_time - air_price
    share_part = hop_latency[0] + hop_latency[1]
    sent_part = hop.gain * hop_latency
    power_part = sent_part[0] + from_previous_active(sent_part[1], active)
    sent_curvature = hop.gain**2 * hop_curvature + hop_loss_curvature
    move_curvature = move.gain * move_time
    power_curvature = (
        sent_curvature[0]
        + from_previous_active(sent_curvature[1], active)
        + move_curvature[0]
    )
    power_curvature = power_curvature.at[0].add(add_up(move_curvature[1]))
    share_curvature = add_up(hop_curvature + hop_loss_curvature)
    up_part = up_plain + up_longest - up_energy_price
    curvature = Resources(
        d2d_share=with_round(share_curvature, share_part),
        d2d_power=with_round(power_curvature + paid + disturbs, power_part),
        d2e_share=with_round(
            up_curvature
            + up_loss_curvature
            + down_plain
            + down_longest * stiff[1, nodes],
            up_part + down_time,
        ),
        d2e_power=with_round(
            up.gain**2 * up_curvature + up_loss_curvature + up_energy_price, up.gain * up_part
        ),
    )
    return PricedPoint(
        smooth=smooth,
        objective=drift + latency_price,
        cluster_latency_s=latency_s,
        slope=slope,
        price_per_heard_w=price_per_w,
        curvature=curvature,
        multipliers=Multipliers(
            forward.longest.weight, backward.longest.weight, round_s.weight
        ),
    )


_LARGEST_EXCESS = 5.184705528587072e21  # e^50 - 1: its slope stays there
