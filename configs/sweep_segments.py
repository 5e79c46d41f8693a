"""Policies against segments of titanic, on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_segments.py --workdir=runs/sweep_segments
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Segments of titanic",
        "log": False,
        "points": [(count, {"policy.partitions": count}) for count in (1, 2, 3, 4, 5)],
    }
