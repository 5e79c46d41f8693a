"""Training runs that several processes share, every run in a workdir of its own."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from collapipe_jax.core.errors import TrainingError
from collapipe_jax.runs.config.experiment import Experiment
from collapipe_jax.runs.results.shards import WHOLE, Shard
from collapipe_jax.runs.training.loop import train_together
from collapipe_jax.runs.training.ongoing_run import BREAKDOWN


def train_shard(
    experiments: Sequence[Experiment],
    workdirs: Sequence[Path],
    console: Console,
    shard: Shard = WHOLE,
    may_break: bool = False,
) -> int:
    """Train the runs of a shard that are not finished.

    Args:
      experiments: the runs of all shards, the same in every process.
      workdirs: folder of each.
      console: for progress.
      shard: which of them are trained here.
      may_break: whether a run that breaks down is done, too.

    Returns:
      The number of runs that all shards lack.
    """
    ends = ("summary.json", BREAKDOWN) if may_break else ("summary.json",)

    def is_done(workdir: Path) -> bool:
        return any((workdir / end).exists() for end in ends)

    # A run that broke down breaks down again: it is not tried twice.
    own = [n for n in shard.of(range(len(experiments))) if not (may_break and is_done(workdirs[n]))]
    folders = [workdirs[place] for place in own]
    with contextlib.suppress(*([TrainingError] if may_break else [])):
        train_together([experiments[place] for place in own], folders, resume=True, console=console)
    return sum(not is_done(workdir) for workdir in workdirs)
