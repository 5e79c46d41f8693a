"""Policies against how fast devices walk, on the networks of default.py.

python -m experiments.sweep --config=configs/sweep_mobility.py --workdir=runs/sweep_mobility

Rounds of these networks last about as long as dynamics.round_interval_s. Those of paper.py last
minutes, in which a pedestrian crosses the disc of its cluster several times: any walk would look
alike there.
"""

from configs import default

get_config = default.get_config


def get_sweep() -> dict:
    """Axis and points; each point sets keys of the configuration."""
    return {
        "axis": "Mean speed of devices, m/s",
        "log": False,
        "points": [
            (speed, {"dynamics.speed_m_per_s": speed}) for speed in (0.0, 0.5, 1.4, 5.0, 15.0)
        ],
    }
