"""Constants of the convergence bound, estimated at the model, against rounds.

    python -m figures.constants --workdir=RUN [--workdir=RUN2 ...] [--out=DIR]

Reads runs with ``evaluation.estimate_every_rounds`` and writes ``constants.pdf`` and
``constants.png``. The estimate of the heterogeneity is the largest among clusters, and the thin
line their weighted mean.
"""

import sys
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.errors import InputError
from collapipe_jax.files.checkpoints import RunRecord
from figures import style
from figures.command_line import draw_and_save

_LABELS = {
    "gradient_variance": r"Variance $\sigma^2$ [nats²]",
    "gradient_heterogeneity": r"Heterogeneity $\zeta^2$ [nats²]",
    "gradient_norm_squared": r"Gradient $\Vert\nabla F\Vert^2$ [nats²]",
    "smoothness": r"Smoothness $L_s$ [nats]",
}
_MARKS = 12  # markers along a line, beyond which they hide it


def has_estimates(record: RunRecord) -> bool:
    """Whether a run estimated the constants."""
    return all(name in record.history for name in _LABELS)


@style.styled
def draw(records: Sequence[RunRecord]) -> Figure:
    """Draw one panel a constant; rounds without an estimate are passed over.

    Args:
      records: runs, overlaid; one look each.

    Raises:
      InputError: if one of them has no estimates.
    """
    for record, label in zip(records, style.run_labels(records), strict=True):
        if not has_estimates(record):
            remedy = "Train with evaluation.estimate_every_rounds above 0"
            raise InputError("--workdir", label, "the run estimated no constants", remedy)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 3.6)
    panels = figure.subplots(2, 2, sharex=True)
    for axes, (name, label) in zip(panels.flat, _LABELS.items(), strict=True):
        for look, record in zip(style.run_looks(records), records, strict=True):
            _line(axes, record, name, look)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0.0)
    for look, record in zip(style.run_looks(records), records, strict=True):
        _mean_line(panels[0, 1], record, look)
    for axes in panels[1]:
        style.round_axis(axes)
    _legend(figure, records)
    return figure


def _line(axes: Axes, record: RunRecord, name: str, look: style.LineLook) -> None:
    values = record.history[name]
    known = np.isfinite(values)
    every = max(1, -(-known.sum() // _MARKS))
    rounds = record.history["round"][known]
    axes.plot(rounds, values[known], markevery=every, clip_on=False, **look._asdict())


def _mean_line(axes: Axes, record: RunRecord, look: style.LineLook) -> None:
    thin = look._replace(marker=None)._asdict()
    values = record.history["mean_gradient_heterogeneity"]
    known = np.isfinite(values)
    axes.plot(record.history["round"][known], values[known], linewidth=0.7, alpha=0.6, **thin)


def _legend(figure: Figure, records: Sequence[RunRecord]) -> None:
    handles = [
        Line2D([], [], label=label, **look._asdict())
        for look, label in zip(style.run_looks(records), style.run_labels(records), strict=True)
    ]
    mean = Line2D(
        [], [], color=style.GREY, linewidth=0.7, alpha=0.6, label="mean over clusters (thin)"
    )
    handles.append(mean)
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5))


def main(argv: Sequence[str]) -> None:
    """Draw the figure from the runs on file."""
    draw_and_save(argv, __doc__, "constants", draw)


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
