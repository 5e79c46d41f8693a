"""All figures of what a folder holds.

    python -m figures.all --workdir=DIR [--workdir=DIR2 ...] [--out=DIR]

Of one or several training runs ``progress``, ``latency`` and ``queues`` over all of them,
``constants`` over those that estimate them, and a ``gantt`` a run; of one race these of its
runs with the first seed and, with several, ``race``. Of one comparison ``policies``, ``memory``
and ``constraints``, and ``reduction`` where it has ``dssra``. Of one sweep ``sweep`` and
``sweep_mean``, of one closed-loop run with several V ``tradeoff``, and one figure of a folder of
experiments.studies.bound, convergence or stability, or of experiments.benchmarks.solver.gap.
Each as PDF and PNG; prints the paths. Takes a few seconds a figure.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.errors import InputError
from collapipe_jax.files.checkpoints import RunRecord
from collapipe_jax.files.races import Run, load_race
from collapipe_jax.files.realisations import OURS, Realisations, load_sweep
from collapipe_jax.files.results import read_settings
from figures import (
    bound,
    comparison,
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


def kind_of(workdir: str | Path) -> str:
    """What a folder holds: the name of an experiment, ``"run"`` or ``"gap"``.

    Raises:
      InputError: if it holds nothing that figures are drawn from.
    """
    settings = read_settings(workdir)
    if settings.get("experiment") in _DRAW:
        return settings["experiment"]
    if "policy" in settings:
        return "run"
    if gap.gap_file(workdir).is_file():
        return "gap"
    raise InputError(
        "workdir",
        str(workdir),
        "holds nothing that figures are drawn from",
        "Name the workdir of a training run, or of experiments.compare, sweep, "
        "studies.closed_loop, race, bound, convergence, stability or benchmarks.solver.gap",
    )


def draw_all(records: Sequence[RunRecord], folder: str | Path) -> list[Path]:
    """Draw and write every figure of runs, each of those that have what it shows.

    Args:
      records: runs.
      folder: where the files go.

    Returns:
      Paths of the files.
    """
    paths = _save([progress, latency, queues], records, folder)
    if estimated := [record for record in records if constants.has_estimates(record)]:
        paths += _save([constants], estimated, folder)
    for record, label in zip(records, style.run_labels(records), strict=True):
        name = "gantt_" + label.replace(" (", "_").replace(")", "").replace(" ", "_")
        if gantt.runs_pipeline(record).any():
            paths += style.save(gantt.draw([record]), folder, name)
        elif gantt_clients.has_clients(record):
            paths += style.save(gantt_clients.draw([record]), folder, name)
    return paths


def draw_comparison(result: Realisations, folder: str | Path) -> list[Path]:
    """Draw and write every figure of a comparison, and say if one does not belong."""
    modules = [policies, memory, constraints]
    if reduction.can_reduce(result):
        modules.append(reduction)
    else:
        print(f"no reduction: the comparison lacks {OURS}, or has nothing else")
    return _save(modules, result, folder)


def draw_race(runs: Sequence[Run], folder: str | Path) -> list[Path]:
    """Draw and write every figure of a race: its runs with one seed, and the scores of all."""
    first = [run.record for run in runs if run.seed == runs[0].seed]
    paths = draw_all(first, folder)
    return paths + (_save([race], [runs], folder) if len(first) < len(runs) else [])


def _save(modules: Sequence, data, folder: str | Path) -> list[Path]:
    """Draw and write figures under the names of their modules."""
    return [
        path
        for module in modules
        for path in style.save(module.draw(data), folder, module.__name__.rpartition(".")[2])
    ]


def _one_of(module) -> Callable[[str, Path], list[Path]]:
    return lambda workdir, folder: _save([module], module.load(workdir), folder)


_DRAW: dict[str, Callable[[str, Path], list[Path]]] = {
    "compare": lambda workdir, folder: draw_comparison(comparison.load(workdir), folder),
    "sweep": lambda workdir, folder: sweep.draw_and_save(load_sweep(workdir), folder),
    "race": lambda workdir, folder: draw_race(load_race(workdir), folder),
    "closed_loop": _one_of(tradeoff),
    "bound": _one_of(bound),
    "convergence": _one_of(convergence),
    "stability": _one_of(stability),
    "gap": _one_of(gap),
}
"""All figures of a folder, by the experiment that left it."""


def main(argv: Sequence[str]) -> None:
    """Draw all figures from the folders on file."""
    options = figure_parser(__doc__).parse_args(argv)
    kinds = [kind_of(workdir) for workdir in options.workdir]
    if set(kinds) == {"run"}:
        paths = draw_all(load_runs(options), out_dir(options))
    elif len(kinds) == 1:
        paths = _DRAW[kinds[0]](options.workdir[0], out_dir(options))
    else:
        problem = "only training runs are drawn together"
        raise InputError("--workdir", options.workdir, problem, "Name one folder at a time")
    print_paths(paths)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
