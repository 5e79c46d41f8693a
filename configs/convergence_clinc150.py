"""How losses slow convergence: a small BERT on CLINC150 over links that do not retransmit.

    python -m experiments.studies.convergence --config=configs/convergence_clinc150.py \
        --workdir=runs/convergence --seeds=12

Decisions are fixed here, so that one of them at a time can be varied.
"""

from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.named import clinc150


def get_config() -> Config:
    """CLINC150 with a smaller model, where losses matter."""
    config = clinc150("plain")
    config.model.update({"width": 64, "feed_forward_width": 256, "encoder_blocks": 4})
    config.training.update({"rounds": 60, "warmup_steps": 60})
    config.training.update({"client_learning_rate": 2e-3, "decoder_learning_rate": 2e-3})
    config.radio.harq_attempts = 1  # as in a broadcast, or where a deadline forbids more
    config.radio.transport_block_bits = 36_696.0  # the largest of LTE on 10 MHz, 3GPP TS 36.213
    config.devices.memory_share = 0.01  # any device can hold all blocks
    config.task.update({"validation": "", "validation_samples": 500})  # often, so of few texts
    config.evaluation.every_rounds = 5
    config.checkpoint_every_rounds = 30
    return config
