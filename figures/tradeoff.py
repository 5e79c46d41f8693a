"""What V trades: latency against backlog, both under the bounds of drift plus penalty.

    python -m figures.tradeoff --workdir=DIR [--out=DIR]

Reads the files of ``experiments.closed_loop`` with several V and writes ``tradeoff.pdf`` and
``tradeoff.png``. The bounds hold for a policy that solves (P2) exactly in every round, and
their constants are measured, with the latency at the largest V standing for the optimum:

- latency over reference <= T_opt + (B + q0) / V, with B the mean of half the squared steps
  of all queues and q0 an upper bound of what prices above the queues add to (P2): the sum of
  all reserve prices, and what the prices of the run with the largest V did add;
- mean backlog <= (B + q0 + V (T_slack - T_opt)) / slack, with T_slack the latency at the
  smallest V and slack what its worst mean leaves of a budget or target there.

That latency is an estimate from below where the queues still grow after the last round,
so simulate more rounds than the largest V. Networks without slack have no such bound and
are left out.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.errors import InputError
from experiments.closed_loop_files import Case, ClosedLoop, load_closed_loop
from experiments.closed_loop_summary import (
    drift_constant,
    mean_backlog,
    network_groups,
)
from experiments.intervals import mean_interval
from figures import style
from figures.command_line import out_dir, print_paths, result_parser

LEAST_SLACK = 0.01
"""Of a budget or target at the smallest V; networks with less are left out."""
BINDING_MEAN = 0.99
"""Of a budget or target; a constraint whose mean comes this near binds."""
BINDING_SHARE = 0.05
"""Share of the networks in which one binds, from which on a V counts in the fits."""

_BOUND_DASHES = (0, (1, 1.5))


class Curve(NamedTuple):
    """One policy over its V, all over the same networks.

    Attributes:
      policy: its name.
      networks: how many there are.
      v: weights of latency, ``[P]``.
      latency: over reference, mean and half width of the interval, ``[P, 2]``.
      excess: over the latency at the largest V, paired, ``[P, 2]``.
      backlog: sum of all queues, mean over rounds, ``[P, 2]``.
      excess_bound, backlog_bound: ``[P]``; nan for a policy that does not look at V.
      binding: V at which constraints bind, ``[P]``.
    """

    policy: str
    networks: int
    v: np.ndarray
    latency: np.ndarray
    excess: np.ndarray
    backlog: np.ndarray
    excess_bound: np.ndarray
    backlog_bound: np.ndarray
    binding: np.ndarray

    @property
    def looks_at_v(self) -> bool:
        """Whether the policy decides otherwise under another V."""
        return not np.isnan(self.excess_bound).any()


def worst_mean(case: Case) -> np.ndarray:
    """Largest mean over its budget or target in every network, ``[R]``."""
    energy = case.values["energy_over_budget"]
    return np.maximum(energy.max(axis=(1, 2)), case.values["divergence_over_target"])


def curves(result: ClosedLoop) -> list[Curve]:
    """Curves of all policies, over networks in which those that look at V leave slack.

    Raises:
      InputError: if there are not two V above 0, or no network leaves slack.
    """
    policies = result.settings["closed_loop"]["policies"]
    cases = {name: _cases(result, name) for name in policies}
    kept = network_groups(result)["within_floors"]
    for own in cases.values():
        if _looks_at_v(own):
            kept = kept & (worst_mean(own[0]) <= 1.0 - LEAST_SLACK)
    if not kept.any():
        v = min(result.settings["closed_loop"]["v"])
        problem = f"no network keeps every budget with slack at V = {v:g}"
        raise InputError("control", "budgets", problem, "Raise budgets, or add a smaller V")
    reserve = sum_of_reserves(result)
    return [_curve(own, kept, reserve) for own in cases.values()]


def sum_of_reserves(result: ClosedLoop) -> float:
    """What a policy is shown above empty queues, of all nodes and of the divergence."""
    network, control = (result.settings["config"][key] for key in ("network", "control"))
    nodes = network["clusters"] * (network["devices"] + 1)
    return nodes * control["energy_queue_floor"] + control["divergence_queue_floor"]


def _cases(result: ClosedLoop, policy: str) -> list[Case]:
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


def _curve(cases: Sequence[Case], kept: np.ndarray, reserve: float) -> Curve:
    """Curve over some networks; the bounds of a policy that does not look at V are nan."""
    v = np.array([case.v for case in cases])
    values = [{name: value[kept] for name, value in case.values.items()} for case in cases]
    latency = np.stack([value["latency_over_reference"] for value in values])
    excess = latency - latency[-1]
    excess_bound = backlog_bound = np.full(v.shape, np.nan)
    if _looks_at_v(cases):
        constant = np.stack([drift_constant(value) for value in values])
        constant += reserve + values[-1]["lifted_cost"]
        growth = v[:, None] * np.maximum(excess[0], 0.0)
        slack = 1.0 - worst_mean(cases[0])[kept]
        excess_bound = constant.mean(axis=1) / v
        backlog_bound = np.mean((constant + growth) / slack, axis=1)
    return Curve(
        policy=cases[0].policy,
        networks=int(kept.sum()),
        v=v,
        latency=_intervals(latency),
        excess=_intervals(excess),
        backlog=_intervals([mean_backlog(value) for value in values]),
        excess_bound=excess_bound,
        backlog_bound=backlog_bound,
        binding=np.array(
            [np.mean(worst_mean(case)[kept] >= BINDING_MEAN) >= BINDING_SHARE for case in cases]
        ),
    )


def _intervals(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Mean and half width of the 95 % interval of every row; unknown ones are nan."""
    intervals = [mean_interval(row) for row in rows]
    return np.array([[part["mean"], part["ci95"]] for part in intervals], np.float64)


