"""Training from Python: a configuration in, a trained model out."""

import os
import tempfile

from rich.console import Console

from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.loop import train as train_experiment
from collapipe_jax.runs.training.ongoing_run import TrainedRun


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

    Returns:
      Parameters, metrics of all rounds, test scores, and what figures are drawn from.

    Raises:
      InputError: naming the key, file or folder that is wrong.

    Example:
      >>> import collapipe_jax as cp
      >>> tiny = {"network.clusters": 2, "network.devices": 2, "policy.name": "static_pipeline"}
      >>> tiny |= {"model.width": 16, "model.heads": 2, "model.feed_forward_width": 32}
      >>> tiny |= {"task.pairs": 400, "task.validation_pairs": 20, "task.test_pairs": 20}
      >>> tiny |= {"training.rounds": 2, "training.warmup_steps": 2}
      >>> run = cp.train(cp.read_config("quickstart", tiny), quiet=True)
      >>> run.history["latency_s"].shape, run.history["energy_j"].shape  # s; J, [rounds, N, K + 1]
      ((2,), (2, 2, 3))
    """
    experiment, console = build_experiment(config), Console(quiet=quiet)
    if workdir is not None:
        return train_experiment(experiment, workdir, resume=True, console=console)
    with tempfile.TemporaryDirectory() as folder:
        try:
            return train_experiment(experiment, folder, console=console)
        except KeyboardInterrupt as stop:
            raise type(stop)("nothing is kept without a workdir") from None
