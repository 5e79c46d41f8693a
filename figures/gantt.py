"""One local step of the pipeline: when each resource serves which micro-batch.

    python -m figures.gantt --workdir=RUN [--workdir=RUN2 ...] [--round=T] [--cluster=N] [--out=DIR]

Without ``--round`` the last round is drawn, without ``--cluster`` its slowest cluster.
Writes ``gantt.pdf`` and ``gantt.png``.
"""

import sys
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch, Patch, Rectangle

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.files.checkpoints import RunRecord
from figures import style
from figures.command_line import figure_parser, load_runs, out_dir, print_paths
from figures.schedule import BACKWARD, FORWARD, TURN, Step, first_step, pick

# Forward bars are light and backward bars dark, so that they differ in grey print too;
# successive micro-batches alternate between two shades.
_SHADES = {
    FORWARD: ("#74BDE9", "#AEDAF4"),
    TURN: ("#E9C94A", "#F4E08E"),
    BACKWARD: ("#A84A00", "#C4621A"),
}
_NUMBER_COLOR = {FORWARD: style.BLACK, TURN: style.BLACK, BACKWARD: "#FFFFFF"}
_LEGEND = {FORWARD: "forward", TURN: "decoder (both ways)", BACKWARD: "backward"}
_TURN_LINE = {"color": style.BLACK, "linewidth": 0.8, "linestyle": (0, (3, 2))}
_ROW_IN = 0.17
_STRIP_IN = 0.2
_CHART_WIDTH_IN = style.DOUBLE_WIDTH_IN - 1.4  # what the row names leave
_DIGIT_IN = 0.075  # of a number of 7 points
_THIN_IN = 0.04  # narrower bars would vanish behind their edges
_INK = "0.2"
_BEFORE_STEPS = 2  # parts of a round before its local steps: download and distribution


@style.styled
def draw(
    records: Sequence[RunRecord], round_number: int | None = None, cluster: int | None = None
) -> Figure:
    """Draw the first local step of one cluster in one round, one panel a run.

    Above each chart a strip shows the whole round to scale, the moves of parameters
    before and after the local steps included, and where in it the chart lies.

    Args:
      records: runs of pipeline policies; their charts share the time axis.
      round_number: as in the runs' histories; ``None`` takes the last.
      cluster: from 0; ``None`` takes the slowest.

    Raises:
      InputError: no such round or cluster, or it ran no pipeline.
    """
    picked = [pick(record, round_number, cluster) for record in records]
    steps = [first_step(record, *at) for record, at in zip(records, picked, strict=True)]
    chart_in = [_ROW_IN * len(step.resources) for step in steps]
    height_in = 0.4 + sum(chart_in) + len(steps) * (_STRIP_IN + 0.85)
    figure = style.new_figure(style.DOUBLE_WIDTH_IN, height_in)
    ratios = [size for chart in chart_in for size in (_STRIP_IN, chart)]
    panels = figure.subplots(2 * len(steps), 1, height_ratios=ratios)
    longest_s = max(step.finish_s for step in steps)
    for row, label in enumerate(style.run_labels(records)):
        strip, chart = panels[2 * row : 2 * row + 2]
        _strip(strip, records[row], steps[row], label)
        _chart(chart, steps[row], longest_s)
        _zoom(figure, strip, chart, records[row], steps[row], longest_s)
    figure.legend(handles=_handles(), loc="outside lower center", ncols=5)
    return figure


