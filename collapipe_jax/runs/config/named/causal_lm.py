r"""A decoder-only language model for lines of text, over 4 clusters with DSSRA deciding.

    collapipe train --config=causal_lm --config.task.train=train.txt \
        --config.task.test=test.txt --workdir=runs/own

A small Llama from fresh weights; without files it learns the invented sentences of ``quickstart``.
docs/how-to/language-model.md has the formats, and docs/results.md a run on real text.
"""

from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.default import Config


def get_config() -> Config:
    """A small Llama for texts of up to 32 pieces; longer ones take several rows."""
    config = default.get_config()
    config.task.update({"kind": "causal_lm", "vocabulary_size": 2_000, "source_length": 32})
    config.model.update({"encoder_blocks": 4, "key_value_heads": 2, "feed_forward_width": 344})
    config.model.label_smoothing = 0.0  # perplexity pays for it
    config.training.update({"rounds": 400, "warmup_steps": 100})
    config.devices.memory_share = 0.004  # scaled down with the model; see default.py
    config.evaluation.every_rounds = 50
    config.checkpoint_every_rounds = 50
    return config
