r"""Sentences of one's own with entities, over 4 clusters with DSSRA deciding.

    collapipe train --config=tagging --config.task.train=train.conll \
        --config.task.test=test.conll --workdir=runs/own

A small BERT from fresh weights, some minutes on 2 cores whatever the number of sentences. Files and
further keys are in docs/own-data.md.
"""

from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.named import classification


def get_config() -> Config:
    """A small BERT for windows of 64 tokens."""
    config = classification.get_config()
    config.task.update({"kind": "tagging", "source_length": 64})
    # Capitals mark names; dropout teaches the pieces of words that training lacks.
    config.task.update({"lowercase": False, "piece_dropout": 0.2, "vocabulary_size": 8_000})
    config.training.update({"client_learning_rate": 2e-3, "decoder_learning_rate": 2e-3})
    config.devices.memory_share = 0.004  # scaled down with the model; see default.py
    config.control.device_budget_j = 1.4  # 1.8 times the work of default.py
    return config
