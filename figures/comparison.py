"""What the figures of a comparison start from: networks that can run, and units."""

import numpy as np

from collapipe_jax.errors import InputError
from experiments.compare_files import Comparison
from experiments.compare_summary import means, only_runnable, runnable


def kept(result: Comparison) -> Comparison:
    """The comparison without networks in which no cluster can ever hold the encoder.

    Raises:
      InputError: if no network is left.
    """
    use = runnable(result.networks)
    if not use.any():
        problem = "no network of the comparison can run a round"
        raise InputError("realisations", len(use), problem, "Give devices more memory")
    return only_runnable(result)


def round_means(result: Comparison) -> dict[str, dict[str, np.ndarray]]:
    """Means over the rounds of every policy by metric, ``[R]``.

    ``divergence_over_target`` comes in place of the divergence.
    """
    told = {}
    for name, values in result.policies.items():
        told[name] = means(values)
        told[name]["divergence_over_target"] = (
            told[name].pop("divergence") / result.networks["divergence_target"]
        )
    return told


def many(count: int, noun: str) -> str:
    """A count in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def horizon(result: Comparison) -> str:
    """How many networks and rounds stand behind a figure."""
    networks = len(result.networks["divergence_target"])
    return f"{many(networks, 'network')}, {many(result.settings['compare']['rounds'], 'round')}"
