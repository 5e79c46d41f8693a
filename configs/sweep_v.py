"""Policies against V, on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_v.py --workdir=runs/sweep_v
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "V",
        "log": True,
        "points": [(v, {"control.v": float(v)}) for v in (0.3, 1, 3, 10, 30)],
    }
