"""Are the long-term constraints kept: mean energy, worst energy queue, divergence queue.

Above means over networks with Student's 95 % intervals, below medians with intervals that hold
for any distribution: where a few networks are hopeless, only medians speak for the others. A line
ends where its value is infinite or unknown.

Energy is the mean so far of all nodes together, over the sum of their budgets: above 1 some
node is over its budget for certain, below 1 a single node may be. Of the nodes' queues the
longest is drawn.
"""

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.core.statistics import Estimate, mean_estimate, median_estimate
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.figures.comparison import horizon, only_runnable
from collapipe_jax.runs.figures.queues import running_mean
from collapipe_jax.runs.results.realisations import Realisations

LABELS = {
    "energy": "Mean energy so far\n/ sum of budgets [–]",
    "energy_queue": "Worst energy queue [–]",
    "divergence_queue": "Divergence queue [–]",
}
_MARKS = 8  # markers along a line


def energy_over_budget(result: Realisations, policy: str) -> np.ndarray:
    """Mean energy so far of all nodes over the sum of their budgets, ``[R, T]``."""
    energy_j = result.policies[policy]["energy_j"].astype(np.float64)
    budget_j = result.networks["energy_budget_j"].astype(np.float64).sum(axis=(1, 2))
    return running_mean(energy_j.T).T / budget_j[:, None]


def constraint_series(result: Realisations) -> dict[str, dict[str, np.ndarray]]:
    """What the panels show: by panel and policy, ``[R, T]`` each."""
    policies = result.policies
    return {
        "energy": {name: energy_over_budget(result, name) for name in policies},
        "energy_queue": {name: policies[name]["worst_energy_queue"] for name in policies},
        "divergence_queue": {name: policies[name]["divergence_queue"] for name in policies},
    }


@style.styled
def draw(result: Realisations) -> Figure:
    """Draw means above and medians below, one column a constraint."""
    result = only_runnable(result)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 4.3)
    panels = figure.subplots(2, 3, sharex=True)
    for column, (panel, series) in enumerate(constraint_series(result).items()):
        _overlay(panels[0, column], series, mean_estimate)
        _overlay(panels[1, column], series, median_estimate)
        style.round_axis(panels[1, column])
        for axes in panels[:, column]:
            axes.set_ylabel(LABELS[panel])
    for axes in panels[:, 0]:
        axes.axhline(1.0, **style.RULE)
    panels[0, 0].set_title(f"mean over {horizon(result)}", loc="left")
    panels[1, 0].set_title("median over networks", loc="left")
    handles = [*style.policy_handles(result.policies), Line2D([], [], label="budget", **style.RULE)]
    figure.legend(handles=handles, loc="outside upper center", ncols=5)
    return figure


def _overlay(
    axes: Axes, series: Mapping[str, np.ndarray], estimate: Callable[[np.ndarray], Estimate]
) -> None:
    """Lines of all policies on their bands, on one scale from 0."""
    estimates = {name: estimate(values) for name, values in series.items()}
    highest = [np.ravel(part) for each in estimates.values() for part in (each.value, each.high)]
    highest = np.concatenate(highest)
    top = style.stretched_axis(axes, max(1.2, highest.max(where=np.isfinite(highest), initial=0.0)))
    if not np.isfinite(highest).any():
        style.say_empty(axes, "no finite value")
    looks = style.policy_looks(estimates)
    for name, each in estimates.items():
        rounds = np.arange(1, each.value.size + 1)
        every = style.mark_every(rounds.size, _MARKS)
        band = each.within((0.0, top))
        color = looks[name]["color"]
        axes.fill_between(rounds, band.low, band.high, color=color, alpha=0.08, linewidth=0.0)
        for end in (band.low, band.high):  # visible where bands overlap
            axes.plot(rounds, end, color=color, linewidth=0.4, alpha=0.7)
        axes.plot(rounds, each.value, markevery=every, clip_on=False, **looks[name])
