"""All tasks by the name that ``task.kind`` gives."""

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.plugins import find
from collapipe_jax.learning.tasks.causal_lm import CAUSAL_LM
from collapipe_jax.learning.tasks.classification import CLASSIFICATION
from collapipe_jax.learning.tasks.masked_lm import MASKED_LM
from collapipe_jax.learning.tasks.tagging import TAGGING
from collapipe_jax.learning.tasks.task import Task
from collapipe_jax.learning.tasks.translation import TRANSLATION

TASKS: dict[str, Task] = {
    "translation": TRANSLATION,
    "tagging": TAGGING,
    "classification": CLASSIFICATION,
    "masked_lm": MASKED_LM,
    "causal_lm": CAUSAL_LM,
}
"""A new task of the package is an entry here; one of one's own is named instead."""


def find_task(kind: str) -> Task:
    """The task of a name of the registry, or of ``package.module:name``.

    Raises:
      InputError: if there is no such task.
    """
    found = find("task.kind", kind, TASKS)
    if not isinstance(found, Task):
        raise InputError("task.kind", kind, f"it is a {type(found).__name__}", "Name a Task")
    return found
