"""(P2) with the layout fixed as a conic program, in logarithms of shares and powers.

All but the functions of :mod:`tangents` is exact: interference, the coupling by powers, maxima.
Shapes: ``A`` nodes that send or hear in a cluster, ``C`` clusters that take part, ``M`` messages.
"""

from typing import Any, NamedTuple

import numpy as np

from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round_cost import RoundCost
from experiments.benchmarks.solver.layout_numbers import Layout
from experiments.benchmarks.solver.tangents import (
    Tangent,
    block_hazard,
    excess_survival,
    log_sinr_of,
    slowness_of,
    tangents,
)

try:
    import cvxpy as cp
except ModuleNotFoundError:  # an optional package; told when it is asked for
    cp = None

HAZARDS = (0.01, 0.3, 2.0, 8.0)
"""At which the hazard and its price always have tangents."""
_LARGEST_HAZARD = 45.0  # beyond, exp(hazard) leaves the numbers that Clarabel copes with


class Points(NamedTuple):
    """Where tangents touch: a list of arrays, one a tangent.

    Attributes:
      log_sinr: of messages, ``[M]``.
      hazard: of clusters' micro-batches, ``[C]``.
    """

    log_sinr: list[np.ndarray]
    hazard: list[np.ndarray]


class Variables(NamedTuple):
    """Variables of the program and expressions in them.

    Attributes:
      d2d_share, d2e_share: logarithms, ``[A]`` and ``[C]``.
      d2d_power, d2e_power: logarithms over their maxima, ``[A]`` and ``[C]``.
      noise: log of noise and interference over noise, ``[A]``.
      sent, spread, log_sinr: logs of a message's power and share, and of its SINR, ``[M]``.
      hazard: of a micro-batch, ``[C]``.
    """

    d2d_share: Any
    d2e_share: Any
    d2d_power: Any
    d2e_power: Any
    noise: Any
    sent: Any
    spread: Any
    log_sinr: Any
    hazard: Any


def conic_program(
    problem: RoundProblem, layout: Layout, points: Points, scale: RoundCost
) -> tuple[Any, Variables]:
    """The least price in units, all prices that the layout alone sets left out.

    Args:
      problem: for the functions that the tangents touch.
      layout: numbers.
      points: where they touch.
      scale: a price whose latency and objective are the units of the program.

    Returns:
      A CVXPY problem and its variables.
    """
    unit_s, unit = float(scale.latency_s), float(scale.objective)
    variables = _variables(layout)
    slowness = cp.Variable(layout.message.sinr.size)
    log_time = np.log(layout.message.time_s / unit_s) + slowness - variables.spread
    ceiling = float(problem.radio.max_spectral_efficiency)
    touching = tangents(slowness_of, problem, points.log_sinr)
    limits = [
        slowness >= -np.log(ceiling),
        *(slowness >= _line(tangent, variables.log_sinr) for tangent in touching),
        *_resource_limits(layout, variables),
    ]
    latency, latency_limits = _latency(layout, variables, log_time, unit_s)
    lost, loss_limits = _lost(problem, layout, points, variables, unit)
    latency_price = layout.whole.latency_price_per_s * unit_s / unit
    energy = _energy(layout, variables.sent + log_time, unit_s / unit)
    program = cp.Problem(
        cp.Minimize(latency_price * latency + energy + lost),
        limits + latency_limits + loss_limits,
    )
    return program, variables


def _line(tangent: Tangent, expression: Any) -> Any:
    """Values of lines elsewhere than where they touch."""
    return tangent.value + cp.multiply(tangent.slope, expression - tangent.point)


def _variables(layout: Layout) -> Variables:
    chains, nodes, clusters = layout.chains, layout.heard.shape[0], layout.cluster.pauses.size
    d2d_share, d2d_power, noise = (cp.Variable(nodes) for _ in range(3))
    d2e_share, d2e_power, hazard = (cp.Variable(clusters) for _ in range(3))
    spread = cp.hstack([chains.shares @ d2d_share, d2e_share])
    sent = cp.hstack([chains.sends @ d2d_power, d2e_power])
    heard = cp.hstack([chains.hears @ noise, np.zeros(clusters)])
    log_sinr = np.log(layout.message.sinr) + sent - spread - heard
    return Variables(
        d2d_share, d2e_share, d2d_power, d2e_power, noise, sent, spread, log_sinr, hazard
    )


