"""A lower bound on the price of any shares and powers, by CVXPY and Clarabel.

In logarithms of shares and powers everything in (P2) is an exponential of something
affine, or a convex function of a message's log SINR (docs/system-model.md, section 5). The
former are cones that Clarabel knows. The latter, the log of a rate, the hazard and the
inverse survival, are replaced by maxima of tangents, which lie below them. Nothing else
is relaxed: interference, the coupling by powers and all maxima are exact. Tangents are
added where the last solution lies until the bound meets a price, so that it comes to lie
at the optimum itself.
"""

import contextlib
import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.divergence import excess_inverse_survival
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import price
from collapipe_jax.cost.round_cost import RoundCost
from collapipe_jax.errors import InputError
from collapipe_jax.network.channel import spectral_efficiency, transport_block_hazard
from experiments.benchmarks.layout_numbers import Layout, layout_numbers
from experiments.benchmarks.outside_solvers import OutsideSolution, in_double

try:
    import clarabel  # noqa: F401  CVXPY finds it by itself, if it is there
    import cvxpy as cp
except ModuleNotFoundError:  # optional packages; told when they are asked for
    cp = None

_LOG_SINRS = (-4.0, -2.0, 0.0, 2.0, 4.0)
_HAZARDS = (0.01, 0.3, 2.0, 8.0)
_LARGEST_HAZARD = 45.0
_LATEST = 4
_CLOSE = 1e-7
_TOLERANCE = 1e-9

_price = jax.jit(price)


class OutsideBound(NamedTuple):
    """What CVXPY found.

    Attributes:
      lower_bound: no shares and powers cost less with these segments and micro-batches.
      solution: the best point that the bounds came with, or the decision itself.
    """

    lower_bound: float
    solution: OutsideSolution


def lower_bound_with_cvxpy(
    problem: RoundProblem, decision: Decision, rounds: int = 10
) -> OutsideBound:
    """Bound (P2) from below over all shares and powers.

    The value is that of the dual, which is a bound whether or not the solver converged,
    less what the dual's residual may be worth. If the decision is optimal the first round
    settles it.

    Args:
      problem: one round of one network.
      decision: segments and micro-batches to keep; the first tangents touch at its shares
        and powers, which must be positive where used.
      rounds: at most so many, each with new tangents.
    """
    if cp is None:
        raise InputError(
            "cvxpy", None, "the package or its solver is missing", 'Run pip install -e ".[bench]"'
        )
    with jax.enable_x64(True):
        problem, decision = in_double(problem), in_double(decision)
        layout = layout_numbers(problem, decision)
        points = _first_points(problem, layout, decision)
        start = OutsideSolution(decision, float(_price(problem, decision).objective))
        best = OutsideBound(-np.inf, start)
        for _ in range(rounds):
            scale = _price(problem, best.solution.decision)
            bound, model = _solve(problem, layout, points, scale)
            best = best._replace(lower_bound=max(bound, best.lower_bound))
            if model.hazard.value is None:  # the solver failed; what is known stands
                break
            found = _realise(problem, decision, layout, model)
            if found.objective < best.solution.objective:
                best = best._replace(solution=found)
            if best.lower_bound >= (1.0 - _CLOSE) * best.solution.objective:
                break
            points = _with_more(points, model)
    return best


class _Points(NamedTuple):
    """Where tangents touch: a list of arrays, one a tangent.

    Attributes:
      log_sinr: of messages, ``[M]``.
      hazard: of clusters' micro-batches, ``[C]``.
    """

    log_sinr: list[np.ndarray]
    hazard: list[np.ndarray]


