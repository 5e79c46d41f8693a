"""Figures of a folder: what it holds, how it is read, and which figures show it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import (
    constants,
    constraints,
    gantt,
    gantt_clients,
    latency,
    map,
    memory,
    policies,
    progress,
    queues,
    race,
    reduction,
    style,
    sweep,
    training_sweep,
)
from collapipe_jax.runs.results.checkpoints import RunRecord, load_run
from collapipe_jax.runs.results.datasets import open_results
from collapipe_jax.runs.results.experiment import read_settings
from collapipe_jax.runs.results.realisations import load_map, load_realisations, load_sweep
from collapipe_jax.runs.results.studies import Run, load_race
from collapipe_jax.runs.studies.comparison import OURS


class Kind(NamedTuple):
    """A kind of folder that figures are drawn from."""

    load: Callable[[str], Any]  # reads a workdir
    modules: tuple[ModuleType, ...]  # its figures
    file: str = ""  # name of a file that only such folders have; empty: config.json names the kind
    several: bool = False  # whether several folders are drawn together


KINDS: dict[str, Kind] = {
    "run": Kind(
        load_run, (progress, latency, queues, constants, gantt, gantt_clients), several=True
    ),
    "compare": Kind(
        partial(load_realisations, experiment="compare"),
        (policies, memory, constraints, reduction),
    ),
    "race": Kind(load_race, (race,), several=True),
    "sweep": Kind(load_sweep, (sweep,)),
    "map": Kind(load_map, (map,)),
    "train": Kind(open_results, (training_sweep,)),
}
"""Kinds of folders by the experiment that writes them; ``run`` is a training run."""


def figure_name(module: ModuleType) -> str:
    """Name of a figure, that of its module."""
    return module.__name__.rpartition(".")[2]


def kind_of(workdir: str | Path, kinds: Mapping[str, Kind] = KINDS) -> str:
    """The kind of a folder.

    Raises:
      InputError: if it holds nothing that figures are drawn from.
    """
    settings = read_settings(workdir)
    found = settings.get("experiment", "run" if "policy" in settings else None)
    for name, kind in kinds.items():
        if name == found or (kind.file and (Path(workdir) / kind.file).is_file()):
            return name
    problem = "holds nothing that figures are drawn from"
    remedy = f"Name a folder that one of these wrote: {', '.join(kinds)}"
    raise InputError("--workdir", str(workdir), problem, remedy)


def draw_figure(
    module: ModuleType,
    kind: Kind,
    workdirs: Sequence[str],
    folder: Path,
    **options: int,
) -> list[Path]:
    """Draw and write one figure; the options are those of its ``draw``."""
    return _save([module], _load(kind, workdirs), folder, **options)


def draw_folders(
    workdirs: Sequence[str], folder: Path, kinds: Mapping[str, Kind] = KINDS
) -> list[Path]:
    """Draw and write every figure of training runs, the scores of races, or one other folder."""
    name, *others = {kind_of(workdir, kinds) for workdir in workdirs}
    kind = kinds[name]._replace(several=kinds[name].several and not others)
    data, modules = _load(kind, workdirs), kind.modules
    if name == "run":
        return draw_runs(data, folder)
    if name == "race" and len(data) == 1:
        return draw_race(data[0], folder)
    if name == "compare" and not reduction.can_reduce(data):
        print(f"no reduction: the comparison lacks {OURS}, or has nothing else")
        modules = modules[:-1]
    return _save(modules, data, folder)


def _load(kind: Kind, workdirs: Sequence[str]) -> Any:
    """Data of figures: of all folders where several are drawn together, or of the only one."""
    if kind.several:
        return [kind.load(workdir) for workdir in workdirs]
    if len(workdirs) > 1:
        problem = "only training runs are drawn together, or races"
        raise InputError("--workdir", list(workdirs), problem, "Name one folder at a time")
    return kind.load(workdirs[0])


def _save(
    modules: Sequence[ModuleType], data: Any, folder: str | Path, **options: int
) -> list[Path]:
    """Draw and write figures under the names of their modules."""
    paths = []
    for module in modules:
        if hasattr(module, "draw_several"):
            figures = module.draw_several(data)
        else:
            figures = {figure_name(module): module.draw(data, **options)}
        for name, figure in figures.items():
            paths += style.save(figure, folder, name)
        if hasattr(module, "describe"):
            print(*module.describe(data), sep="\n")
    return paths


def draw_runs(records: Sequence[RunRecord], folder: str | Path) -> list[Path]:
    """Draw and write every figure of runs, each of those that have what it shows."""
    paths = _save([progress, latency, queues], records, folder)
    if estimated := [record for record in records if constants.has_estimates(record)]:
        paths += _save([constants], estimated, folder)
    for record, label in zip(records, style.run_labels(records), strict=True):
        name = "gantt_" + label.replace(" (", "_").replace(")", "").replace(" ", "_")
        if gantt.runs_pipeline(record).any() and record.duplex == "full":
            paths += style.save(gantt.draw([record]), folder, name)
        elif gantt_clients.has_clients(record):
            paths += style.save(gantt_clients.draw([record]), folder, name)
    return paths


def draw_race(runs: Sequence[Run], folder: str | Path) -> list[Path]:
    """Draw and write every figure of a race: its runs with one seed, and the scores of all."""
    first = [run.record for run in runs if run.seed == runs[0].seed]
    paths = draw_runs(first, folder)
    return paths + (_save([race], [runs], folder) if len(first) < len(runs) else [])
