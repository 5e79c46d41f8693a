r"""Pre-training of a BERT on texts without labels, over 4 clusters with DSSRA deciding.

    collapipe train --config=masked_lm --config.task.train=texts.txt --workdir=runs/pretrained

The folder runs/pretrained/model is a start for other tasks with ``model.pretrained``.
"""

from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.named import classification


def get_config() -> Config:
    """A small BERT for windows of 64 pieces."""
    config = classification.get_config()
    config.task.update({"kind": "masked_lm", "vocabulary_size": 8_000, "source_length": 64})
    config.model.label_smoothing = 0.0
    config.devices.memory_share = 0.004  # scaled down with the model; see default.py
    config.control.device_budget_j = 1.4  # 1.8 times the work of default.py
    return config
