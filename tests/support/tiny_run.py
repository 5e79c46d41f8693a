"""A run small enough for tests: 6 rounds of a two-block model on 400 synthetic pairs."""

from ml_collections import ConfigDict

from collapipe_jax.runs.config import default


def get_config() -> ConfigDict:
    """Compiles in seconds, with a checkpoint every 2 rounds and a score every 3."""
    config = default.get_config()
    config.network.update({"clusters": 2, "devices": 2})
    config.model.update({"width": 16, "heads": 2, "feed_forward_width": 32})
    config.model.update({"encoder_blocks": 2, "decoder_blocks": 1})
    config.dynamics.availability = 0.6  # clusters sit out now and then
    config.task.update({"pairs": 400, "validation_pairs": 20, "test_pairs": 30})
    config.task.update({"vocabulary_size": 200, "source_length": 32, "target_length": 40})
    config.training.update({"rounds": 6, "local_steps": 2, "batch": 4})
    config.training.update({"micro_batch_choices": (1, 2, 4), "warmup_steps": 2})
    config.training.update({"client_learning_rate": 1e-2, "decoder_learning_rate": 1e-2})
    config.policy.update({"name": "static_pipeline", "micro_batches": 2})
    config.evaluation.update({"every_rounds": 3, "beams": 1})
    config.checkpoint_every_rounds = 2
    return config
