r"""Policies against how unlike the boards are, on the networks of paper.py.

python -m experiments.sweep --config=configs/sweep_heterogeneity.py \
        --workdir=runs/sweep_heterogeneity
"""

from configs import paper

get_config = paper.get_config

_NANO, _TX2, _NX, _ORIN = "jetson_nano", "jetson_tx2", "jetson_xavier_nx", "jetson_orin_nano"


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Speed of the fastest board over the slowest",
        "log": False,
        "points": [
            (1.0, {"devices.kinds": (_NX,)}),
            (1.3, {"devices.kinds": (_TX2, _NX)}),
            (1.9, {"devices.kinds": (_TX2, _NX, _ORIN)}),
            (5.4, {"devices.kinds": (_NANO, _TX2, _NX, _ORIN)}),
        ],
    }
