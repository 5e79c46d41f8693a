"""Accelerated projected gradient on the logarithms of shares and powers.

For a fixed layout (P2) is jointly convex in them (docs/system-model.md, section 5). Steps
are scaled by an estimate of the curvature along each variable, carry momentum that restarts
where it leads uphill, and return to the simplices and boxes by projection in the same
scale. The multipliers of the maxima follow in small steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.smooth_maximum import add_up
from collapipe_jax.allocation.variables import Multipliers, PricedPoint, Resources

LEAST_LOG_POWER = -14.0
"""Least power, 61 dB under its maximum."""
LEAST_LOG_SHARE = -14.0

_MULTIPLIER_STEP = 0.2
_MOMENTUM = 0.9
_LEAST_STEP, _SHORTER, _LONGER = 0.05, 0.8, 1.05
_LARGEST_MOVE = 2.0
_LEAST_CURVATURE = 1e-5
_NEWTON_STEPS = 2
_FULL = 1e-4


class Descent(NamedTuple):
    """Where a descent has got to.

    Attributes:
      logs: logarithms of shares, and of powers over their maxima.
      multipliers: of the maxima there.
      objective: of this point, the best that was met.
      cluster_latency_s: there, ``[N, ...]``.
      priced: all of its price, if asked for.
    """

    logs: Resources
    multipliers: Multipliers
    objective: Array
    cluster_latency_s: Array
    priced: PricedPoint | None = None


class _State(NamedTuple):
    reached: Resources
    ahead: Resources
    multipliers: Multipliers
    best: Descent
    step: Array
    age: Array
    last: Array
    priced: PricedPoint | None


Pricer = Callable[[Resources, Multipliers], PricedPoint]
"""Price of logarithms of shares and powers, for multipliers."""


def descend(
    pricer: Pricer,
    active: Array,
    logs: Resources,
    multipliers: Multipliers,
    steps: int | Array,
    joint: bool = True,
    with_price: bool = False,
) -> Descent:
    """Take steps downhill.

    Args:
      pricer: with prices ``[...]``, or ``[N, ...]`` where clusters are priced on their own.
      active: nodes, ``[P, N, ...]``.
      logs: where to start.
      multipliers: to start with.
      steps: how many points to look at, 1 or more; the same for every lane.
      joint: whether clusters share a price and the D2E band. If not, each descends by
        itself.
      with_price: whether to look at the best point once more in the end, for all of its
        price.

    Returns:
      The best point met, the start included. Under caps, which on the way are missed, the
      last one.
    """
    capped = multipliers.caps is not None
    total = add_up if joint else lambda by_cluster: by_cluster
    shape = active.shape[2:] if joint else active.shape[1:]

    def body(number, state):
        point = state.ahead, state.multipliers
        if with_price:  # the last look goes back
            best = state.best.logs, state.best.multipliers
            point = jax.tree.map(lambda a, b: jnp.where(number == steps, a, b), best, point)
        logs, multipliers = point
        priced = pricer(logs, multipliers)
        here = Descent(logs, multipliers, priced.objective, priced.cluster_latency_s)
        best = here if capped else _better(here, state.best)
        slope = jax.tree.map(lambda s: jnp.where(jnp.isfinite(s), s, 0.0), priced.slope)
        scale = _scale(priced.curvature, slope, logs, state.step, total)
        moved = _project_step(logs, slope, scale, active, joint)
        uphill = total(_along(slope, moved, state.reached)) > 0
        age = jnp.where(uphill, 0.0, state.age + 1.0)
        momentum = jnp.minimum(age / (age + 3.0), _MOMENTUM)
        ahead = jax.tree.map(lambda new, old: new + momentum * (new - old), moved, state.reached)
        step = jnp.where(
            priced.smooth > state.last,
            jnp.maximum(state.step * _SHORTER, _LEAST_STEP),
            jnp.minimum(state.step * _LONGER, 1.0),
        )
        ahead = to_limits(ahead, active, joint)
        better = jax.tree.map(_follow, multipliers, priced.multipliers)
        known = priced if with_price else None
        return _State(moved, ahead, better, best, step, age, priced.smooth, known)

    logs = to_limits(logs, active, joint)
    highest, one = jnp.full(shape, jnp.inf), jnp.ones(shape)
    start = Descent(logs, multipliers, highest, jnp.full(active.shape[1:], jnp.inf))
    state = _State(logs, logs, multipliers, start, one, jnp.zeros(shape), highest, None)
    if not with_price:
        return jax.lax.fori_loop(0, steps, body, state).best
    unknown = PricedPoint(
        highest, highest, start.cluster_latency_s, logs, logs.d2d_power, logs, multipliers
    )
    end = jax.lax.fori_loop(0, steps + 1, body, state._replace(priced=unknown))
    return end.best._replace(priced=end.priced)


def _follow(old: Array, new: Array) -> Array:
    return old + _MULTIPLIER_STEP * (new - old)


def _better(new: Descent, old: Descent) -> Descent:
    wins = new.objective < old.objective
    return jax.tree.map(lambda one, other: jnp.where(wins, one, other), new, old)


def _along(slope: Resources, new: Resources, old: Resources) -> Array:
    """Slope along a move, ``[N, ...]``."""
    part = jax.tree.map(lambda s, a, b: s * (a - b), slope, new, old)
    return add_up(part.d2d_share + part.d2d_power) + part.d2e_share + part.d2e_power


def _scale(curvature, slope, logs, step, total) -> Resources:
    """What slopes are divided by: curvatures, those of shares with that of their band."""
    band = add_up(jnp.abs(slope.d2d_share))
    d2e_band = total(jnp.abs(slope.d2e_share))
    tiny = _LEAST_CURVATURE * total(band + jnp.abs(slope.d2e_share)) + 1e-30
    curvature = jax.tree.map(
        lambda c: jnp.where(jnp.isfinite(c) & (c >= 0), c, 1e30) + tiny, curvature
    )
    bent = curvature._replace(
        d2d_share=curvature.d2d_share + band * jnp.exp(logs.d2d_share),
        d2e_share=curvature.d2e_share + d2e_band * jnp.exp(logs.d2e_share),
    )
    return jax.tree.map(lambda c: c / step, bent)


def _project_step(logs, slope, scale, active, joint) -> Resources:
    """A step down the slope, projected to simplices and boxes in the step's own scale."""

    def step(log, slope, scale):
        return log - jnp.clip(slope / scale, -_LARGEST_MOVE, _LARGEST_MOVE)

    moved = jax.tree.map(step, logs, slope, scale)
    d2d_share = _project_band(moved.d2d_share, logs.d2d_share, scale.d2d_share, active)
    if joint:
        present = active[0]
        d2e_share = _project_band(moved.d2e_share, logs.d2e_share, scale.d2e_share, present)
    else:
        d2e_share = moved.d2e_share
    return to_limits(moved._replace(d2d_share=d2d_share, d2e_share=d2e_share), active, joint)


