r"""Sentence pairs of one's own, over 4 clusters with DSSRA deciding.

    collapipe train --config=translation --config.task.train=train.tsv \
        --config.task.test=test.tsv --workdir=runs/own

A small Transformer, some minutes on 2 cores whatever the number of pairs. One file alone,
``--config.task.corpus=pairs.tsv``, is split by source. Files and further keys are in
docs/own-data.md.
"""

from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.default import Config


def get_config() -> Config:
    """A small Transformer for sentences of up to 32 tokens, and translations of up to 36."""
    config = default.get_config()
    config.task.update({"corpus": "", "pairs": 0})
    config.task.update({"vocabulary_size": 3_000, "source_length": 32, "target_length": 36})
    config.model.update({"encoder_blocks": 4, "decoder_blocks": 1})
    config.training.update({"rounds": 400, "warmup_steps": 200})
    config.devices.memory_share = 0.002  # scaled down with the model; see default.py
    config.control.divergence_ratio = 1.05  # losses may cost 5 % of the gradient's variance
    config.evaluation.every_rounds = 100
    config.checkpoint_every_rounds = 50
    return config
