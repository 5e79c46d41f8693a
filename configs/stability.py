"""A network so small that the best decision of a round can be found, with budgets that bind.

python -m experiments.studies.stability --config=configs/stability.py --workdir=runs/stability
"""

from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.default import Config


def get_config() -> Config:
    """Two clusters of two devices and four blocks."""
    config = default.get_config()
    config.network.update({"clusters": 2, "devices": 2})
    config.model.encoder_blocks = 4
    config.training.micro_batch_choices = (1, 4, 16)
    config.policy.micro_batches = 4
    # A little above the floors, so that limits bind from a V on which differs by network.
    config.control.update({"device_budget_j": 0.5, "control_unit_budget_j": 0.15})
    config.control.divergence_ratio = 1.1
    return config