def _project_band(moved: Array, logs: Array, scale: Array, used: Array) -> Array:
    """Nearest shares of sum at most 1 (to first order), distances weighed by ``scale``.

    Shares fall along ``share / scale`` by a multiplier of the band, found by Newton steps
    on a convex decreasing sum. What they leave is left to :func:`to_limits`.
    """
    fall = jnp.where(used, jnp.exp(logs) / scale, 0.0)
    share = jnp.where(used, jnp.exp(moved), 0.0)
    price = jnp.zeros(moved.shape[1:])
    for _ in range(_NEWTON_STEPS):
        now = share * jnp.exp(-price * fall)
        total = add_up(now)
        price = price + jnp.maximum(jnp.log(total), 0.0) * total / jnp.maximum(
            add_up(now * fall), 1e-30
        )
    return moved - price * fall


def to_limits(logs: Resources, active: Array, joint: bool = True) -> Resources:
    """Logarithms moved into their limits, all shares of a band by one factor.

    Args:
      logs: any finite numbers.
      active: nodes, ``[P, N, ...]``.
      joint: whether the clusters' D2E shares make up a band; if not, each is at most 1.
    """

    def fit(log, used):
        log = jnp.maximum(log, LEAST_LOG_SHARE)
        total = add_up(jnp.where(used, jnp.exp(log), 0.0))
        return jnp.where(used, log - jnp.log(jnp.maximum(total, 1.0)), 0.0)

    present = active[0]
    one_by_one = jnp.where(present, jnp.clip(logs.d2e_share, LEAST_LOG_SHARE, 0.0), 0.0)
    return Resources(
        fit(logs.d2d_share, active),
        jnp.where(active, jnp.clip(logs.d2d_power, LEAST_LOG_POWER, 0.0), 0.0),
        fit(logs.d2e_share, present) if joint else one_by_one,
        jnp.where(present, jnp.clip(logs.d2e_power, LEAST_LOG_POWER, 0.0), 0.0),
    )


