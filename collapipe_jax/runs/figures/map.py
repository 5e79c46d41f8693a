"""Who wins where: a plane of two keys, a cell for every pair of values.

A cell has the colour and the name of its winner, and what the winner saves of the latency of
the runner-up. Lines separate regions of different winners, so that a grey print reads as well.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from collapipe_jax.runs.figures import style
from collapipe_jax.runs.studies.winners import margin_text

_ROW_IN = 0.52
_NARROW = 3  # most columns of a figure of one column's width
_NAME_CHARACTERS = 13  # in a line
_PALE = (0.6, 0.75, 0.88)  # shares of white in cells of policies that have one colour


@style.styled
def draw(summary: Mapping[str, Any]) -> Figure:
    """Draw the plane of a map's summary."""
    columns, rows = len(summary["x_values"]), len(summary["y_values"])
    cells = np.reshape(np.array(summary["cells"], object), (rows, columns))
    wide = columns > _NARROW
    width_in = style.DOUBLE_WIDTH_IN if wide else style.COLUMN_WIDTH_IN
    figure = style.new_figure(width_in, 1.2 + _ROW_IN * rows)
    axes = figure.add_subplot()
    axes.set_title(_title(summary, 115 if wide else 50), loc="left", fontsize=7)
    winners = [[cell["winner"] for cell in row] for row in cells]
    colors = cell_colors(sorted({name for row in winners for name in row if name}))
    image = [[colors.get(name, (1.0, 1.0, 1.0)) for name in row] for row in winners]
    axes.imshow(image, aspect="auto", origin="lower")
    for (row, column), cell in np.ndenumerate(cells):
        axes.text(column, row, _cell_text(cell), ha="center", va="center", fontsize=7)
    _separate(axes, winners)
    for which, values in (("x", summary["x_values"]), ("y", summary["y_values"])):
        label, texts, _ = style.axis_texts(summary[which], values)
        axes.set(**{f"{which}label": label, f"{which}ticks": range(len(values))})
        axes.set(**{f"{which}ticklabels": texts})
    axes.grid(visible=False)
    axes.tick_params(length=0)
    return figure


def _title(summary: Mapping[str, Any], characters: int) -> str:
    """What a cell shows, in lines of at most some characters."""
    text = (
        f"Lowest median latency ({summary['realisations']} networks, {summary['rounds']} rounds) "
        "among policies that are over a limit of memory, energy or divergence in at most "
        f"{100 * summary['tolerance']:g} % of networks. First number: saving of the median over "
        "that of the runner-up (~: the 95 % interval includes 0; alone: no runner-up). Second: "
        "networks in which the winner is the faster of the two."
    )
    return textwrap.fill(text, characters)


def cell_colors(names: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Pale colours of policies, as RGB; those that share a colour differ in lightness."""
    colors, seen = {}, {}
    for name, look in style.policy_looks(names).items():
        turn = seen.get(look["color"], 0)
        seen[look["color"]] = turn + 1
        white = _PALE[turn % len(_PALE)]
        colors[name] = tuple(white + (1.0 - white) * np.array(to_rgb(look["color"])))
    return colors


def _cell_text(cell: Mapping[str, Any]) -> str:
    """Winner and margin, long names in two lines."""
    if cell["winner"] is None:
        return "nobody"
    name = textwrap.fill(style.policy_label(cell["winner"]), _NAME_CHARACTERS)
    return f"{name}\n{margin_text(cell)}"


def _separate(axes: Axes, winners: Sequence[Sequence[str | None]]) -> None:
    """Lines between neighbours of different winners."""
    names = np.array(winners, object)
    line = {"color": style.BLACK, "linewidth": 1.0}
    for row, column in np.argwhere(names[:, 1:] != names[:, :-1]):
        axes.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], **line)
    for row, column in np.argwhere(names[1:] != names[:-1]):
        axes.plot([column - 0.5, column + 0.5], [row + 0.5] * 2, **line)
