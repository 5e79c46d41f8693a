"""What is trained, and how: models, tasks, pipelines, federated learning.

What ``__all__`` names is public; everything behind it may change.
"""

from typing import TYPE_CHECKING

from collapipe_jax.core.plugins import lazily

if TYPE_CHECKING:
    from collapipe_jax.learning.models.bert import BertWithHead, LabelledBatch
    from collapipe_jax.learning.models.bert import predict as predict_labels
    from collapipe_jax.learning.models.block import init_encoder
    from collapipe_jax.learning.models.config import EncoderConfig
    from collapipe_jax.learning.models.split_model import SplitModel
    from collapipe_jax.learning.pipeline.execution import Execution, encode_clusters
    from collapipe_jax.learning.tasks.bert_tasks import count_work as bert_work
    from collapipe_jax.learning.tasks.bert_tasks import make_sizes as bert_sizes
    from collapipe_jax.learning.tasks.corpora import TextFile
    from collapipe_jax.learning.tasks.registry import TrainedModel, load
    from collapipe_jax.learning.tasks.task import ScoredSet, Task, TaskData, in_batches

_PUBLIC = {
    "BertWithHead": "models.bert",
    "EncoderConfig": "models.config",
    "Execution": "pipeline.execution",
    "LabelledBatch": "models.bert",
    "ScoredSet": "tasks.task",
    "SplitModel": "models.split_model",
    "Task": "tasks.task",
    "TaskData": "tasks.task",
    "TextFile": "tasks.corpora",
    "TrainedModel": "tasks.registry",
    "bert_sizes": "tasks.bert_tasks:make_sizes",
    "bert_work": "tasks.bert_tasks:count_work",
    "encode_clusters": "pipeline.execution",
    "in_batches": "tasks.task",
    "init_encoder": "models.block",
    "load": "tasks.registry",
    "predict_labels": "models.bert:predict",
}
"""Module of each public name, and the name there where it is another."""

__all__ = list(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = lazily(__name__, _PUBLIC)
