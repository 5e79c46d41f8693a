"""Policies against sequence length [tokens], on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_sequence.py --workdir=runs/sweep_sequence
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Sequence length [tokens]",
        "log": True,
        "points": [(tokens, {"task.source_length": tokens}) for tokens in (32, 64, 128, 256)],
    }
