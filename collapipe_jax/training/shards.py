"""Training runs that several processes share, every run in a workdir of its own."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from collapipe_jax.config.experiment import Experiment
from collapipe_jax.simulation.montecarlo import WHOLE, Shard
from collapipe_jax.training.loop import train_together


def train_shard(
    experiments: Sequence[Experiment],
    workdirs: Sequence[Path],
    console: Console,
    shard: Shard = WHOLE,
) -> int:
    """Train the runs of a shard that are not finished.

    Args:
      experiments: the runs of all shards, the same in every process.
      workdirs: folder of each.
      console: for progress.
      shard: which of them are trained here.

    Returns:
      The number of runs that all shards lack.
    """
    own = shard.of(range(len(experiments)))
    folders = [workdirs[place] for place in own]
    train_together([experiments[place] for place in own], folders, resume=True, console=console)
    return sum(not (workdir / "summary.json").exists() for workdir in workdirs)
