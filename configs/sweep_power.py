"""Policies against largest D2E power [dBm], on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_power.py --workdir=runs/sweep_power
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Largest D2E power [dBm]",
        "log": False,
        "points": [(dbm, {"radio.d2e_power_max_dbm": float(dbm)}) for dbm in (17, 20, 23, 26)],
    }