def _resource_limits(layout: Layout, variables: Variables) -> list:
    """Bands, powers, and what a receiver hears, at least, over its noise."""
    limits = [
        variables.d2d_power <= 0,
        variables.d2e_power <= 0,
        layout.chains.member @ cp.exp(variables.d2d_share) <= 1,
        cp.sum(cp.exp(variables.d2e_share)) <= 1,
    ]
    sender, receiver = np.nonzero(layout.heard > 0)
    if sender.size == 0:
        return [*limits, variables.noise >= 0]
    log_heard = np.log(layout.heard[sender, receiver])
    parts = cp.exp(variables.d2d_power[sender] - variables.noise[receiver] + log_heard)
    arrives = np.equal.outer(np.arange(layout.heard.shape[0]), receiver).astype(float)
    return [*limits, cp.exp(-variables.noise) + arrives @ parts <= 1]


def _latency(layout: Layout, variables: Variables, log_time, unit_s: float) -> tuple[Any, list]:
    """Latency of the round in units, and what bounds it from below."""
    chains, of, whole = layout.chains, layout.cluster, layout.whole
    time, latency = cp.Variable(log_time.size), cp.Variable()
    inverse_share, longest = cp.Variable(of.pauses.size), cp.Variable((2, of.pauses.size))
    overhead = whole.overhead_s / unit_s
    downlink = cp.multiply(of.downlink_s / unit_s, inverse_share)
    flow = (of.forward_s + of.backward_s) / unit_s + (chains.forward + chains.backward) @ time
    flow += downlink + cp.multiply(of.pauses, longest[0] + longest[1])
    model_moves = cp.multiply(of.model_per_uplink, time[-of.pauses.size :])
    model_moves += cp.multiply(of.model_downlink_s / unit_s, inverse_share)
    limits = [
        time >= cp.exp(log_time),
        inverse_share >= cp.exp(-variables.d2e_share),
        longest[0] >= of.forward_longest_s / unit_s,
        longest[1] >= of.backward_longest_s / unit_s,
        longest[1] >= downlink + overhead,
        latency >= whole.local_steps * flow + chains.moves @ time + model_moves,
    ]
    for direction, messages in enumerate((chains.forward, chains.backward)):
        cluster, message = np.nonzero(messages)
        limits.append(longest[direction][cluster] >= time[message] + overhead)
    return latency, limits


def _energy(layout: Layout, log_power_time, unit: float):
    """Price of what is spent on air, powers over their maxima and times in units."""
    price_per_s = layout.message.price_per_s * unit
    paid = np.flatnonzero(price_per_s > 0)
    if paid.size == 0:
        return 0.0
    return cp.sum(cp.exp(log_power_time[paid] + np.log(price_per_s[paid])))


def _lost(
    problem: RoundProblem, layout: Layout, points: Points, variables: Variables, unit: float
) -> tuple[Any, list]:
    """Price of losses in units, and what bounds it from below."""
    of = layout.cluster
    if not np.any(of.price_of_excess > 0):
        return 0.0, [variables.hazard >= 0]
    counts = np.flatnonzero(layout.message.blocks > 0)
    blocks = layout.message.blocks[counts]
    trip = (layout.chains.forward + layout.chains.backward)[:, counts]
    # No optimum loses more than a known point costs in all; steeper tangents would be of
    # no use, and of no good to the solver's numbers.
    worth = unit / np.maximum(of.price_of_excess, 1e-30 * unit)
    most = np.minimum(np.log1p(worth), _LARGEST_HAZARD)
    least = log_sinr_of(problem, (trip.T @ most) / blocks)
    touching = [point[counts] for point in points.log_sinr]
    touching += [log_sinr_of(problem, hazard / blocks) for hazard in HAZARDS]
    by_sinr = tangents(block_hazard, problem, [np.maximum(x, least) for x in touching])
    by_hazard = tangents(excess_survival, problem, [np.minimum(x, most) for x in points.hazard])
    of_block, excess = cp.Variable(blocks.size), cp.Variable(of.pauses.size)
    limits = [
        of_block >= 0,
        excess >= 0,
        variables.hazard >= (trip * blocks) @ of_block + of.downlink_hazard,
        *(of_block >= _line(tangent, variables.log_sinr[counts]) for tangent in by_sinr),
        *(excess >= _line(tangent, variables.hazard) for tangent in by_hazard),
    ]
    return (of.price_of_excess / unit) @ excess, limits
