"""Learning progress: score and losses against rounds and against simulated time.

    python -m figures.progress --workdir=RUN [--workdir=RUN2 ...] [--out=DIR]

Writes ``progress.pdf`` and ``progress.png``.
"""

import sys
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.files.checkpoints import RunRecord
from figures import style
from figures.command_line import draw_and_save

_MARKS = 12  # markers along a line, beyond which they hide it


@style.styled
def draw(records: Sequence[RunRecord]) -> Figure:
    """Draw score (above) and losses (below) against rounds (left) and time (right).

    Rounds without evaluation hold NaN and are passed over; lines join the evaluated ones.

    Args:
      records: runs, overlaid; one look each.
    """
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, 4.0)
    panels = figure.subplots(2, 2, sharex="col", sharey="row")
    longest_s = max(float(record.history["simulated_time_s"][-1]) for record in records)
    unit_s, unit = style.time_unit(longest_s)
    for look, record in zip(style.run_looks(records), records, strict=True):
        elapsed = record.history["simulated_time_s"] / unit_s
        for column, position in enumerate((record.history["round"], elapsed)):
            _score(panels[0, column], position, record, look)
            _losses(panels[1, column], position, record, look)
    _baseline(panels[0], records)
    if not any(np.isfinite(record.history["score"]).any() for record in records):
        for axes in panels[0]:
            style.say_empty(axes, "no evaluation yet")
    panels[0, 0].set_ylabel(f"{records[0].score_name} [%]")
    panels[1, 0].set_ylabel("Loss [nats/prediction]")
    panels[0, 0].set_ylim(bottom=0.0)
    style.round_axis(panels[1, 0])
    panels[1, 1].set_xlim(left=0.0)
    panels[1, 1].set_xlabel(f"Simulated time [{unit}]")
    _legend(figure, records)
    return figure


def _every(count: int) -> int:
    return max(1, -(-count // _MARKS))


def _evaluated(axes: Axes, position, values, look: style.LineLook) -> None:
    """Line through the rounds that hold a value."""
    known = np.isfinite(values)
    every = _every(known.sum())
    if known.any():  # a point on the frame, as a score of 0, is drawn whole
        axes.plot(position[known], values[known], markevery=every, clip_on=False, **look._asdict())


def _score(axes: Axes, position, record: RunRecord, look: style.LineLook) -> None:
    _evaluated(axes, position, record.history["score"], look)


def _losses(axes: Axes, position, record: RunRecord, look: style.LineLook) -> None:
    """Training loss thin and pale, validation loss bold with markers."""
    alone = "." if len(position) == 1 else None  # a line through one point shows nothing
    training = record.history["train_loss"]
    thin = look._replace(marker=alone)._asdict()
    axes.plot(position, training, linewidth=0.7, alpha=0.6, **thin)
    _evaluated(axes, position, record.history["validation_loss"], look)


def _baseline(panels: Sequence[Axes], records: Sequence[RunRecord]) -> None:
    """Score of a trivial answer, once for every value among the runs."""
    values = {float(record.constants["baseline_score"]) for record in records}
    for axes in panels:
        for value in sorted(value for value in values if np.isfinite(value)):
            axes.axhline(value, color=style.GREY, linewidth=0.9, linestyle=(0, (1, 2)))


def _legend(figure: Figure, records: Sequence[RunRecord]) -> None:
    looks = style.run_looks(records)
    handles = [
        Line2D([], [], label=label, **look._asdict())
        for look, label in zip(looks, style.run_labels(records), strict=True)
    ]
    handles += [
        Line2D([], [], color=style.GREY, linewidth=0.7, alpha=0.6, label="training (thin)"),
        Line2D([], [], color=style.GREY, marker="o", label="validation (marked)"),
        Line2D(
            [], [], color=style.GREY, linewidth=0.9, linestyle=(0, (1, 2)), label="trivial answer"
        ),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5))


def main(argv: Sequence[str]) -> None:
    """Draw the figure from the runs on file."""
    draw_and_save(argv, __doc__, "progress", draw)


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
