"""The comparison of the paper's kind: BERT-base over 4 clusters of 5 boards.

    python -m experiments.compare --config=configs/paper.py --workdir=runs/paper

Parameters are those of default.py, whose sources stand beside them, with the workload of
BERT-base and boards as they are sold. All were chosen before dssra was run; the budgets only once
a first look had shown that nobody can keep those of default.py, made for a tiny model.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """BERT-base, batches of 32 sequences of 128 tokens."""
    config = default.get_config()
    # A comparison reads sizes alone, no corpus.
    config.task.update({"kind": "classification", "train": "none", "test": "none"})
    config.task.update({"labels": 150, "vocabulary_size": 30_522, "source_length": 128})
    # Devlin et al. 2018, BERT-base.
    config.model.update({"width": 768, "heads": 12, "feed_forward_width": 3072})
    config.model.update({"encoder_blocks": 12, "dropout_rate": 0.1})
    config.training.update({"batch": 32, "micro_batch_choices": (1, 2, 4, 8, 16, 32)})
    config.devices.memory_share = 1.0
    # An uplink of all parameters, and four times the work of a quarter of these tokens, for
    # which classification_clinc150_base.py has its budgets.
    config.control.update({"control_unit_budget_j": 140.0, "device_budget_j": 480.0})
    return config
