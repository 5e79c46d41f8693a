"""paper.py with the workload of Transformer-base translation instead of BERT-base.

python -m experiments.compare --config=configs/paper_transformer.py --workdir=runs/paper_transformer
"""

from ml_collections import ConfigDict

from configs import paper


def get_config() -> ConfigDict:
    """Vaswani et al. 2017, base: 6 + 6 blocks of width 512; 32 pairs of 64 tokens."""
    config = paper.get_config()
    config.task.update({"kind": "translation", "train": "", "test": "", "labels": 0})
    config.task.update({"vocabulary_size": 37_000, "source_length": 64, "target_length": 64})
    config.model.update({"width": 512, "heads": 8, "feed_forward_width": 2048})
    config.model.update({"encoder_blocks": 6, "decoder_blocks": 6})
    # In proportion to paper.py: bits of all parameters, and FLOPs of the encoder.
    config.control.update({"control_unit_budget_j": 50.0, "device_budget_j": 53.0})
    return config
