r"""CLINC150 with BERT-base, for a GPU.

    python -m experiments.train --workdir=runs/clinc150_base \
        --config=configs/classification_clinc150_base.py

starts from fresh weights, or with ``--config.model.pretrained=DIR`` from a folder of
bert-base-uncased. The result is in ``model/`` of the workdir, as Hugging Face lays it out. Only its
checks and its network have been run so far, no training.
"""

from ml_collections import ConfigDict

from configs import classification_clinc150


def get_config() -> ConfigDict:
    """The small configuration's task at the size of BERT-base."""
    config = enlarge(classification_clinc150.get_config())
    config.task.source_length = 32
    config.training.update({"rounds": 400, "warmup_steps": 160})
    config.control.update({"control_unit_budget_j": 140.0, "device_budget_j": 120.0})
    return config


def enlarge(config: ConfigDict) -> ConfigDict:
    """A configuration of BERT with the sizes of BERT-base, its vocabulary and its step sizes."""
    config.model.update({"width": 768, "heads": 12, "feed_forward_width": 3072})
    config.model.update({"encoder_blocks": 12, "compute_dtype": "bfloat16"})
    config.model.initial_deviation = 0.02  # as published
    config.task.update({"vocabulary": "vocab_bert/bert-base-uncased-vocab.txt"})
    config.task.update({"vocabulary_size": 30_522, "lowercase": True})
    config.training.update({"batch": 32, "micro_batch_choices": (1, 2, 4, 8, 16, 32)})
    config.training.update({"client_learning_rate": 5e-5, "decoder_learning_rate": 5e-5})
    config.devices.memory_share = 0.25  # a quarter of the board is free to train
    return config
