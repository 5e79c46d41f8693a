r"""Tatoeba with a Transformer of the size of Vaswani et al. (2017), for a GPU.

    python -m experiments.train --config=configs/translation_tatoeba_base.py \
        --workdir=runs/tatoeba_base

Only its checks and its network have been run so far, no training.
"""

from ml_collections import ConfigDict

from configs import translation_tatoeba


def get_config() -> ConfigDict:
    """The small configuration's task with all pairs and a model of 6 + 6 blocks."""
    config = translation_tatoeba.get_config()
    config.model.update({"width": 512, "heads": 8, "feed_forward_width": 2048})
    config.model.update({"encoder_blocks": 6, "decoder_blocks": 6, "compute_dtype": "bfloat16"})
    config.model.dropout_rate = 0.1
    config.task.update({"pairs": 160_000, "vocabulary_size": 16_000, "source_length": 32})
    config.task.update({"target_length": 36})
    config.training.update({"rounds": 3_000, "batch": 64, "warmup_steps": 4_000})
    config.training.update({"micro_batch_choices": (1, 2, 4, 8, 16, 32, 64)})
    config.training.update({"client_learning_rate": 7e-4, "decoder_learning_rate": 7e-4})
    config.devices.memory_share = 0.1  # scaled down with the model; see default.py
    config.control.update({"control_unit_budget_j": 42.0, "device_budget_j": 55.0})
    return config
