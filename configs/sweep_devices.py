"""Policies against devices per cluster, on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_devices.py --workdir=runs/sweep_devices
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Devices per cluster",
        "log": False,
        "points": [(count, {"network.devices": count}) for count in (2, 3, 5, 8)],
    }
