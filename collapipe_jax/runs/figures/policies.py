"""Policies side by side: latency and where it goes, compute, energy and divergence.

A network counts with its mean over the rounds. Latencies are heavy-tailed over networks: one
bad link multiplies them by hundreds, so a mean rests on few networks and its interval may
reach 0. Each row therefore shows every network, the median with an interval that holds for
any distribution, and the mean with Student's; an axis is logarithmic where its values differ
by more than a factor of 30, and begins at 0 elsewhere. An interval that leaves a panel ends
at its frame. For the same reason the parts of the latency are shares: those of the slowest
cluster, its sums over the rounds, within every network, then averaged over networks, each of
which weighs the same. Networks in which a round never ends have no shares.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from collapipe_jax.runs.figures import style
from collapipe_jax.runs.figures.comparison import (
    ROW_IN,
    draw_rows,
    horizon,
    name_rows,
    only_runnable,
    row_legend,
)
from collapipe_jax.runs.results.realisations import Realisations
from collapipe_jax.runs.studies.comparison import round_means

PANELS = {
    "latency_s": "Latency of a round [s]",
    "compute_latency_s": "Compute latency [s]",
    "energy_j": "Energy of a round, all nodes [J]",
    "divergence_over_target": "Divergence / target [–]",
}


def part_shares(parts_s: np.ndarray) -> np.ndarray:
    """Shares of the slowest cluster's parts ``[R, T, 5]`` in its latency, mean over networks.

    They are ``[5]`` and sum to 1; nan where no network has finite latencies.
    """
    totals = parts_s.astype(np.float64).sum(axis=1)
    latency = totals.sum(axis=1)
    usable = np.isfinite(latency) & (latency > 0)
    if not usable.any():
        return np.full(totals.shape[1], np.nan)
    return np.mean(totals[usable] / latency[usable, None], axis=0)


@style.styled
def draw(result: Realisations) -> Figure:
    """Draw latency and its parts above, the other amounts below; rows are policies."""
    result = only_runnable(result)
    means = round_means(result)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 1.5 + 2 * ROW_IN * len(means))
    grid = figure.add_gridspec(2, 6)
    places = {
        "latency_s": grid[0, :3],
        "compute_latency_s": grid[1, :2],
        "energy_j": grid[1, 2:4],
        "divergence_over_target": grid[1, 4:],
    }
    for metric, place in places.items():
        axes = figure.add_subplot(place)
        values = {name: metrics[metric] for name, metrics in means.items()}
        draw_rows(axes, values, style.wide_axis(axes, "x", np.concatenate(list(values.values()))))
        axes.set_xlabel(PANELS[metric])
        name_rows(axes, list(means), labelled=place.colspan.start == 0)
    axes.axvline(1.0, **style.RULE)
    _shares(figure.add_subplot(grid[0, 3:]), result)
    row_legend(figure, "target", horizon(result))
    return figure


def _shares(axes: Axes, result: Realisations) -> None:
    """Stacked bars, one a policy, and the names of the parts above."""
    for row, values in enumerate(result.policies.values()):
        shares = 100.0 * part_shares(values["parts_s"])
        if np.isnan(shares).any():
            axes.text(50.0, row, "no finite latency", ha="center", va="center", color=style.GREY)
            continue
        starts = np.cumsum(shares) - shares
        for share, start, look in zip(shares, starts, style.PART_LOOKS.values(), strict=True):
            axes.barh(row, share, 0.7, start, **look)
    name_rows(axes, list(result.policies), labelled=False)
    axes.set_xlim(0.0, 100.0)
    axes.set_xlabel("Parts of the slowest cluster's latency [%]")
    handles = style.fill_handles(style.PART_LOOKS)
    room = {"handlelength": 1.2, "columnspacing": 0.8, "handletextpad": 0.4}
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": len(handles)}
    axes.legend(handles=handles, **place, **room)
