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

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.cost.divergence import excess_inverse_survival
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.network.channel import spectral_efficiency, unlimited_efficiency
from collapipe_jax.scheduling.chains import Chains, at_next_active, from_previous_active

LEAST_MULTIPLIER = 1e-6
_LARGEST_EXCESS = 5.184705528587072e21
"""e^50 - 1, from where the inverse survival goes on along its tangent."""


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
    """Weights of the maxima, sum 1 over their first axis; of two, only the first's.

    Attributes:
      forward, backward: of the hops by node, the D2E link and the longest compute stage,
        ``[P + 2, N, ...]``.
      cluster: ``[N, ...]``.
      hop, move, up: of a message's time by its SINR, against that by the ceiling of
        modulation, ``[2, P, N, ...]`` twice and ``[N, ...]``.
    """

    forward: Array
    backward: Array
    cluster: Array
    hop: Array
    move: Array
    up: Array


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


def first_multipliers(chains: Chains) -> Multipliers:
    """Weights to start with: most messages stay below the ceiling."""
    nodes, clusters, *lanes = chains.active.shape
    flow = jnp.full((nodes + 2, clusters, *lanes), 1.0 / (nodes + 2))
    messages = jnp.full((2, nodes, clusters, *lanes), 0.9)
    return Multipliers(
        forward=flow,
        backward=flow,
        cluster=jnp.full((clusters, *lanes), 1.0 / clusters),
        hop=messages,
        move=messages,
        up=messages[0, 0],
    )


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
    return sum(power_w[i, n] * cross_gain[i, n] for i in range(nodes) for n in range(clusters))


class _MessageTime(NamedTuple):
    """Time on air of a bit.

    Attributes:
      true_s: as it is.
      smooth_s: the ceiling of modulation, itself a maximum of two times, made smooth.
      gain: relative fall of the smooth time when the logarithm of the SINR grows by 1.
      bend: how much the gain changes then, for the ceiling alone.
      weight: the next one of the time by the SINR.
    """

    true_s: Array
    smooth_s: Array
    gain: Array
    bend: Array
    weight: Array


def bit_time_s(radio, share_hz, sinr) -> Array:
    """Time on air of a bit."""
    return 1.0 / (share_hz * spectral_efficiency(sinr, radio))


def _message_time(radio, share_hz, sinr, weight, temperature) -> _MessageTime:
    efficiency = unlimited_efficiency(sinr, radio)
    ceiling = radio.max_spectral_efficiency
    excess = jnp.log(ceiling / efficiency)  # of the time by the SINR over that by the ceiling
    below = excess > 0
    less = jnp.exp(-jnp.abs(excess) / temperature)
    mine = jnp.where(below, weight, weight * less)
    mean = mine + jnp.where(below, (1.0 - weight) * less, 1.0 - weight)
    true_s = 1.0 / (share_hz * jnp.minimum(efficiency, ceiling))
    posterior = mine / mean
    gain = _efficiency_gain(radio, sinr, efficiency)
    return _MessageTime(
        true_s,
        true_s * jnp.exp(temperature * jnp.log(mean)),
        posterior * gain,
        posterior * (1.0 - posterior) * gain**2 / temperature,
        LEAST_MULTIPLIER + (1.0 - 2.0 * LEAST_MULTIPLIER) * posterior,
    )


def _efficiency_gain(radio, sinr, efficiency) -> Array:
    """Relative growth of the spectral efficiency when the logarithm of the SINR grows by 1."""
    reduced = sinr / radio.snr_gap
    nats = efficiency * jnp.log(2.0)
    some = jnp.where(nats > 0, nats, 1.0)
    if radio.rate_law == "ergodic":  # d(e^u E1(u)) / du = e^u E1(u) - 1 / u with u = 1 / x
        return jnp.where(nats > 0, (1.0 - nats / jnp.where(nats > 0, reduced, 1.0)) / some, 1.0)
    return jnp.where(nats > 0, reduced / ((1.0 + reduced) * some), 1.0)


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
    """A maximum: smooth and true, slopes by entry, parts of the mean, the next weights."""

    smooth: Array
    true: Array
    slope: Array
    part: Array
    weight: Array


def _power_mean(values, weights, temperature) -> _Maximum:
    top = jnp.max(values, axis=0)
    some = jnp.where(top > 0, top, 1.0)
    # All zero in a cluster that sits out, where any weights do.
    ratio = jnp.where(top > 0, values / some, 1.0)
    part = weights * jnp.exp(jnp.log(jnp.maximum(ratio, 1e-30)) / temperature)
    total = add_up(part)
    weight = part / total
    entries = values.shape[0]
    smooth = top * jnp.exp(temperature * jnp.log(total))
    slope = weight * smooth / jnp.where(values > 0, values, 1.0)
    kept = LEAST_MULTIPLIER + (1.0 - entries * LEAST_MULTIPLIER) * weight
    return _Maximum(smooth, top, slope, weight, kept)


class _Paid(NamedTuple):
    """Price of a second on air by sender: hops ``[2, P, N, ...]``, moves likewise, uplink."""

    hop: Array
    move: Array
    up: Array


