"""Memory of a device against the blocks it holds, and how often it holds how many.

Both panels are over all devices that take part, in all rounds and networks. Above, markers of a
number of blocks are side by side, for policies that cut the model alike need the same memory;
lines are the limits of the boards. Below, shares of a policy's devices in percent.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from collapipe_jax.runs.figures import style
from collapipe_jax.runs.figures.comparison import ROW_IN, horizon, name_rows, only_runnable
from collapipe_jax.runs.results.realisations import Realisations

_SPREAD = 0.7  # of the room between two numbers of blocks
_HEADROOM = 1.06  # above the largest limit, for its words
_MOST_LIMITS = 4  # that are drawn one by one
_MOST_NUMBERS = 26  # columns in which a share of 100 can be read
_PALEST, _DARKEST = 1.0, 0.25  # grey of shares of 0 and 100 %


def held_memory(values: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What devices of a policy hold, over all rounds and networks, by number of blocks.

    Returns:
      Mean memory in bytes, nan where no device holds that many blocks, and the share of the
      devices, in percent; ``[L + 1]`` each.
    """
    held = values["blocks_held"].astype(np.float64).sum(axis=0)
    memory = values["memory_by_blocks"].astype(np.float64).sum(axis=0)
    mean = np.divide(memory, held, out=np.full(held.size, np.nan), where=held > 0)
    return mean, 100.0 * held / max(held.sum(), 1.0)


def board_limits(limits_bytes: np.ndarray) -> dict[str, float]:
    """Limits to draw, by their words.

    If there are few, every one with the share of the devices that have it; else the smallest,
    the median and the largest.
    """
    found, counts = np.unique(np.ravel(limits_bytes), return_counts=True)
    if found.size > _MOST_LIMITS:
        middle = float(np.median(limits_bytes))
        ends = {"smallest limit": float(found[0]), "largest limit": float(found[-1])}
        return {**ends, "median limit": middle}
    shares = 100.0 * counts / counts.sum()
    return {
        f"limit of {share:.0f} % of the devices": float(limit)
        for limit, share in zip(found, shares, strict=True)
    }


@style.styled
def draw(result: Realisations) -> Figure:
    """Draw memory above and how often below; both share the axis of blocks."""
    result = only_runnable(result)
    held = {name: held_memory(values) for name, values in result.policies.items()}
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 3.3 + ROW_IN * len(held))
    heights = [2.2, 0.3 + ROW_IN * len(held)]
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    _memories(above, held, board_limits(result.networks["memory_limit_bytes"]))
    _shares(below, {name: share for name, (_, share) in held.items()})
    below.set_xlabel("Blocks held by a device [–]")
    below.xaxis.set_major_locator(MaxNLocator(nbins=_MOST_NUMBERS, integer=True, min_n_ticks=1))
    below.set_title(f"share of the policy's devices [%], {horizon(result)}", loc="left")
    handles = style.policy_handles(held, joined=False)
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


def _memories(axes: Axes, held: dict, limits: dict[str, float]) -> None:
    """Mean memory by blocks, policies side by side, and the limits."""
    drawn_bytes = np.concatenate([*(memory for memory, _ in held.values()), list(limits.values())])
    unit_bytes, unit = style.memory_unit(np.nanmax(drawn_bytes))
    offsets = _SPREAD * ((np.arange(len(held)) + 0.5) / len(held) - 0.5)
    looks = style.policy_looks(held)
    for (name, (memory, _)), offset in zip(held.items(), offsets, strict=True):
        blocks = np.flatnonzero(np.isfinite(memory))
        look = style.alone(looks[name])
        axes.plot(blocks + offset, memory[blocks] / unit_bytes, **look)
    style.wide_axis(axes, "y", _HEADROOM * drawn_bytes / unit_bytes)
    for words, limit in limits.items():
        axes.axhline(limit / unit_bytes, **style.RULE)
        place = axes.get_yaxis_transform()
        axes.text(0.01, limit / unit_bytes, words, transform=place, va="bottom", fontsize=7)
    for edge in range(len(next(iter(held.values()))[0])):
        axes.axvline(edge + 0.5, color="0.88", linewidth=0.4, zorder=0.5)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(f"Memory of a device [{unit}]")


def _shares(axes: Axes, shares: dict[str, np.ndarray]) -> None:
    """One row a policy, one column a number of blocks, darker where more devices are."""
    table = np.stack(list(shares.values()))
    used = np.flatnonzero(table.any(axis=0))
    first, last = (used[0], used[-1]) if used.size else (0, 1)
    name_rows(axes, list(shares))
    axes.grid(visible=False)
    axes.set_xlim(min(first, 1) - 0.5, last + 0.5)
    for row, column in zip(*np.nonzero(table), strict=True):
        share = table[row, column]
        grey = _PALEST + (_DARKEST - _PALEST) * share / 100.0
        axes.barh(row, 1.0, 1.0, column - 0.5, color=str(grey), linewidth=0.0, zorder=0.4)
        if last - first < _MOST_NUMBERS:
            words = f"{share:.0f}" if share >= 0.5 else "<1"
            ink = "white" if grey < 0.55 else "black"
            axes.text(column, row, words, ha="center", va="center", fontsize=7, color=ink)
