r"""BC5CDR with BERT-base, for a GPU.

    python -m experiments.train --workdir=runs/bc5cdr_base \
        --config=configs/ner_bc5cdr_base.py

starts from fresh weights, or with ``--config.model.pretrained=DIR`` from a folder of
bert-base-uncased. The result is in ``model/`` of the workdir, as Hugging Face lays it out. Only its
checks and its network have been run so far, no training.
"""

from ml_collections import ConfigDict

from configs import ner_bc5cdr


def get_config() -> ConfigDict:
    """The small configuration's task at the size of BERT-base."""
    config = ner_bc5cdr.get_config()
    config.model.update({"width": 768, "heads": 12, "feed_forward_width": 3072})
    config.model.update({"encoder_blocks": 12, "compute_dtype": "bfloat16"})
    config.model.initial_deviation = 0.02  # as published
    config.task.update({"vocabulary": "vocab_bert/bert-base-uncased-vocab.txt"})
    config.task.update({"vocabulary_size": 30_522, "lowercase": True, "source_length": 128})
    config.training.update({"rounds": 200, "batch": 32, "warmup_steps": 80})
    config.training.update({"micro_batch_choices": (1, 2, 4, 8, 16, 32)})
    config.training.update({"client_learning_rate": 5e-5, "decoder_learning_rate": 5e-5})
    config.devices.memory_share = 0.25  # a quarter of the board is free to train
    config.control.update({"control_unit_budget_j": 160.0, "device_budget_j": 480.0})
    return config
