"""All tasks by the name that ``task.kind`` gives."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collapipe_jax.core.errors import InputError, rename_error_keys
from collapipe_jax.core.files import read_object, write_sealed
from collapipe_jax.core.plugins import find
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.tensor_files import CONFIG, read_json
from collapipe_jax.learning.tasks.causal_lm import LanguageModelling
from collapipe_jax.learning.tasks.classification import Classification
from collapipe_jax.learning.tasks.masked_lm import MaskedLanguageModelling
from collapipe_jax.learning.tasks.tagging import Tagging
from collapipe_jax.learning.tasks.task import TASK_KEY, Task
from collapipe_jax.learning.tasks.translation import Translation

TASKS: dict[str, type[Task]] = {
    "translation": Translation,
    "tagging": Tagging,
    "classification": Classification,
    "masked_lm": MaskedLanguageModelling,
    "causal_lm": LanguageModelling,
}
"""A new task of the package is an entry here; one of one's own is named instead."""


def find_task(kind: str) -> type[Task]:
    """The task of a name of the registry, or of ``package.module:name``.

    Raises:
      InputError: if there is no such task.
    """
    task = find("task.kind", kind, TASKS)
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise InputError("task.kind", kind, "it is no class of a task", "Name a subclass of Task")
    return task


_OF_CLASSES = {
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
    "ForMaskedLM": "masked_lm",
    "ForPreTraining": "masked_lm",
    "ForCausalLM": "causal_lm",
}
"""Tasks by how the classes of ``transformers`` end, which ``config.json`` names."""

_DIGESTS = "collapipe_sha256"
"""Key of ``config.json`` with digests of a model's other files."""


class TrainedModel:
    """A trained model in use: a task without data, and its parameters."""

    def __init__(self, task: Task, params: Params):
        self.task, self.params = task, params

    def predict(self, texts: Sequence[Any], **options: Any) -> list[Any]:
        """Answers, one a text, of any length and number; options are of the task's ``predict``.

        Raises:
          InputError: a single text in place of a list, or an option that is wrong.
        """
        if isinstance(texts, str):
            raise InputError("texts", texts, "a single text", "Give a list of texts")
        return self.task.predict(self.params, texts, **options)

    def evaluate(self, file: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
        """Scores on a labelled file; options are of the task's ``evaluate``."""
        return self.task.evaluate(self.params, file, **options)


def load(folder: str | os.PathLike[str]) -> TrainedModel:
    """The trained model of a run, or a model in the layout of Hugging Face.

    Args:
      folder: workdir of a run that has ended, or the folder ``model`` in it, or a copy of either.
        A task of one's own is imported by the name in ``config.json``. Or a folder of a BERT with
        a head, a Llama or a Qwen, whose class says the task.

    Raises:
      InputError: a folder without a model, or with a damaged one.

    Example:
      >>> import collapipe_jax as cp
      >>> model = cp.load("tests/data/classification_tiny")
      >>> model.predict(["tell me of oslo"])[0].label
      'place'
    """
    path = _model_folder(Path(folder))
    config = path / CONFIG
    document = read_json(config, "Take the original file")
    kind = document.get(TASK_KEY) or _task_of_class(folder, document)
    if not isinstance(kind, str):
        raise InputError(f"{config}: {TASK_KEY}", kind, "is no name", "Take the original file")
    with rename_error_keys({"task.kind": f"{config}: {TASK_KEY}"}):
        task = find_task(kind)
    _check_digests(path)
    return TrainedModel(*task.load(path))


def _task_of_class(folder: str | os.PathLike[str], document: Mapping[str, Any]) -> str:
    """The task of a folder of another program."""
    names = document.get("architectures")
    for name in names if isinstance(names, list) else ():
        for end, kind in _OF_CLASSES.items():
            if str(name).endswith(end):
                return kind
    problem = f"its {CONFIG} names neither a task ({TASK_KEY}) nor a class with one (architectures)"
    remedy = f"Fine-tune it with train --model, or take one that ends in {', '.join(_OF_CLASSES)}"
    raise InputError("model", str(folder), problem, remedy)


def seal_model(folder: Path) -> None:
    """Add to ``config.json`` of a model the digests of its other files, and of itself."""
    document = read_json(folder / CONFIG, "Export the model again")
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name != CONFIG)
    document[_DIGESTS] = {file.name: _digest(file) for file in files}
    write_sealed(folder / CONFIG, document)


def _check_digests(folder: Path) -> None:
    """Refuse a model of which a file is not what was exported; other programs write none."""
    remedy = f"Take the original file, or remove {_DIGESTS} from {CONFIG} if you changed it"
    document = read_object(folder / CONFIG)
    if document is None:
        problem = "changed since the model was exported"
        raise InputError("file", str(folder / CONFIG), problem, "Take the original file")
    for name, digest in (document.get(_DIGESTS) or {}).items():
        path = folder / name
        if not path.is_file() or _digest(path) != digest:
            problem = "missing, or changed since the model was exported"
            raise InputError("file", str(path), problem, remedy)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _model_folder(folder: Path) -> Path:
    """The folder that holds a model: this one, or ``model`` in it."""
    inner = folder / "model"
    if os.path.isfile(inner / CONFIG):  # is_file() raises where a name is too long
        return inner
    settings = (read_object(folder / CONFIG) or {}).get("task")
    is_workdir = isinstance(settings, dict)
    if os.path.isfile(folder / CONFIG) and not is_workdir:
        return folder
    problem, remedy = "holds no model", "Name the workdir of a training run that has ended"
    if is_workdir and (folder / "summary.json").exists():
        problem = "its run has ended without writing a model"
        remedy = (
            "Where nobody trained, or the task has no export, there is none; else delete its "
            "summary.json, and go on with --resume to write the model"
        )
    elif is_workdir:
        problem = "its run has not ended, so there is no model yet"
        remedy = "Let it end with --resume"
    raise InputError("model", str(folder), problem, remedy)
