"""paper.py where moving parameters is most of a round: little bandwidth, one local step.

    python -m experiments.compare --config=configs/paper_lowband.py --workdir=runs/lowband

Every pipeline policy then waits for the same upload, and what can be saved on devices and
their links is a small part of the round.
"""

from ml_collections import ConfigDict

from configs import paper


def get_config() -> ConfigDict:
    """A narrow LTE carrier and a round after every step."""
    config = paper.get_config()
    config.radio.d2e_bandwidth_hz = 5e6  # the narrowest common LTE carrier
    config.training.local_steps = 1
    return config