class _Model(NamedTuple):
    """Variables and expressions of the conic program.

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


class _Tangent(NamedTuple):
    """Lines that touch a function, one an entry."""

    point: np.ndarray
    value: np.ndarray
    slope: np.ndarray

    def at(self, expression):
        """Their values elsewhere."""
        return self.value + cp.multiply(self.slope, expression - self.point)


def _model(layout: Layout) -> _Model:
    chains, nodes, clusters = layout.chains, layout.heard.shape[0], layout.cluster.pauses.size
    d2d_share, d2d_power, noise = (cp.Variable(nodes) for _ in range(3))
    d2e_share, d2e_power, hazard = (cp.Variable(clusters) for _ in range(3))
    spread = cp.hstack([chains.shares @ d2d_share, d2e_share])
    sent = cp.hstack([chains.sends @ d2d_power, d2e_power])
    heard = cp.hstack([chains.hears @ noise, np.zeros(clusters)])
    log_sinr = np.log(layout.message.sinr) + sent - spread - heard
    return _Model(d2d_share, d2e_share, d2d_power, d2e_power, noise, sent, spread, log_sinr, hazard)


def _solve(
    problem: RoundProblem, layout: Layout, points: _Points, scale: RoundCost
) -> tuple[float, _Model]:
    """Bound by the conic program whose tangents touch at the points.

    Args:
      problem: for the functions that the tangents touch.
      layout: numbers.
      points: where.
      scale: a price whose latency and objective are the units of the program.
    """
    unit_s, unit = float(scale.latency_s), float(scale.objective)
    model = _model(layout)
    slowness = cp.Variable(layout.message.sinr.size)
    log_time = np.log(layout.message.time_s / unit_s) + slowness - model.spread
    ceiling = float(problem.radio.max_spectral_efficiency)
    touching = _tangents(_slowness, problem, points.log_sinr)
    limits = [
        slowness >= -np.log(ceiling),
        *(slowness >= tangent.at(model.log_sinr) for tangent in touching),
        *_resource_limits(layout, model),
    ]
    latency, latency_limits = _latency(layout, model, log_time, unit_s)
    lost, loss_limits = _lost(problem, layout, points, model, unit)
    latency_price = layout.whole.latency_price_per_s * unit_s / unit
    energy = _energy(layout, model.sent + log_time, unit_s / unit)
    program = cp.Problem(
        cp.Minimize(latency_price * latency + energy + lost),
        limits + latency_limits + loss_limits,
    )
    return unit * _dual_value(program) + float(layout.whole.fixed_price), model


def _resource_limits(layout: Layout, model: _Model) -> list:
    """Bands, powers, and what a receiver hears, at least, over its noise."""
    limits = [
        model.d2d_power <= 0,
        model.d2e_power <= 0,
        layout.chains.member @ cp.exp(model.d2d_share) <= 1,
        cp.sum(cp.exp(model.d2e_share)) <= 1,
    ]
    sender, receiver = np.nonzero(layout.heard > 0)
    if sender.size == 0:
        return [*limits, model.noise >= 0]
    log_heard = np.log(layout.heard[sender, receiver])
    parts = cp.exp(model.d2d_power[sender] - model.noise[receiver] + log_heard)
    arrives = np.equal.outer(np.arange(layout.heard.shape[0]), receiver).astype(float)
    return [*limits, cp.exp(-model.noise) + arrives @ parts <= 1]


def _latency(layout: Layout, model: _Model, log_time, unit_s: float) -> tuple[Any, list]:
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
        inverse_share >= cp.exp(-model.d2e_share),
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
    problem: RoundProblem, layout: Layout, points: _Points, model: _Model, unit: float
) -> tuple[Any, list]:
    """Price of losses in units, and what bounds it from below."""
    of = layout.cluster
    if not np.any(of.price_of_excess > 0):
        return 0.0, [model.hazard >= 0]
    counts = np.flatnonzero(layout.message.blocks > 0)
    blocks = layout.message.blocks[counts]
    trip = (layout.chains.forward + layout.chains.backward)[:, counts]
    # No optimum loses more than a known point costs in all; steeper tangents would be of
    # no use, and of no good to the solver's numbers.
    worth = unit / np.maximum(of.price_of_excess, 1e-30 * unit)
    most = np.minimum(np.log1p(worth), _LARGEST_HAZARD)
    least = _log_sinr_of(problem, (trip.T @ most) / blocks)
    touching = [point[counts] for point in points.log_sinr]
    touching += [_log_sinr_of(problem, hazard / blocks) for hazard in _HAZARDS]
    by_sinr = _tangents(_block_hazard, problem, [np.maximum(x, least) for x in touching])
    by_hazard = _tangents(_excess, problem, [np.minimum(x, most) for x in points.hazard])
    of_block, excess = cp.Variable(blocks.size), cp.Variable(of.pauses.size)
    limits = [
        of_block >= 0,
        excess >= 0,
        model.hazard >= (trip * blocks) @ of_block + of.downlink_hazard,
        *(of_block >= tangent.at(model.log_sinr[counts]) for tangent in by_sinr),
        *(excess >= tangent.at(model.hazard) for tangent in by_hazard),
    ]
    return (of.price_of_excess / unit) @ excess, limits


def _dual_value(program) -> float:
    """Value of the dual at what Clarabel returns, less what its residual may be worth.

    For any multipliers ``z`` of the cones, ``q x >= -b z + (A' z + q) x`` at a feasible
    ``x``, which is taken to lie within twice the size of the solution.
    """
    options = {
        "tol_gap_abs": _TOLERANCE,
        "tol_gap_rel": _TOLERANCE,
        "tol_feas": _TOLERANCE,
        "max_threads": 1,
        "accept_unknown": True,
    }
    data, chain, inverse = program.get_problem_data(cp.CLARABEL, solver_opts=options)
    solution = chain.solve_via_data(program, data, solver_opts=options)
    with warnings.catch_warnings(), contextlib.suppress(cp.SolverError):
        warnings.simplefilter("ignore")  # an inaccurate solution still makes a bound
        program.unpack_results(solution, chain, inverse)
    x, z = np.asarray(solution.x), np.asarray(solution.z)
    residual = data["A"].T @ z + data["c"]
    offset = inverse[-1][cp.settings.OFFSET]
    value = float(offset - data["b"] @ z - 2.0 * np.abs(residual) @ (1.0 + np.abs(x)))
    return value if np.isfinite(value) else -np.inf


def _realise(
    problem: RoundProblem, decision: Decision, layout: Layout, model: _Model
) -> OutsideSolution:
    """The shares and powers of a solution, inside the limits, with their price."""

    def spread(log, used):
        values = np.zeros(used.shape)
        values[used] = np.exp(np.minimum(log.value, 0.0))
        return values

    d2d_share = spread(model.d2d_share, layout.active)
    d2e_share = spread(model.d2e_share, layout.present)
    radio = problem.radio
    found = decision.replace(
        d2d_share=jnp.asarray(d2d_share / np.maximum(d2d_share.sum(1, keepdims=True), 1.0)),
        d2d_power_w=spread(model.d2d_power, layout.active) * radio.d2d_power_max_w,
        d2e_share=jnp.asarray(d2e_share / max(d2e_share.sum(), 1.0)),
        d2e_power_w=spread(model.d2e_power, layout.present) * radio.d2e_power_max_w,
    )
    return OutsideSolution(found, float(_price(problem, found).objective))


def _first_points(problem: RoundProblem, layout: Layout, decision: Decision) -> _Points:
    """At the decision, and on a grid."""
    chains, radio = layout.chains, problem.radio
    share = np.asarray(decision.d2d_share)[layout.active]
    power = np.asarray(decision.d2d_power_w / radio.d2d_power_max_w)[layout.active]
    noise = np.log1p(power @ layout.heard)
    d2d = chains.sends @ np.log(power) - chains.shares @ np.log(share) - chains.hears @ noise
    up = decision.d2e_power_w / radio.d2e_power_max_w / decision.d2e_share
    up = np.log(np.asarray(up)[layout.present])
    log_sinr = np.log(layout.message.sinr) + np.concatenate([d2d, up])
    of_block = _tangents(_block_hazard, problem, [log_sinr])[0].value
    trip = chains.forward + chains.backward
    hazard = trip @ (layout.message.blocks * of_block) + layout.cluster.downlink_hazard
    at_gap = np.log(float(radio.snr_gap))
    return _Points(
        [log_sinr, *(np.full_like(log_sinr, x + at_gap) for x in _LOG_SINRS)],
        [hazard, *(np.full_like(hazard, x) for x in (0.0, *_HAZARDS))],
    )


def _with_more(points: _Points, model: _Model) -> _Points:
    """Tangents at a solution added; of more than a few, nearly parallel, Clarabel tires."""
    first = 1 + len(_LOG_SINRS), 2 + len(_HAZARDS)
    found = model.log_sinr.value, model.hazard.value
    return _Points(
        *(
            [*kept[:count], *kept[count:][1 - _LATEST :], point]
            for kept, count, point in zip(points, first, found, strict=True)
        )
    )


# --- functions that tangents touch -----------------------------------------------------------


def _slowness(problem, log_sinr):
    """Log of the seconds for a bit on a hertz, the ceiling aside: convex, falling."""
    radio = problem.radio.replace(max_spectral_efficiency=jnp.inf)
    return -jnp.log(spectral_efficiency(jnp.exp(log_sinr), radio))


def _block_hazard(problem, log_sinr):
    """Hazard of a transport block: convex, falling."""
    return transport_block_hazard(problem.radio, jnp.exp(log_sinr))


def _excess(problem, hazard):
    """Excess inverse survival: convex, rising."""
    del problem
    return excess_inverse_survival(hazard)


def _tangents(function, problem: RoundProblem, points: list[np.ndarray]) -> list[_Tangent]:
    """Tangents of a function of one number, one for each array of points."""
    lines = [_values_and_slopes(function, problem, point) for point in points]
    return [
        _Tangent(point, np.asarray(value), np.asarray(slope))
        for point, (value, slope) in zip(points, lines, strict=True)
    ]


@partial(jax.jit, static_argnums=0)
def _values_and_slopes(function, problem, flat):
    return jax.vmap(jax.value_and_grad(lambda x: function(problem, x)))(flat)


def _log_sinr_of(problem: RoundProblem, hazard: np.ndarray) -> np.ndarray:
    """Log SINR at which a transport block has this hazard: (6) turned round."""
    # All attempts fail with probability 1 - e^-hazard, one with that to the 1 / A_H.
    log_fails = np.log(-np.expm1(-hazard)) / float(problem.radio.harq_attempts)
    z = -np.log(-np.expm1(log_fails))
    return np.log(float(problem.radio.outage_threshold) / z)
