"""All figures of what a folder holds.

    python -m figures.all --workdir=DIR [--workdir=DIR2 ...] [--out=DIR]

Of one or several training runs ``progress``, ``latency`` and ``queues`` over all of them,
``constants`` over those that estimate them, and a ``gantt`` a run; of one race these of its
runs with the first seed and, with several, ``race``. Of one comparison ``policies``, ``memory``
and ``constraints``, and ``reduction`` where it has ``dssra``. Of one sweep ``sweep`` and
``sweep_mean``, of one closed-loop run with several V ``tradeoff``, and one figure of a folder of
experiments.benchmarks.gap, experiments.bound, convergence or stability. Each as PDF and PNG;
prints the paths. Takes a few seconds a figure.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.errors import InputError
from collapipe_jax.files.checkpoints import RunRecord
from experiments.closed_loop_files import load_closed_loop
from experiments.compare_files import Comparison, load_comparison
from experiments.compare_summary import OURS
from experiments.race_files import Run, load_race
from experiments.sweep_files import load_sweep
from figures import (
    bound,
    constants,
    constraints,
    convergence,
    gantt,
    gantt_clients,
    gap,
    latency,
    memory,
    policies,
    progress,
    queues,
    race,
    reduction,
    stability,
    style,
    sweep,
    tradeoff,
)
from figures.command_line import figure_parser, load_runs, out_dir, print_paths
from figures.schedule import runs_pipeline

_RUN = "policy"  # a key that the settings of a training run have
_EXPERIMENTS = ("compare", "sweep", "closed_loop", "race")  # keys that those of others have
_REPORTS = {
    "gap.jsonl": (gap, gap.load_gaps),
    "bound.json": (bound, bound.load_bound),
    "convergence.json": (convergence, convergence.load_rows),
    "stability.json": (stability, stability.load_rows),
}
"""Figure and reader by the file that experiments without settings leave."""


def kind_of(workdir: str | Path) -> str:
    """What a folder holds, by the settings on file.

    Returns:
      A key of those settings that tells, or the name of a file in :data:`_REPORTS`.

    Raises:
      InputError: if it holds nothing that figures are drawn from.
    """
    try:
        settings = json.loads((Path(workdir) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = {}
    for key in (*_EXPERIMENTS, _RUN):
        if key in settings:
            return key
    for name in _REPORTS:
        if (Path(workdir) / name).is_file():
            return name
    raise InputError(
        "workdir",
        str(workdir),
        "holds nothing that figures are drawn from",
        "Name the workdir of a training run, or of experiments.compare, sweep, closed_loop, "
        "race, bound, convergence, stability or benchmarks.gap",
    )


def draw_all(records: Sequence[RunRecord], folder: str | Path) -> list[Path]:
    """Draw and write every figure of runs, each of those that have what it shows.

    Args:
      records: runs.
      folder: where the files go.

    Returns:
      Paths of the files.
    """
    paths: list[Path] = []
    for module in (progress, latency, queues):
        paths += style.save(module.draw(records), folder, _name(module))
    if estimated := [record for record in records if constants.has_estimates(record)]:
        paths += style.save(constants.draw(estimated), folder, _name(constants))
    for record, label in zip(records, style.run_labels(records), strict=True):
        name = "gantt_" + label.replace(" (", "_").replace(")", "").replace(" ", "_")
        if runs_pipeline(record).any():
            paths += style.save(gantt.draw([record]), folder, name)
        elif gantt_clients.has_clients(record):
            paths += style.save(gantt_clients.draw([record]), folder, name)
    return paths


def draw_comparison(result: Comparison, folder: str | Path) -> list[Path]:
    """Draw and write every figure of a comparison, and tell if one does not belong."""
    modules = [policies, memory, constraints]
    if reduction.can_reduce(result):
        modules.append(reduction)
    else:
        print(f"no reduction: the comparison lacks {OURS}, or has nothing else")
    return [
        path
        for module in modules
        for path in style.save(module.draw(result), folder, _name(module))
    ]


def draw_race(runs: Sequence[Run], folder: str | Path) -> list[Path]:
    """Draw and write every figure of a race: its runs with one seed, and the scores of all."""
    first = [run.record for run in runs if run.seed == runs[0].seed]
    paths = draw_all(first, folder)
    if len(first) < len(runs):
        paths += style.save(race.draw([runs]), folder, _name(race))
    return paths


def _name(module) -> str:
    return module.__name__.rpartition(".")[2]


def _draw_experiment(kind: str, workdir: str, folder: Path) -> list[Path]:
    """All figures of a folder that holds no training run."""
    if kind == "compare":
        return draw_comparison(load_comparison(workdir), folder)
    if kind == "sweep":
        return sweep.draw_and_save(load_sweep(workdir), folder)
    if kind == "closed_loop":
        return style.save(tradeoff.draw(load_closed_loop(workdir)), folder, "tradeoff")
    if kind == "race":
        return draw_race(load_race(workdir), folder)
    module, load = _REPORTS[kind]
    return style.save(module.draw(load(workdir)), folder, _name(module))


def main(argv: Sequence[str]) -> None:
    """Draw all figures from the folders on file."""
    options = figure_parser(__doc__).parse_args(argv)
    kinds = [kind_of(workdir) for workdir in options.workdir]
    if set(kinds) == {_RUN}:
        paths = draw_all(load_runs(options), out_dir(options))
    elif len(kinds) == 1:
        paths = _draw_experiment(kinds[0], options.workdir[0], out_dir(options))
    else:
        problem = "only training runs are drawn together"
        raise InputError("--workdir", options.workdir, problem, "Name one folder at a time")
    print_paths(paths)


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
