"""Options by which several processes or machines share an experiment."""

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from collapipe_jax.cli.options import refuse_given
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import own_share
from collapipe_jax.runs.results.experiment import Results
from collapipe_jax.runs.results.realisations import parts_of
from collapipe_jax.runs.results.store import Shard, read_shard
from collapipe_jax.runs.studies.sweep_records import (
    Comparisons,
    missing_by_shard,
    open_comparisons,
    run_comparisons,
)

SHARD: dict[str, Any] = {"shard": ("0/1", "share of the parts, i/n with i from 0")}
"""Option of programs that several processes may share."""
CLUSTER: dict[str, Any] = {
    "cluster": (None, "slurm, or local: start all shards, wait, and gather"),
    "shards": (1, "number of shards of --cluster"),
    "workers": (0, "most shards of --cluster at a time (default: all)"),
    "cluster-options": ("", "key=value,... of jobs: partition, time (minutes), cpus, gpus, ..."),
}
"""Options of commands that start their shards themselves."""


def refuse_without_cluster(given: argparse.Namespace) -> None:
    """Refuse options of ``--cluster`` where it is not given."""
    refuse_given(given, CLUSTER, "without --cluster it does nothing", "Add that, or leave it out")


def run_shards(
    command: str,
    argv: Sequence[str],
    given: argparse.Namespace,
    made: Comparisons,
    console: Console,
) -> Results | None:
    """Make the parts of a command's shard, or of all shards on a cluster.

    Returns:
      The results if all parts are done; else None, and the number of missing ones is printed.
    """
    shard, start = read_shards(command, argv, given)
    results = open_comparisons(given.workdir, made)
    start(results, list(parts_of(results.options)))
    with own_share(results.folder, *shard):
        missing = run_comparisons(results, made, console, shard)
    return results if is_done(missing, shard, console.print) else None


def read_shards(
    command: str, argv: Sequence[str], given: argparse.Namespace
) -> tuple[Shard, Callable[[Results, Sequence[str]], None]]:
    """The shard of this process, and a function that runs the others.

    That function takes results and the names of all their parts. It does nothing without
    ``--cluster``.

    Raises:
      InputError: naming the option that is wrong.
    """
    shard = read_shard(given.shard)
    if given.cluster is None:
        refuse_without_cluster(given)
        return shard, lambda results, parts: None
    if shard.count > 1:
        remedy = "Give --shards, the number of them"
        raise InputError("--shard", given.shard, "--cluster starts all shards", remedy)
    from collapipe_jax.cli.cluster import read_cluster  # brings submitit

    run = read_cluster(given)

    def start(results: Results, parts: Sequence[str]) -> None:
        run(results.folder, command, argv, functools.partial(missing_by_shard, results, parts))

    return shard, start


def is_done(missing: int, shard: Shard, say: Callable[[str], Any] = print) -> bool:
    """Whether no part is missing; else says how many are."""
    if missing:
        own = f"shard {shard.index}/{shard.count} is done; "
        say(f"{own}other shards lack {missing} parts. The last one writes the summary.")
    return not missing
