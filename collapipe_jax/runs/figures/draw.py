"""Figures of a folder: what it holds, how it is read, and which figures show it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.figures.comparison import can_reduce, draw_policies, draw_reduction
from collapipe_jax.runs.figures.limits import draw_constraints, draw_memory, draw_queues
from collapipe_jax.runs.figures.round import draw_gantt, draw_gantt_clients, draw_network
from collapipe_jax.runs.figures.sweep import draw_map, draw_sweeps
from collapipe_jax.runs.figures.training import (
    draw_constants,
    draw_latency,
    draw_progress,
    draw_race,
    draw_training_sweep,
    has_estimates,
)
from collapipe_jax.runs.results.checkpoints import Run, load_race, load_run
from collapipe_jax.runs.results.datasets import open_results
from collapipe_jax.runs.results.experiment import nothing_there, read_settings
from collapipe_jax.runs.results.realisations import load_map, load_realisations, load_sweep
from collapipe_jax.runs.results.record import RunRecord, has_clients, run_labels, runs_pipeline
from collapipe_jax.runs.studies.comparison import OURS


class Drawing(NamedTuple):
    """A figure by its name."""

    name: str
    # Maps the data of a folder to a figure, or to several by their names
    draw: Callable[..., Figure | dict[str, Figure]]
    describe: Callable[[Any], Sequence[str]] | None = None  # lines to print beside it
    options: tuple[str, ...] = ()  # of the command line, which ``draw`` takes


class Kind(NamedTuple):
    """A kind of folder that figures are drawn from."""

    load: Callable[[str], Any]  # reads a workdir
    drawings: tuple[Drawing, ...]
    file: str = ""  # name of a file that only such folders have; empty: config.json names the kind
    several: bool = False  # whether several folders are drawn together


_LATENCY = Drawing("latency", draw_latency)
_PROGRESS = Drawing("progress", draw_progress)
_QUEUES = Drawing("queues", draw_queues)
_CONSTANTS = Drawing("constants", draw_constants)
_GANTT = Drawing("gantt", draw_gantt, options=("round", "cluster"))
_GANTT_CLIENTS = Drawing("gantt_clients", draw_gantt_clients, options=("round",))
_NETWORK = Drawing("network", draw_network, options=("round",))
_REDUCTION = Drawing("reduction", draw_reduction)
_RACE = Drawing("race", draw_race)

KINDS: dict[str, Kind] = {
    "run": Kind(
        load_run,
        (_PROGRESS, _LATENCY, _QUEUES, _CONSTANTS, _GANTT, _GANTT_CLIENTS, _NETWORK),
        several=True,
    ),
    "compare": Kind(
        partial(load_realisations, experiment="compare"),
        (
            Drawing("policies", draw_policies),
            Drawing("memory", draw_memory),
            Drawing("constraints", draw_constraints),
            _REDUCTION,
        ),
    ),
    "race": Kind(load_race, (_RACE,), several=True),
    "sweep": Kind(load_sweep, (Drawing("sweep", draw_sweeps),)),
    "map": Kind(load_map, (Drawing("map", draw_map),)),
    "train": Kind(open_results, (Drawing("training_sweep", draw_training_sweep),)),
}
"""Kinds of folders by the experiment that writes them; ``run`` is a training run."""


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
    raise nothing_there(workdir, "holds nothing that figures are drawn from", kinds)


def draw_figure(
    drawing: Drawing,
    kind: Kind,
    workdirs: Sequence[str],
    folder: Path,
    **options: int,
) -> list[Path]:
    """Draw and write one figure; the options are those of its ``draw``."""
    return _save([drawing], _load(kind, workdirs), folder, **options)


def draw_folders(
    workdirs: Sequence[str], folder: Path, kinds: Mapping[str, Kind] = KINDS
) -> list[Path]:
    """Draw and write every figure of training runs, the scores of races, or one other folder."""
    name, *others = {kind_of(workdir, kinds) for workdir in workdirs}
    kind = kinds[name]._replace(several=kinds[name].several and not others)
    data, drawings = _load(kind, workdirs), kind.drawings
    if name == "run":
        return draw_runs(data, folder)
    if name == "race" and len(data) == 1:
        return _draw_runs_of_race(data[0], folder)
    if name == "compare" and not can_reduce(data):
        print(f"no reduction: the comparison lacks {OURS}, or has nothing else")
        drawings = tuple(one for one in drawings if one is not _REDUCTION)
    return _save(drawings, data, folder)


def _load(kind: Kind, workdirs: Sequence[str]) -> Any:
    """Data of figures: of all folders where several are drawn together, or of the only one."""
    if kind.several:
        return [kind.load(workdir) for workdir in workdirs]
    if len(workdirs) > 1:
        problem = "only training runs are drawn together, or races"
        raise InputError("--workdir", list(workdirs), problem, "Name one folder at a time")
    return kind.load(workdirs[0])


def _save(drawings: Sequence[Drawing], data: Any, folder: str | Path, **options: int) -> list[Path]:
    """Draw and write figures under their names."""
    paths = []
    for drawing in drawings:
        drawn = drawing.draw(data, **options)
        figures = drawn if isinstance(drawn, dict) else {drawing.name: drawn}
        for name, figure in figures.items():
            paths += style.save(figure, folder, name)
        if drawing.describe:
            print(*drawing.describe(data), sep="\n")
    return paths


def draw_runs(records: Sequence[RunRecord], folder: str | Path) -> list[Path]:
    """Draw and write every figure of runs, each of those that have what it shows."""
    paths = _save([_PROGRESS, _LATENCY, _QUEUES], records, folder)
    if estimated := [record for record in records if has_estimates(record)]:
        paths += _save([_CONSTANTS], estimated, folder)
    for record, label in zip(records, run_labels(records), strict=True):
        name = "gantt_" + label.replace(" (", "_").replace(")", "").replace(" ", "_")
        if runs_pipeline(record).any() and record.duplex == "full":
            paths += style.save(draw_gantt([record]), folder, name)
        elif has_clients(record):
            paths += style.save(draw_gantt_clients([record]), folder, name)
    return paths


def _draw_runs_of_race(runs: Sequence[Run], folder: str | Path) -> list[Path]:
    """Draw and write every figure of a race: its runs with one seed, and the scores of all."""
    first = [run.record for run in runs if run.seed == runs[0].seed]
    paths = draw_runs(first, folder)
    return paths + (_save([_RACE], [runs], folder) if len(first) < len(runs) else [])
