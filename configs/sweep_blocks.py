"""Policies against encoder blocks, on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_blocks.py --workdir=runs/sweep_blocks
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Encoder blocks",
        "log": False,
        "points": [(count, {"model.encoder_blocks": count}) for count in (4, 8, 12, 24)],
    }
