"""Price of shares and powers on given chains, its maxima made smooth, and its slopes.

(P2) has maxima: of the clusters' latencies, of the stages of either flow, and of a message's
two possible times. All are made smooth as in :mod:`power_mean`, so the price here is convex
in logarithms and nowhere above (P2). Its slopes are written out rather than left to automatic
differentiation: the terms that make them up also tell how the price bends, and the loop
around them is the solver's inner one.
"""

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.energy_caps import price_caps
from collapipe_jax.allocation.slopes import (
    by_receiver,
    curvatures,
    slopes,
    slopes_by_time,
    worths_of_sinr,
)
from collapipe_jax.allocation.smooth_maximum import TEMPERATURE, add_up
from collapipe_jax.allocation.variables import Multipliers, PricedPoint, Resources, Surroundings
from collapipe_jax.cost.chains import Chains, heard_w
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.spending import price_of_air, spend
from collapipe_jax.cost.terms import lose, send, take_time


def price_point(
    problem: RoundProblem,
    chains: Chains,
    point: Resources,
    multipliers: Multipliers,
    around: Surroundings | None = None,
    temperature: float = TEMPERATURE,
) -> PricedPoint:
    """(P2) with its maxima replaced by weighted power means, and its slopes.

    Args:
      problem: with lanes; only its radio is used.
      chains: of the layout.
      point: shares, and powers in watts; positive where used.
      multipliers: weights of the means.
      around: where given, every cluster is priced on its own: prices are ``[N, ...]``,
        and the last multipliers ``[2, N, ...]``, of its latency and the round's.
      temperature: of the means.
    """
    radio, active = problem.radio, chains.active
    power_w = jnp.where(active, point.d2d_power, 0.0)
    heard = heard_w(chains.cross_gain, power_w) if around is None else around.heard_w
    noise_w = chains.noise_w + heard

    sent = send(radio, chains, point, multipliers, noise_w, temperature)
    capped = None
    if chains.caps is not None:
        capped = price_caps(chains, point, sent, multipliers.caps, temperature)
        chains = chains.replace(price_per_w_s=capped.price_per_w_s)
    air = price_of_air(point, chains)
    true = spend(chains, air, sent.hop.true_s, sent.move.true_s, sent.up.true_s, sent.down_bit_s)
    smooth = spend(
        chains, air, sent.hop.smooth_s, sent.move.smooth_s, sent.up.smooth_s, sent.down_bit_s
    )
    if capped is not None:
        true = true._replace(energy_price=capped.fine)
        smooth = smooth._replace(energy_price=capped.smooth_price)
    latency = take_time(chains, true, smooth, multipliers, around, temperature)
    losses = lose(chains, sent)

    times = slopes_by_time(chains, smooth, latency)
    worth = worths_of_sinr(sent, losses, times)
    rest = losses.price + chains.cluster_price
    if around is None:
        hearing = by_receiver(worth.hop, worth.move, active)
        price_per_w = heard_w(chains.gain_heard_from, hearing / noise_w)
        disturbs = power_w * price_per_w  # not paid: the others' slopes hold it
        rent = jnp.zeros_like(rest)
        total = add_up
    else:
        price_per_w = around.price_per_w
        disturbs = power_w * price_per_w
        rent = jnp.where(active[0], point.d2e_share * around.price_per_share, 0.0)
        rest = rest + add_up(disturbs) + rent
        total = _each
    objective = total(rest + true.energy_price) + latency.true_price
    smooth_price = total(rest + smooth.energy_price) + latency.smooth_price
    curvature = curvatures(
        chains,
        sent,
        smooth,
        latency,
        losses,
        times,
        disturbs,
        smooth_price,
        radio.harq_attempts,
        temperature,
    )
    if capped is not None:
        curvature = jax.tree.map(jnp.add, curvature, capped.curvature)
    return PricedPoint(
        smooth=smooth_price,
        objective=objective,
        cluster_latency_s=latency.true_s,
        slope=slopes(chains, smooth, times, worth, disturbs, rent),
        price_per_heard_w=price_per_w,
        curvature=curvature,
        multipliers=Multipliers(
            forward=latency.forward.weight,
            backward=latency.backward.weight,
            cluster=latency.longest.weight,
            hop=sent.hop.weight,
            move=sent.move.weight,
            up=sent.up.weight,
            caps=None if capped is None else capped.multiplier,
        ),
    )


def _each(by_cluster: Array) -> Array:
    return by_cluster
