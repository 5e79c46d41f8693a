"""English to German on Tatoeba sentence pairs, over 4 clusters with DSSRA deciding.

    collapipe train --config=tatoeba --workdir=runs/tatoeba

About 6 minutes on 2 cores. Greedy test BLEU 18.6, mean of seeds 0 to 4; copying the source
gives 0.4.

``tatoeba:base`` takes all pairs and a Transformer of the size of Vaswani et al. (2017), for a
GPU. Only its checks and its network have been run so far, no training.
"""

from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.named import translation

VARIANTS = ("", "base")


def get_config(variant: str = "") -> Config:
    """A small Transformer on 30 000 pairs, or 6 + 6 blocks on all of them."""
    config = translation.get_config()
    config.task.update({"corpus": "mt_tatoeba_deu_eng/deu.txt", "pairs": 30_000})
    config.task.update({"validation_pairs": 500, "test_pairs": 1_000})
    config.task.update({"source_length": 20, "target_length": 24})
    config.model.dropout_rate = 0.0  # four epochs: the model does not overfit yet
    if variant == "base":
        config.model.update({"width": 512, "heads": 8, "feed_forward_width": 2048})
        config.model.update({"encoder_blocks": 6, "decoder_blocks": 6, "dropout_rate": 0.1})
        config.model.compute_dtype = "bfloat16"
        config.task.update({"pairs": 160_000, "vocabulary_size": 16_000})
        config.task.update({"source_length": 32, "target_length": 36})
        config.training.update({"rounds": 3_000, "batch": 64, "warmup_steps": 4_000})
        config.training.update({"micro_batch_choices": (1, 2, 4, 8, 16, 32, 64)})
        config.training.update({"client_learning_rate": 7e-4, "decoder_learning_rate": 7e-4})
        config.devices.memory_share = 0.1
        config.control.update({"control_unit_budget_j": 42.0, "device_budget_j": 55.0})
    return config
