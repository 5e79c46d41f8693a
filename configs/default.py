"""The defaults of every key, which collapipe_jax/config/default.py holds with their reasons.

    python -m experiments.train --config=configs/default.py --workdir=runs/default

Other configurations start from this one and change some keys. Trains a Transformer of 6 + 2
blocks on synthetic text over 4 clusters of 5 devices: under 8 minutes on 2 cores, greedy test
BLEU 96.3 (copying the source: 0.0).
"""

from collapipe_jax.config.default import get_config

__all__ = ["get_config"]
