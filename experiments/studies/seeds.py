"""Training experiments on several seeds."""

import itertools
from collections.abc import Iterator

from ml_collections import ConfigDict

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.config.experiment import Experiment, build_experiment


def experiments_of_seeds(config: ConfigDict, seeds: int) -> Iterator[Experiment]:
    """Experiments on the seeds from 0 on; the first one is built before this returns.

    Raises:
      InputError: if there are too few seeds, or the configuration is wrong.
    """
    if seeds < 2:
        raise InputError("--seeds", seeds, "no interval from so few", "Give 2 or more")

    def build(seed: int) -> Experiment:
        own = config.copy_and_resolve_references()
        own.seed = seed
        return build_experiment(own)

    return itertools.chain([build(0)], map(build, range(1, seeds)))
