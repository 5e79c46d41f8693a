"""Training from Python: a configuration in, a trained model out."""

import os
import tempfile

from rich.console import Console

from collapipe_jax.config.default import Config
from collapipe_jax.config.experiment import build_experiment
from collapipe_jax.training.loop import TrainedRun
from collapipe_jax.training.loop import train as train_experiment


def train(
    config: Config,
    workdir: str | os.PathLike | None = None,
    *,
    quiet: bool = False,
) -> TrainedRun:
    """Train the model of a configuration over a simulated network.

    The same call again goes on where the first stopped, or returns what it left.

    Args:
      config: as of :func:`read_config`.
      workdir: folder to keep metrics, checkpoints and model in; None keeps nothing.
      quiet: whether to show no progress.

    Raises:
      InputError: naming the key, file or folder that is wrong.
    """
    experiment, console = build_experiment(config), Console(quiet=quiet)
    if workdir is not None:
        return train_experiment(experiment, workdir, resume=True, console=console)
    with tempfile.TemporaryDirectory() as folder:
        return train_experiment(experiment, folder, console=console)
