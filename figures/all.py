"""Figures of what a folder holds, all of them or one by its name.

    python -m figures --workdir=DIR [--workdir=DIR2 ...] [--out=DIR]
    python -m figures NAME --workdir=DIR [--workdir=DIR2 ...] [--out=DIR]

Of one or several training runs ``progress``, ``latency`` and ``queues`` over all of them,
``constants`` over those that estimate them, and a ``gantt`` or ``gantt_clients`` a run; of one
race these of its runs with the first seed and, with several, ``race``. Of one comparison
``policies``, ``memory`` and ``constraints``, and ``reduction`` where it has ``dssra``. Of one sweep
``sweep`` and ``sweep_mean``, of one closed-loop run with several V ``tradeoff``, and one figure of
a folder of experiments.studies.bound, convergence or stability, or of
experiments.benchmarks.solver.gap. Each as PDF and PNG; prints the paths. Takes a few seconds a
figure.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from collapipe_jax.command_line import make_parser
from collapipe_jax.errors import InputError
from collapipe_jax.files.checkpoints import RunRecord, load_run
from collapipe_jax.files.realisations import load_realisations, load_sweep
from collapipe_jax.files.results import read_settings
from collapipe_jax.files.studies import Run, load_race, load_study
from collapipe_jax.simulation.comparison import OURS
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

_TAKES = {gantt: ("round_number", "cluster"), gantt_clients: ("round_number",)}
_BY_EXPERIMENT: dict[str, tuple[Callable[[str], Any], tuple[ModuleType, ...]]] = {
    "run": (load_run, (progress, latency, queues, constants, gantt, gantt_clients)),
    "compare": (
        partial(load_realisations, experiment="compare"),
        (policies, memory, constraints, reduction),
    ),
    "race": (load_race, (race,)),
    "closed_loop": (partial(load_realisations, experiment="closed_loop"), (tradeoff,)),
    "sweep": (load_sweep, (sweep,)),
    "bound": (bound.load, (bound,)),
    "convergence": (load_study, (convergence,)),
    "stability": (stability.load, (stability,)),
    "gap": (gap.load, (gap,)),
}
"""Reader and figures of a folder, by the experiment that left it."""


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


_EXPERIMENT = {
    _name(module): (experiment, module)
    for experiment, (_, modules) in _BY_EXPERIMENT.items()
    for module in modules
}
"""Experiment and module by the name of a figure."""


def main(argv: Sequence[str]) -> None:
    """Draw figures from the folders on file."""
    out = (None, "folder for the files (default: figures/ in the first workdir)")
    parser = make_parser(__doc__, out=out)
    parser.add_argument("name", nargs="?", choices=_EXPERIMENT, help="one figure alone")
    parser.add_argument("--workdir", required=True, action="append", help="repeat for several")
    rounds, clusters = "of a gantt (default: the last)", "of a gantt (default: the slowest)"
    parser.add_argument("--round", type=int, dest="round_number", help=rounds)
    parser.add_argument("--cluster", type=int, help=clusters)
    options = parser.parse_args(argv)
    folder = Path(options.out) if options.out else Path(options.workdir[0]) / "figures"
    experiment, module = _EXPERIMENT.get(options.name, (None, None))
    given = {
        key: getattr(options, key) for key in _TAKES[gantt] if getattr(options, key) is not None
    }
    for key, value in given.items():
        if key not in _TAKES.get(module, ()):
            remedy = "Name gantt, or gantt_clients for a round"
            raise InputError(f"--{key.removesuffix('_number')}", value, "no such option", remedy)
    if module is None:
        paths = draw_folders(options.workdir, folder)
    else:
        paths = _save([module], _load(experiment, options.workdir), folder, **given)
    for path in paths:
        print(f"written: {path}")


def kind_of(workdir: str | Path) -> str:
    """What a folder holds: the name of an experiment, or ``"run"``.

    Raises:
      InputError: if it holds nothing that figures are drawn from.
    """
    settings = read_settings(workdir)
    kind = settings.get("experiment", "run" if "policy" in settings else None)
    if gap.gap_file(workdir).is_file():
        kind = "gap"
    if kind in _BY_EXPERIMENT:
        return kind
    problem = "holds nothing that figures are drawn from"
    remedy = "Name the workdir of a training run, or of experiments.compare, sweep, "
    remedy += "studies.closed_loop, race, bound, convergence, stability or benchmarks.solver.gap"
    raise InputError("workdir", str(workdir), problem, remedy)


def _load(kind: str, workdirs: Sequence[str]) -> Any:
    """Data of figures: of all folders of training runs or races, or of the only one."""
    load, _ = _BY_EXPERIMENT[kind]
    if kind in ("run", "race"):
        return [load(workdir) for workdir in workdirs]
    if len(workdirs) > 1:
        problem = "only training runs are drawn together, and the scores of races"
        raise InputError("--workdir", list(workdirs), problem, "Name one folder at a time")
    return load(workdirs[0])


def _save(modules: Sequence[ModuleType], data: Any, folder: str | Path, **options) -> list[Path]:
    """Draw and write figures under the names of their modules."""
    paths = []
    for module in modules:
        if hasattr(module, "draw_several"):
            figures = module.draw_several(data)
        else:
            figures = {_name(module): module.draw(data, **options)}
        for name, figure in figures.items():
            paths += style.save(figure, folder, name)
        if hasattr(module, "describe"):
            print(*module.describe(data), sep="\n")
    return paths


def draw_folders(workdirs: Sequence[str], folder: Path) -> list[Path]:
    """Draw and write every figure of training runs, or of one other folder."""
    kinds = {kind_of(workdir) for workdir in workdirs}
    kind = kinds.pop()
    if kinds or (kind == "race" and len(workdirs) > 1):
        problem = "only training runs are drawn together"
        raise InputError("--workdir", list(workdirs), problem, "Name one folder at a time")
    data = _load(kind, workdirs)
    if kind == "run":
        return draw_all(data, folder)
    if kind == "race":
        return draw_race(data[0], folder)
    modules = _BY_EXPERIMENT[kind][1]
    if kind == "compare" and not reduction.can_reduce(data):
        print(f"no reduction: the comparison lacks {OURS}, or has nothing else")
        modules = modules[:-1]
    return _save(modules, data, folder)


def draw_all(records: Sequence[RunRecord], folder: str | Path) -> list[Path]:
    """Draw and write every figure of runs, each of those that have what it shows."""
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


def draw_race(runs: Sequence[Run], folder: str | Path) -> list[Path]:
    """Draw and write every figure of a race: its runs with one seed, and the scores of all."""
    first = [run.record for run in runs if run.seed == runs[0].seed]
    paths = draw_all(first, folder)
    return paths + (_save([race], [runs], folder) if len(first) < len(runs) else [])
