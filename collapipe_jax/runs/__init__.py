"""Runs of both together: configuration, training, studies, results, figures.

What ``__all__`` names is public; everything behind it may change.
"""

from typing import TYPE_CHECKING

from collapipe_jax.core.plugins import lazily

if TYPE_CHECKING:
    from collapipe_jax.runs.config.experiment import build_experiment
    from collapipe_jax.runs.config.files import read_config
    from collapipe_jax.runs.config.system import system_params
    from collapipe_jax.runs.documents import (
        read_decision,
        read_network,
        write_decision,
        write_network,
    )
    from collapipe_jax.runs.results.datasets import open_results
    from collapipe_jax.runs.training.loop import train_together
    from collapipe_jax.runs.training.ongoing_run import TrainedRun
    from collapipe_jax.runs.training.train import train

_PUBLIC = {
    "TrainedRun": "training.ongoing_run",
    "build_experiment": "config.experiment",
    "open_results": "results.datasets",
    "read_config": "config.files",
    "read_decision": "documents",
    "read_network": "documents",
    "system_params": "config.system",
    "train": "training.train",
    "train_together": "training.loop",
    "write_decision": "documents",
    "write_network": "documents",
}
"""Module of each public name, and the name there where it is another."""

__all__ = list(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = lazily(__name__, _PUBLIC)
