r"""Policies against micro-batches of policies that fix them, on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_micro_batches.py \
        --workdir=runs/sweep_micro_batches
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Micro-batches of policies that fix them",
        "log": True,
        "points": [(count, {"policy.micro_batches": count}) for count in (1, 2, 4, 8, 16, 32)],
    }
