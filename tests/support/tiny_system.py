"""Parameters of a small network, from the default configuration."""

import jax
import numpy as np

from collapipe_jax.edge.network.propagation import PropagationParams
from collapipe_jax.runs.config.default import get_config
from collapipe_jax.runs.config.system import build_system_params

PROPAGATION = PropagationParams(
    d2e_path_loss="macro_2ghz",
    d2d_path_loss="d2d_outdoor",
    d2e_shadowing_db=8.0,
    d2d_shadowing_db=4.0,
    d2e_decorrelation_distance_m=50.0,
    d2d_decorrelation_distance_m=10.0,
)


def tiny_params(**dynamics):
    """Two clusters of three devices and four blocks; ``dynamics`` replaces its fields."""
    config = get_config()
    config.network.clusters, config.network.devices = 2, 3
    config.model.encoder_blocks = 4
    config.training.update({"batch": 32, "micro_batch_choices": (1, 2, 4, 8, 16, 32)})
    config.devices.memory_share = 0.005
    config.control.control_unit_margin = 0.0  # budgets as they stand
    params = build_system_params(config, np.array([0.4, 0.6]))
    changed = {name: jax.device_put(value) for name, value in dynamics.items()}
    return params.replace(dynamics=params.dynamics.replace(**changed))