def band_price(slope: Array) -> Array:
    """Multiplier of a full band: at the best, a slope is minus it times its share.

    Args:
      slope: by the logarithms of all its shares, over the first axis; 0 where idle.
    """
    return jnp.maximum(-add_up(slope), 0.0)


class Certificate(NamedTuple):
    """How far a point can be from the best for its layout.

    Attributes:
      lower_bound: of (P2) with these segments and micro-batches, ``[...]``, over shares
        and powers that are at least e^-14 of the largest (61 dB) where they are used.
        Rounding, in single precision some 1e-6 of the objective, is not allowed for.
      residual: of the KKT conditions: sizes of the slopes that limits do not explain, over
        the objective, ``[...]``.
    """

    lower_bound: Array
    residual: Array


def certify(priced: PricedPoint, logs: Resources, active: Array) -> Certificate:
    """Certificate of a point from the smooth price there.

    The smooth price is convex and nowhere above (P2), so its tangent, at its lowest within
    the limits, is a lower bound.

    Args:
      priced: all clusters together.
      logs: the point.
      active: nodes, ``[P, N, ...]``.
    """
    slope, present = priced.slope, active[0]
    falls = [
        add_up(_lowest_on_band(slope.d2d_share, logs.d2d_share, active)),
        _lowest_on_band(slope.d2e_share, logs.d2e_share, present),
        add_up(add_up(_lowest_in_box(slope.d2d_power, logs.d2d_power, active))),
        add_up(_lowest_in_box(slope.d2e_power, logs.d2e_power, present)),
    ]
    left = [
        add_up(_unexplained_on_band(slope.d2d_share, logs.d2d_share, active)),
        _unexplained_on_band(slope.d2e_share, logs.d2e_share, present),
        add_up(add_up(_unexplained_in_box(slope.d2d_power, logs.d2d_power, active))),
        add_up(_unexplained_in_box(slope.d2e_power, logs.d2e_power, present)),
    ]
    size = jnp.where(priced.objective > 0, priced.objective, 1.0)
    return Certificate(priced.smooth + sum(falls), sum(left) / size)


def _lowest_on_band(slope, log, used):
    """Least of ``slope (x - log)`` over shares ``e^x`` of sum at most 1."""
    down = jnp.where(used & (slope < 0), -slope, 0.0)
    total = add_up(down)
    best = jnp.log(jnp.maximum(down, 1e-30) / jnp.maximum(total, 1e-30))
    gained = jnp.where(down > 0, -down * (best - log), 0.0)
    lost = jnp.where(used & (slope > 0), slope * (LEAST_LOG_SHARE - log), 0.0)
    return add_up(gained + lost)


def _lowest_in_box(slope, log, used):
    """Least of ``slope (x - log)`` over ``x`` between the least logarithm and 0."""
    end = jnp.where(slope < 0, 0.0, LEAST_LOG_POWER)
    return jnp.where(used, slope * (end - log), 0.0)


def _unexplained_on_band(slope, log, used):
    """Sizes of slopes that no multiplier of the band cancels, summed over the band."""
    share = jnp.where(used, jnp.exp(log), 0.0)
    full = add_up(share) > 1.0 - _FULL
    price = jnp.where(full, band_price(slope), 0.0)
    return add_up(jnp.where(used, jnp.abs(slope + price * share), 0.0))


def _unexplained_in_box(slope, log, used):
    held = ((log >= -_FULL) & (slope < 0)) | ((log <= LEAST_LOG_POWER + _FULL) & (slope > 0))
    return jnp.where(used & ~held, jnp.abs(slope), 0.0)
