"""All figures of one or several runs.

    python -m figures.all --workdir=RUN [--workdir=RUN2 ...] [--out=DIR]

Writes ``progress``, ``latency`` and ``queues`` over all runs and a ``gantt`` a run, each
as PDF and PNG, and prints the paths. Takes a few seconds a figure.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from collapipe_jax.checkpoint import RunRecord
from collapipe_jax.command_line import run_reporting_errors
from figures import gantt, latency, progress, queues, style
from figures.command_line import figure_parser, load_runs, out_dir, print_paths
from figures.schedule import runs_pipeline


def draw_all(records: Sequence[RunRecord], folder: str | Path) -> list[Path]:
    """Draw and write every figure; a run without a pipeline gets no Gantt chart.

    Args:
      records: runs.
      folder: where the files go.

    Returns:
      Paths of the files.
    """
    paths: list[Path] = []
    for module in (progress, latency, queues):
        name = module.__name__.rpartition(".")[2]
        paths += style.save(module.draw(records), folder, name)
    for record, label in zip(records, style.run_labels(records), strict=True):
        if runs_pipeline(record).any():
            name = "gantt_" + label.replace(" (", "_").replace(")", "").replace(" ", "_")
            paths += style.save(gantt.draw([record]), folder, name)
    return paths


def main(argv: Sequence[str]) -> None:
    """Draw all figures from the runs on file."""
    options = figure_parser(__doc__).parse_args(argv)
    print_paths(draw_all(load_runs(options), out_dir(options)))


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
