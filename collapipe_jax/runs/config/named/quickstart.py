"""The embedded default: a small Transformer on synthetic text, no download.

    make quickstart

runs it twice, with DSSRA and with the static pipeline: 1 to 3 minutes on 2 cores with
installation, test BLEU of 66 and 67, and DSSRA in half of the simulated time.
"""

from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.default import Config


def get_config() -> Config:
    """The quickstart's configuration."""
    config = default.get_config()
    config.network.update({"clusters": 3, "devices": 4})
    config.model.update({"width": 64, "feed_forward_width": 256, "encoder_blocks": 4})
    config.model.update({"decoder_blocks": 1, "dropout_rate": 0.0})
    config.task.update({"pairs": 8_000, "validation_pairs": 100, "test_pairs": 200})
    config.training.update({"rounds": 80, "warmup_steps": 60})
    # The best of 4, 8 and 16e-3 on validation, for every policy that is a pipeline.
    config.training.update({"client_learning_rate": 8e-3, "decoder_learning_rate": 8e-3})
    config.devices.memory_share = 0.001  # scaled down with the model; see default.py
    config.control.update({"control_unit_budget_j": 0.4, "device_budget_j": 0.1})
    config.evaluation.update({"every_rounds": 20, "beams": 1})
    config.checkpoint_every_rounds = 20
    return config
