"""Policies against D2E bandwidth [MHz], on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_bandwidth.py --workdir=runs/sweep_bandwidth
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "D2E bandwidth [MHz]",
        "log": True,
        "points": [(mhz, {"radio.d2e_bandwidth_hz": mhz * 1e6}) for mhz in (5, 10, 20, 40, 80)],
    }