def log_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Slope of a line through the logarithms; nan through fewer than two positive points."""
    use = (x > 0) & (y > 0)
    if use.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(x[use]), np.log(y[use]), 1)[0])


def slopes(curve: Curve) -> tuple[float, float]:
    """Fitted log-log slopes of excess latency and of backlog over the V that bind."""
    v = curve.v[curve.binding]
    return (
        log_slope(v, curve.excess[curve.binding, 0]),
        log_slope(v, curve.backlog[curve.binding, 0]),
    )


@style.styled
def draw(result: ClosedLoop) -> Figure:
    """Draw latency, its excess over that at the largest V, and backlog against V.

    A policy that does not look at V shows in the first panel alone.

    Args:
      result: a run over several V.
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
            _bound(panels[1], curve.v, curve.excess_bound, look)
            _bound(panels[2], curve.v, curve.backlog_bound, look)
    _dress(panels, found)
    _legend(figure, found)
    return figure


def _points(axes: Axes, v: np.ndarray, mean_ci: np.ndarray, look: style.LineLook) -> None:
    """Positive means with their intervals."""
    shown = mean_ci[:, 0] > 0
    axes.errorbar(
        v[shown],
        mean_ci[shown, 0],
        yerr=np.nan_to_num(mean_ci[shown, 1]),
        capsize=2,
        elinewidth=0.8,
        **look._asdict(),
    )


def _bound(axes: Axes, v: np.ndarray, bound: np.ndarray, look: style.LineLook) -> None:
    axes.plot(v, bound, color=look.color, linestyle=_BOUND_DASHES, linewidth=1.0)


def _dress(panels: Sequence[Axes], found: Sequence[Curve]) -> None:
    """Scales, titles with the fitted slopes, and labels."""
    fits = [slopes(curve) for curve in found if curve.looks_at_v]
    titles = (
        "latency",
        "latency above that at the largest V" + _told([excess for excess, _ in fits]),
        "backlog, mean over rounds" + _told([backlog for _, backlog in fits]),
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


def _told(values: Sequence[float]) -> str:
    """Fitted slopes on a line of their own, in the order of the legend."""
    known = [f"{value:.2f}".replace("-", "−") for value in values if np.isfinite(value)]
    return "\nfitted slope " + ", ".join(known) if known else ""


def _legend(figure: Figure, found: Sequence[Curve]) -> None:
    """Who is who, and over how many networks."""
    looks, handles = style.policy_looks(curve.policy for curve in found), []
    for curve in found:
        name = f"{style.policy_label(curve.policy)}, 95 % over {curve.networks} networks"
        handles.append(Line2D([], [], label=name, **looks[curve.policy]._asdict()))
    bound = Line2D([], [], color=style.BLACK, linestyle=_BOUND_DASHES, linewidth=1.0)
    bound.set_label(r"bound, with $T_\mathrm{opt}$ = latency at the largest V")
    figure.legend(handles=[*handles, bound], loc="outside upper center", ncols=3)


def main(argv: Sequence[str]) -> None:
    """Draw the figure from the run on file and print the fitted slopes."""
    options = result_parser(__doc__, "experiments.closed_loop").parse_args(argv)
    result = load_closed_loop(options.workdir[0])
    print_paths(style.save(draw(result), out_dir(options), "tradeoff"))
    for curve in curves(result):
        print(_fit_line(curve))


def _fit_line(curve: Curve) -> str:
    """The fitted slopes in words."""
    if not curve.looks_at_v:
        return f"{curve.policy}: the same whatever V is"
    used = ", ".join(f"{v:g}" for v in curve.v[curve.binding]) or "none"
    excess, backlog = slopes(curve)
    return (
        f"{curve.policy}, {curve.networks} networks: constraints bind at V = {used}; fitted "
        f"slopes {excess:.2f} of the excess latency and {backlog:.2f} of the backlog"
    )


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
