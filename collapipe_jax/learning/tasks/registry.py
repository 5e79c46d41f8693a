"""All tasks by the name that ``task.kind`` gives."""

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.plugins import find
from collapipe_jax.learning.tasks.causal_lm import LanguageModelling
from collapipe_jax.learning.tasks.classification import Classification
from collapipe_jax.learning.tasks.masked_lm import MaskedLanguageModelling
from collapipe_jax.learning.tasks.tagging import Tagging
from collapipe_jax.learning.tasks.task import Task
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
