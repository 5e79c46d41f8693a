"""Policies against local steps in a round, on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_local_steps.py --workdir=runs/sweep_local_steps
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Local steps in a round",
        "log": True,
        "points": [(steps, {"training.local_steps": steps}) for steps in (1, 4, 16, 64)],
    }
