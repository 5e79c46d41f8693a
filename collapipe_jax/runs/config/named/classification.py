r"""Texts of one's own with classes, such as intents, over 4 clusters with DSSRA deciding.

    collapipe train --config=classification --config.task.train=train.csv \
        --config.task.test=test.csv --workdir=runs/own

A small BERT from fresh weights, some minutes on 2 cores whatever the number of texts. Files and
further keys are in docs/own-data.md.
"""

from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.default import Config


def get_config() -> Config:
    """A small BERT for texts of up to 32 tokens."""
    config = default.get_config()
    config.task.update({"kind": "classification", "vocabulary_size": 3_000, "source_length": 32})
    config.model.update({"encoder_blocks": 4})
    config.training.update({"rounds": 200, "warmup_steps": 200})
    config.training.update({"client_learning_rate": 1e-3, "decoder_learning_rate": 1e-3})
    config.devices.memory_share = 0.002  # scaled down with the model; see default.py
    config.evaluation.every_rounds = 50
    config.checkpoint_every_rounds = 50
    return config