def _paid(point: Resources, chains: Chains) -> _Paid:
    own = point.d2d_power * chains.price_per_w_s
    return _Paid(
        jnp.stack([own, at_next_active(own, chains.active)]),
        jnp.stack([own, jnp.broadcast_to(own[0], own.shape)]),
        point.d2e_power * chains.price_per_w_s[0],
    )


class _Spent(NamedTuple):
    """Times and energies at given times of a bit.

    Attributes:
      hop_s, air_price: of a micro-batch, and of its energy over the round,
        ``[2, P, N, ...]``.
      move_s, move_price: of parameters, ``[2, P, N, ...]``.
      up_s, down_s, model_up_s, model_down_s, up_price: ``[N, ...]``.
      forward_s, backward_s: stages of the flows, ``[P + 2, N, ...]``.
      fixed_s: latency without pauses for the longest stage, ``[N, ...]``.
      energy_price: ``[N, ...]``.
    """

    hop_s: Array
    air_price: Array
    move_s: Array
    move_price: Array
    up_s: Array
    down_s: Array
    model_up_s: Array
    model_down_s: Array
    up_price: Array
    forward_s: Array
    backward_s: Array
    fixed_s: Array
    energy_price: Array


def _spend(chains, paid, hop_bit_s, move_bit_s, up_bit_s, down_bit_s) -> _Spent:
    active, present = chains.active, chains.active[0]
    overhead_s = jnp.where(present, chains.overhead_s, 0.0)
    hop_s = hop_bit_s * chains.hop_bits
    stage_s = hop_s + jnp.where(active, overhead_s, 0.0)
    up_s, down_s = up_bit_s * chains.uplink_bits, down_bit_s * chains.downlink_bits
    longest = chains.longest_fixed_s

    def stages(hops, link_s, fixed_s):
        return jnp.concatenate([hops, (link_s + overhead_s)[None], fixed_s[None]])

    move_s = move_bit_s * chains.move_bits
    model_up_s, model_down_s = up_bit_s * chains.model_bits, down_bit_s * chains.model_bits
    step_s = add_up(stage_s[0] + stage_s[1]) + up_s + down_s + 2.0 * overhead_s
    step_s = step_s + chains.fixed_s.forward + chains.fixed_s.backward
    steps = chains.local_steps * chains.micro_batches
    air_price = paid.hop * hop_s * steps
    move_price = paid.move * move_s
    up_price = paid.up * (steps * up_s + model_up_s)
    return _Spent(
        hop_s,
        air_price,
        move_s,
        move_price,
        up_s,
        down_s,
        model_up_s,
        model_down_s,
        up_price,
        forward_s=stages(stage_s[0], up_s, longest.forward),
        backward_s=stages(stage_s[1], down_s, longest.backward),
        fixed_s=chains.local_steps * step_s
        + add_up(move_s[0] + move_s[1])
        + model_up_s
        + model_down_s,
        energy_price=add_up(add_up(air_price + move_price)) + up_price,
    )