def _chart(axes: Axes, step: Step, longest_s: float) -> None:
    """Bars of one local step, a row a resource."""
    unit_s, unit = style.time_unit(longest_s)
    heights = {name: -row for row, name in enumerate(step.resources)}
    numbered_from_s = (
        longest_s * (_DIGIT_IN * len(str(step.micro_batches)) + 0.03) / _CHART_WIDTH_IN
    )
    thin_s = longest_s * _THIN_IN / _CHART_WIDTH_IN
    for bar in step.bars:
        width_s = bar.finish_s - bar.start_s
        axes.barh(
            heights[bar.resource],
            width_s / unit_s,
            left=bar.start_s / unit_s,
            height=0.8,
            color=_SHADES[bar.direction][bar.micro_batch % 2],
            edgecolor="white",
            linewidth=0.5 if width_s >= thin_s else 0.0,
        )
        if width_s >= numbered_from_s:
            axes.text(
                (bar.start_s + bar.finish_s) / 2 / unit_s,
                heights[bar.resource],
                str(bar.micro_batch + 1),
                ha="center",
                va="center_baseline",
                fontsize=7,
                color=_NUMBER_COLOR[bar.direction],
            )
    axes.axvline(step.turned_s / unit_s, **_TURN_LINE)
    axes.set_yticks(list(heights.values()), labels=list(heights))
    axes.set_ylim(0.5 - len(heights), 0.5)
    axes.set_xlim(0.0, longest_s / unit_s)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"Time since the local steps began, first of them only [{unit}]")


def _strip(axes: Axes, record: RunRecord, step: Step, label: str) -> None:
    """The cluster's whole round to scale, docs/system-model.md (14)."""
    parts_s = record.history["parts_s"][step.index, step.cluster]
    unit_s, unit = style.time_unit(float(parts_s.sum()))
    start_s = 0.0
    for (_, look), part_s in zip(style.PART_LOOKS.items(), parts_s, strict=True):
        axes.barh(
            0.0,
            part_s / unit_s,
            left=start_s / unit_s,
            height=1.0,
            edgecolor=_INK,
            linewidth=0.3,
            **look._asdict(),
        )
        start_s += part_s
    number = record.history["round"][step.index]
    axes.set_xlim(0.0, start_s / unit_s)
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([0.0], labels=["whole round"])
    axes.tick_params(axis="y", length=0)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xlabel(
        f"{label}, cluster {step.cluster}, micro-batches: {step.micro_batches}. "
        f"Time since round {number} began [{unit}]",
        loc="left",
    )
    axes.grid(visible=False)


def _zoom(
    figure: Figure, strip: Axes, chart: Axes, record: RunRecord, step: Step, longest_s: float
) -> None:
    """Frame the first local step in the strip, and join it to the ends of the chart."""
    parts_s = record.history["parts_s"][step.index, step.cluster]
    unit_s, _ = style.time_unit(float(parts_s.sum()))
    begin = float(parts_s[:_BEFORE_STEPS].sum()) / unit_s
    end = begin + step.finish_s / unit_s
    frame = Rectangle((begin, -0.5), end - begin, 1.0, fill=False, linewidth=1.2, clip_on=False)
    strip.add_patch(frame)
    last = step.finish_s / style.time_unit(longest_s)[0]
    for above, below in ((begin, 0.0), (end, last)):
        line = ConnectionPatch(
            (above, -0.5),
            (below, 0.5),
            coordsA=strip.transData,
            coordsB=chart.transData,
            color=style.GREY,
            linewidth=0.6,
        )
        line.set_in_layout(False)
        figure.add_artist(line)


def _handles() -> list[Artist]:
    """Legend of two rows: the chart's signs above, the strip's below."""
    chart = [Patch(color=_SHADES[key][0], label=text) for key, text in _LEGEND.items()]
    chart.append(Line2D([], [], label="pipeline flushed", **_TURN_LINE))
    chart.append(Patch(fill=False, linewidth=1.2, label="first local step"))
    strip = [
        Patch(label=name, edgecolor=_INK, linewidth=0.3, **look._asdict())
        for name, look in style.PART_LOOKS.items()
    ]
    return [handle for column in zip(chart, strip, strict=True) for handle in column]


def main(argv: Sequence[str]) -> None:
    """Draw the figure from the runs on file."""
    parser = figure_parser(__doc__)
    parser.add_argument("--round", type=int, help="round (default: the last)")
    parser.add_argument("--cluster", type=int, help="cluster, from 0 (default: the slowest)")
    options = parser.parse_args(argv)
    figure = draw(load_runs(options), options.round, options.cluster)
    print_paths(style.save(figure, out_dir(options), "gantt"))


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
