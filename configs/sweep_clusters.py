"""Policies against clusters, on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_clusters.py --workdir=runs/sweep_clusters
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Clusters",
        "log": False,
        "points": [(count, {"network.clusters": count}) for count in (1, 2, 4, 8)],
    }