def largest(values: Array) -> Array:
    """Maximum over the first axis, written out like :func:`add_up`."""
    return functools.reduce(jnp.maximum, [values[i] for i in range(values.shape[0])])


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
    move_sinr = jnp.stack(
        [
            power_w * (chains.collect_gain / noise_w[0]),
            power_w[0] * (chains.distribute_gain / noise_w),
        ]
    )
    up_sinr = point.d2e_power * chains.uplink_gain / point.d2e_share
    hop = _message_time(radio, share * chains.d2d_hz, hop_sinr, multipliers.hop, temperature)
    move = _message_time(radio, chains.d2d_hz, move_sinr, multipliers.move, temperature)
    up_hz = point.d2e_share * chains.d2e_hz
    up = _message_time(radio, up_hz, up_sinr, multipliers.up, temperature)
    down_bit_s = 1.0 / (up_hz * chains.downlink_efficiency)
    paid = _paid(point, chains)
    true = _spend(chains, paid, hop.true_s, move.true_s, up.true_s, down_bit_s)
    smooth = _spend(chains, paid, hop.smooth_s, move.smooth_s, up.smooth_s, down_bit_s)

    # Latency.
    pauses = chains.local_steps * (chains.micro_batches - 1.0)
    forward = _power_mean(smooth.forward_s, multipliers.forward, temperature)
    backward = _power_mean(smooth.backward_s, multipliers.backward, temperature)
    smooth_s = smooth.fixed_s + pauses * (forward.smooth + backward.smooth)
    latency_s = true.fixed_s + pauses * (largest(true.forward_s) + largest(true.backward_s))
    if around is None:
        round_s = _power_mean(smooth_s, multipliers.cluster, temperature)
        cluster_price = chains.price_per_s * round_s.slope  # of a second of its latency
        latency_price = chains.price_per_s * largest(latency_s)
        smooth_latency_price = chains.price_per_s * round_s.smooth
        round_part = round_s.part
    else:
        both = jnp.stack([smooth_s, jnp.broadcast_to(around.round_s, smooth_s.shape)])
        round_s = _power_mean(both, multipliers.cluster, temperature)
        rest = chains.price_per_s - around.price_per_s
        cluster_price = around.price_per_s + rest * round_s.slope[0]
        late_s = jnp.maximum(latency_s, around.round_s)
        latency_price = around.price_per_s * latency_s + rest * late_s
        smooth_latency_price = around.price_per_s * smooth_s + rest * round_s.smooth
        round_part = round_s.part[0]

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
    drift = lost_price + chains.cluster_price
    if around is not None:
        heard_price = jnp.where(active, power_w * around.price_per_w, 0.0)
        band_price = jnp.where(present, point.d2e_share * around.price_per_share, 0.0)
        drift = drift + add_up(heard_price) + band_price
    total = add_up if around is None else lambda by_cluster: by_cluster
    objective = total(drift + true.energy_price) + latency_price
    smooth_price = total(drift + smooth.energy_price) + smooth_latency_price

    # Slopes by the logarithms of times.
    nodes = active.shape[0]
    step_price = chains.local_steps * cluster_price
    longest_price = pauses * cluster_price * jnp.stack([forward.slope, backward.slope])
    hop_plain = smooth.hop_s * step_price + smooth.air_price
    hop_longest = smooth.hop_s * longest_price[:, :nodes]
    hop_time = hop_plain + hop_longest
    move_time = smooth.move_s * cluster_price + smooth.move_price
    up_plain = smooth.up_s * step_price + smooth.model_up_s * cluster_price + smooth.up_price
    up_longest = smooth.up_s * longest_price[0, nodes]
    down_plain = smooth.down_s * step_price + smooth.model_down_s * cluster_price
    down_longest = smooth.down_s * longest_price[1, nodes]

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
    air_price, move_price = smooth.air_price, smooth.move_price
    energy = air_price[0] + move_price[0] + from_previous_active(air_price[1], active)
    energy = energy.at[0].add(add_up(move_price[1]))
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
        d2d_power=jnp.where(active, energy + disturbs - sent, 0.0),
        d2e_share=jnp.where(present, band_slope, 0.0),
        d2e_power=jnp.where(present, smooth.up_price - up_worth, 0.0),
    )

    # Curvatures: a bottleneck's grows with the sharpness of its mean, a loss's with its size.
    sharpness = 1.0 / temperature
    longest_weight = jnp.stack([forward.part, backward.part])
    stiff = 1.0 + sharpness * (1.0 - longest_weight)
    hop_curvature = hop_plain + hop_longest * stiff[:, :nodes]
    # Where losses are most of the price, steps go by its logarithm, which is much less bent.
    bend = jnp.clip(1.0 - lost_price / smooth_price, 0.0, 1.0)
    hop_loss_curvature = hop_hurt * (
        radio.harq_attempts + bend * chains.hazard_per_hop * hop_loss.fall
    )
    up_curvature = up_plain + up_longest * stiff[0, nodes]
    up_loss_curvature = up_hurt * (
        radio.harq_attempts + bend * chains.hazard_per_uplink * up_loss.fall
    )
    # The round's latency bends with the square of a variable's part in it.
    of_latency = cluster_price * smooth_s
    round_stiff = sharpness * (1.0 - round_part) / jnp.where(of_latency > 0, of_latency, 1.0)

    def with_round(curvature, part):
        return curvature + round_stiff * part**2

    hop_latency = hop_time - air_price
    share_part = hop_latency[0] + hop_latency[1]
    sent_part = hop.gain * hop_latency
    power_part = sent_part[0] + from_previous_active(sent_part[1], active)
    sent_curvature = hop.gain**2 * hop_curvature + hop.bend * hop_time + hop_loss_curvature
    move_curvature = (move.gain + move.bend) * move_time
    power_curvature = (
        sent_curvature[0] + from_previous_active(sent_curvature[1], active) + move_curvature[0]
    )
    power_curvature = power_curvature.at[0].add(add_up(move_curvature[1]))
    share_curvature = add_up(hop_curvature + hop.bend * hop_time + hop_loss_curvature)
    up_part = up_plain + up_longest - smooth.up_price
    curvature = Resources(
        d2d_share=with_round(share_curvature, share_part),
        d2d_power=with_round(power_curvature + energy + disturbs, power_part),
        d2e_share=with_round(
            up_curvature + up_loss_curvature + down_plain + down_longest * stiff[1, nodes],
            up_part + down_time,
        ),
        d2e_power=with_round(
            up.gain**2 * up_curvature
            + up.bend * (up_plain + up_longest)
            + up_loss_curvature
            + smooth.up_price,
            up.gain * up_part,
        ),
    )
    return PricedPoint(
        smooth=smooth_price,
        objective=objective,
        cluster_latency_s=latency_s,
        slope=slope,
        price_per_heard_w=price_per_w,
        curvature=curvature,
        multipliers=Multipliers(
            forward.weight, backward.weight, round_s.weight, hop.weight, move.weight, up.weight
        ),
    )
