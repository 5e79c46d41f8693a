"""What V trades: latency against backlog, both under the bounds of drift plus penalty.

Of ``experiments.studies.closed_loop`` with several V. The bounds hold for a policy that solves
(P2) exactly in every round, and their constants are measured, with the latency at the largest V
in place of the optimum:

- latency over reference <= T_opt + (B + q0) / V, with B the mean of half the squared steps
  of all queues and q0 an upper bound of what effective queues above the queues add to (P2):
  the sum of all queue floors, and what those of the run with the largest V did add;
- mean backlog <= (B + q0 + V (T_slack - T_opt)) / slack, with T_slack the latency at the
  smallest V and slack what its worst mean leaves of a budget or target there.

That latency is an estimate from below where the queues still grow after the last round,
so simulate more rounds than the largest V. Networks without slack have no such bound and
are left out.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.statistics import Estimate, log_slope, mean_estimate
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.realisations import (
    Case,
    Realisations,
    select,
)
from experiments.studies.closed_loop_limits import drift_constant, mean_backlog, network_groups

LEAST_SLACK = 0.01
"""Of a budget or target at the smallest V; networks with less are left out."""
BINDING_MEAN = 0.99
"""Of a budget or target; a constraint whose mean comes this near binds."""
BINDING_SHARE = 0.05
"""Share of the networks in which one binds, from which on a V counts in the fits."""

_BOUND = {"linestyle": (0, (1, 1.5)), "linewidth": 1.0}


class Curve(NamedTuple):
    """One policy over its V, arrays ``[P]``, all over the same networks.

    The bounds are nan for a policy that does not look at V.
    """

    policy: str
    networks: int
    v: np.ndarray
    latency: Estimate  # over reference, means over networks
    excess: Estimate  # over the latency at the largest V, paired
    backlog: Estimate  # sum of all queues, mean over rounds
    excess_bound: np.ndarray
    backlog_bound: np.ndarray
    binding: np.ndarray  # whether constraints bind

    @property
    def looks_at_v(self) -> bool:
        """Whether the policy decides otherwise under another V."""
        return not np.isnan(self.excess_bound).any()


def worst_mean(case: Case) -> np.ndarray:
    """Largest mean over its budget or target in every network, ``[R]``."""
    energy = case.values["energy_over_budget"]
    return np.maximum(energy.max(axis=(1, 2)), case.values["divergence_over_target"])


def curves(result: Realisations) -> list[Curve]:
    """Curves of all policies, over networks in which those that look at V leave slack.

    Raises:
      InputError: if there are not two V above 0, or no network leaves slack.
    """
    cases = [_cases(result, name) for name in result.settings["options"]["policies"]]
    kept = network_groups(result)["within_floors"]
    for own in cases:
        if _looks_at_v(own):
            kept = kept & (worst_mean(own[0]) <= 1.0 - LEAST_SLACK)
    if not kept.any():
        v = min(result.settings["options"]["v"])
        problem = f"no network keeps every budget with slack at V = {v:g}"
        raise InputError("control", "budgets", problem, "Raise budgets, or add a smaller V")
    # Effective queues of empty ones, summed over all nodes and the divergence.
    network, control = (result.settings["config"][key] for key in ("network", "control"))
    nodes = network["clusters"] * (network["devices"] + 1)
    floor = nodes * control["energy_queue_floor"] + control["divergence_queue_floor"]
    return [_curve(own, kept, floor) for own in cases]


def _cases(result: Realisations, policy: str) -> list[Case]:
    """Cases of a policy with a V above 0, from the least V on."""
    cases = [case for case in result.cases if case.policy == policy and case.v > 0]
    if len(cases) < 2:
        values = [case.v for case in cases]
        raise InputError("--v", values, "no trade-off to draw", "Simulate several V above 0")
    return cases


def _looks_at_v(cases: Sequence[Case]) -> bool:
    """Whether a policy decides otherwise under another V."""
    return any(
        not np.array_equal(case.values["mean_latency_s"], cases[0].values["mean_latency_s"])
        for case in cases
    )


def _curve(cases: Sequence[Case], kept: np.ndarray, queue_floor: float) -> Curve:
    """Curve over some networks; the bounds of a policy that does not look at V are nan."""
    v = np.array([case.v for case in cases])
    values = [select(case.values, kept) for case in cases]
    latency = np.stack([value["latency_over_reference"] for value in values])
    excess = latency - latency[-1]
    excess_bound = backlog_bound = np.full(v.shape, np.nan)
    if _looks_at_v(cases):
        constant = np.stack([drift_constant(value) for value in values])
        constant += queue_floor + values[-1]["lifted_cost"]
        growth = v[:, None] * np.maximum(excess[0], 0.0)
        slack = 1.0 - worst_mean(cases[0])[kept]
        excess_bound = constant.mean(axis=1) / v
        backlog_bound = np.mean((constant + growth) / slack, axis=1)
    return Curve(
        policy=cases[0].policy,
        networks=int(kept.sum()),
        v=v,
        latency=mean_estimate(latency.T),
        excess=mean_estimate(excess.T),
        backlog=mean_estimate(np.stack([mean_backlog(value) for value in values]).T),
        excess_bound=excess_bound,
        backlog_bound=backlog_bound,
        binding=np.mean([worst_mean(case)[kept] >= BINDING_MEAN for case in cases], axis=1)
        >= BINDING_SHARE,
    )


def slopes(curve: Curve) -> tuple[float, float]:
    """Fitted log-log slopes of excess latency and of backlog over the V that bind."""
    v = curve.v[curve.binding]
    return (
        log_slope(v, curve.excess.value[curve.binding]),
        log_slope(v, curve.backlog.value[curve.binding]),
    )


@style.styled
def draw(result: Realisations) -> Figure:
    """Draw latency, its excess over that at the largest V, and backlog against V.

    A policy that does not look at V is in the first panel alone.
    """
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 2.8)
    panels = figure.subplots(1, 3)
    found = curves(result)
    looks = style.policy_looks(curve.policy for curve in found)
    for curve in found:
        look = looks[curve.policy]
        _points(panels[0], curve.v, curve.latency, look)
        if curve.looks_at_v:
            _points(panels[1], curve.v, curve.excess, look)
            _points(panels[2], curve.v, curve.backlog, look)
            panels[1].plot(curve.v, curve.excess_bound, color=look["color"], **_BOUND)
            panels[2].plot(curve.v, curve.backlog_bound, color=look["color"], **_BOUND)
    _dress(panels, found)
    handles = [
        Line2D([], [], label=f"{name}, 95 % over {curve.networks} networks", **looks[curve.policy])
        for curve, name in ((curve, style.policy_label(curve.policy)) for curve in found)
    ]
    bound = Line2D([], [], color=style.BLACK, **_BOUND)
    bound.set_label(r"bound, with $T_\mathrm{opt}$ = latency at the largest V")
    figure.legend(handles=[*handles, bound], loc="outside upper center", ncols=3)
    return figure


def _points(axes: Axes, v: np.ndarray, mean: Estimate, look: style.Look) -> None:
    """Positive means with their intervals."""
    positive = mean.value > 0
    half = np.nan_to_num(mean.high - mean.value)[positive]
    thin = {"capsize": 2, "elinewidth": 0.8}
    axes.errorbar(v[positive], mean.value[positive], yerr=half, **thin, **look)


def _dress(panels: Sequence[Axes], found: Sequence[Curve]) -> None:
    """Scales, titles with the fitted slopes, and labels."""
    fits = [slopes(curve) for curve in found if curve.looks_at_v]
    titles = (
        "latency",
        "latency above that at the largest V" + _fitted([excess for excess, _ in fits]),
        "backlog, mean over rounds" + _fitted([backlog for _, backlog in fits]),
    )
    labels = ("Latency / reference [–]", "Latency / reference [–]", "Sum of all queues [–]")
    for axes, title, label in zip(panels, titles, labels, strict=True):
        axes.set_xscale("log")
        axes.set_title(title, loc="left")
        axes.set_xlabel("V [–]")
        axes.set_ylabel(label)
    for axes in panels[1:]:
        axes.set_yscale("log")  # an interval that reaches 0 goes down to the frame
        if not axes.has_data():
            style.say_empty(axes, "no policy looks at V")


def _fitted(values: Sequence[float]) -> str:
    """Fitted slopes on a line of their own, in the order of the legend."""
    known = [f"{value:.2f}".replace("-", "−") for value in values if np.isfinite(value)]
    return "\nfitted slope " + ", ".join(known) if known else ""


def describe(result: Realisations) -> list[str]:
    """The fitted slopes of every policy in words."""
    lines = []
    for curve in curves(result):
        used = ", ".join(f"{v:g}" for v in curve.v[curve.binding]) or "none"
        excess, backlog = slopes(curve)
        lines.append(
            f"{curve.policy}, {curve.networks} networks: constraints bind at V = {used}; fitted "
            f"slopes {excess:.2f} of the excess latency and {backlog:.2f} of the backlog"
            if curve.looks_at_v
            else f"{curve.policy}: the same whatever V is"
        )
    return lines
