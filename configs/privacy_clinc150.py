"""Score against epsilon: a small BERT on CLINC150, a control unit of each cluster as its client.

    python -m experiments.studies.privacy --config=configs/privacy_clinc150.py \
        --workdir=runs/privacy --seeds=3

Large batches, few steps: with a fixed number of passes the noise of all steps together grows with
their number.
"""

from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.named import clinc150


def get_config() -> Config:
    """CLINC150 with a smaller model and a vocabulary that is public."""
    config = clinc150("plain")
    config.task.update({"vocabulary": "vocab_bert/bert-base-uncased-vocab.txt"})
    config.task.update({"split": "iid", "source_length": 14})
    config.model.update({"width": 64, "feed_forward_width": 128, "encoder_blocks": 2})
    config.model.update({"dropout_rate": 0.0, "label_smoothing": 0.0, "pooling": "mean"})
    config.policy.update({"name": "control_unit_fl", "micro_batches": 1})
    config.devices.memory_share = 0.05  # whole models fit
    # 375 divides the 3750 texts of a cluster: no batch has a text twice.
    config.training.update({"rounds": 40, "local_steps": 1, "batch": 375})
    config.training.update({"micro_batch_choices": (1,), "warmup_steps": 0})
    # One local step of rate 1 sends a gradient, of which the server's Adam makes a step.
    config.training.update({"client_optimizer": "sgd", "client_learning_rate": 1.0})
    config.training.update({"decoder_optimizer": "sgd", "decoder_learning_rate": 1.0})
    config.training.update({"server_optimizer": "adam", "server_learning_rate": 4e-3})
    config.training.update({"schedule": "constant", "clip_norm": 0.0})
    config.training.embedding_rate_factor = 1.0
    config.evaluation.every_rounds = 20
    config.checkpoint_every_rounds = 40
    return config
