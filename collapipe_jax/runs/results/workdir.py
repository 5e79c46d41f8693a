"""The workdir of a run or of another experiment, and the configuration that it belongs to."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import (
    is_lock,
    is_partial,
    read_object,
    sealed,
    write_new_text,
    write_text,
)

_CONFIG = "config.json"


def open_workdir(workdir: str | os.PathLike, config: Mapping[str, Any], resume: bool) -> Path:
    """Take possession of a workdir for a configuration; it is made if it does not exist.

    A run that goes on may have more rounds than before; what it ended with is then removed.

    Raises:
      InputError: if foreign files or another configuration's results are there, or results of
        this one and ``resume`` is not set, or if no such folder can be made.
    """
    path = make_workdir(workdir)
    saved = path / _CONFIG
    config = json.loads(json.dumps(config))
    text = sealed(config)
    if saved.exists() or not write_new_text(saved, text):
        found = read_config(path)
        if found != config and not (resume and added_rounds(found, config)):
            problem = f"belongs to another configuration ({_first_difference(found, config)})"
            remedy = "Choose another workdir, or restore that configuration"
            raise wrong_workdir(workdir, problem, remedy)
        if not resume:
            remedy = "Add --resume, or choose another"
            raise wrong_workdir(workdir, "holds results already", remedy)
        if found == config:
            return path
        (path / "summary.json").unlink(missing_ok=True)  # first: a run without is not finished
        write_text(saved, text)
    return path


def make_workdir(workdir: str | os.PathLike) -> Path:
    """A folder for a workdir, made if it does not exist.

    Raises:
      InputError: if foreign files are there, or no such folder can be made.
    """
    path = Path(workdir).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"no folder ({error.strerror})"
        raise wrong_workdir(path, problem, "Choose a path for a folder") from None
    # Another process may be taking possession too: its first files are these.
    foreign = any(not (is_partial(entry) or is_lock(entry)) for entry in path.iterdir())
    if foreign and not (path / _CONFIG).exists():
        raise wrong_workdir(workdir, "holds files that no run wrote", "Choose an empty folder")
    return path


def added_rounds(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> int:
    """Rounds that one configuration of a run has more, where nothing else differs; else 0."""
    if "training" not in found or "training" not in wanted:
        return 0
    before, after = (config["training"]["rounds"] for config in (found, wanted))
    longer = {**found, "training": {**found["training"], "rounds": after}}
    same = longer == json.loads(json.dumps(wanted))  # which has lists for tuples
    return max(0, after - before) if same else 0


def read_config(workdir: Path) -> dict[str, Any]:
    """The configuration of a run; an ``InputError`` where there is none."""
    saved = workdir / _CONFIG
    if not os.path.isfile(saved):
        raise wrong_workdir(workdir, "holds no run", "Name the workdir of a training run")
    found = read_object(saved)
    if found is None:
        raise damaged_config(workdir)
    return found


def read_summary(folder: Path, name: str = "command") -> dict[str, Any]:
    """``summary.json`` of a finished run or experiment.

    Args:
      folder: its workdir.
      name: of what wrote the folder, for the error.

    Raises:
      InputError: if it is missing or damaged.
    """
    summary = read_object(folder / "summary.json")
    if summary is None:
        remedy = f"Run the {name} again with the same arguments to mend it"
        raise wrong_workdir(folder, "its summary.json is missing or damaged", remedy)
    return summary


def damaged_config(workdir: str | os.PathLike) -> InputError:
    """The error of a folder whose ``config.json`` cannot be read."""
    remedy = "Restore it from a copy, or start anew in another workdir"
    return wrong_workdir(workdir, "its config.json is damaged", remedy)


def wrong_workdir(workdir: str | os.PathLike, problem: str, remedy: str) -> InputError:
    """The error of a folder that is not the one wanted."""
    return InputError("workdir", str(workdir), problem, remedy)


def nothing_there(
    workdir: str | os.PathLike, problem: str, kinds: Iterable[str], key: str = "--workdir"
) -> InputError:
    """The error of a folder with nothing of these kinds; a ``run`` is what ``train`` writes."""
    names = dict.fromkeys("train" if kind == "run" else kind for kind in kinds)
    remedy = f"Name a folder that one of these wrote: {', '.join(names)}"
    problem = problem if os.path.isdir(workdir) else "no such folder"
    return InputError(key, str(workdir), problem, remedy)


def _first_difference(found: Mapping, wanted: Mapping) -> str:
    """First key in which two nested dictionaries differ, with both values."""
    there, here = (flatten_dict(each, keep_empty_nodes=True, sep=".") for each in (found, wanted))
    keys = sorted({*there, *here})
    key = next(key for key in keys if there.get(key, "nothing") != here.get(key, "nothing"))
    return f"{key} is {there.get(key, 'nothing')!r} there and {here.get(key, 'nothing')!r} here"
