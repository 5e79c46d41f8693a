r"""Policies against D2D bandwidth [MHz], on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_d2d_bandwidth.py \
        --workdir=runs/sweep_d2d_bandwidth
"""

from configs import paper

get_config = paper.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "D2D bandwidth [MHz]",
        "log": True,
        "points": [(mhz, {"radio.d2d_bandwidth_hz": mhz * 1e6}) for mhz in (2.5, 5, 10, 20, 40)],
    }
