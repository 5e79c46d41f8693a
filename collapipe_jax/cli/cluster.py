"""Shards of a command as jobs of Slurm, or as processes of this machine (extra ``cluster``).

Jobs that Slurm preempts are queued again. Shards that were lost start again as long as parts
are finished, and go on with the parts that are missing.
"""

import argparse
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit

from collapipe_jax.errors import InputError

KINDS = ("slurm", "local")
_NAMES = {
    **{"time": "timeout_min", "cpus": "cpus_per_task", "gpus": "gpus_per_node"},
    **{"memory_gb": "mem_gb", "nodes": "nodes", "name": "name"},
}
"""Options of all kinds of clusters; others are Slurm's."""
_POLL_S = 1.0
_TIMEOUT_MIN = 24 * 60  # of a job; that of submitit is minutes


class ShardJob(submitit.helpers.Checkpointable):
    """A shard of a command; a job that is preempted is submitted again as it is."""

    def __call__(self, command: str, argv: Sequence[str], shard: str) -> None:
        """Run the command in this process."""
        from collapipe_jax.cli.main import main

        status = main([command, *argv, f"--shard={shard}"])
        if status:
            raise RuntimeError(f"shard {shard} ended with status {status}")


def read_cluster(given: argparse.Namespace) -> Callable[..., None]:
    """The function that runs all shards as the options of a command say.

    Raises:
      InputError: naming the option that is wrong.
    """
    kind, shards = given.cluster, given.shards
    if kind not in KINDS:
        raise InputError("--cluster", kind, "no such cluster", f"Choose among: {', '.join(KINDS)}")
    if shards < 1 or given.workers < 0:
        raise InputError("--shards", shards, "not positive", "Give 1 or more")
    options = read_options(given.cluster_options, kind)
    return functools.partial(run_shards, kind, shards, given.workers or shards, options)


def read_options(text: str, kind: str) -> dict[str, Any]:
    """Options of jobs written as ``key=value,...``, under the names of submitit.

    Raises:
      InputError: if the text has another form, or a key is unknown.
    """
    options = {}
    for word in filter(None, text.split(",")):
        key, _, value = word.partition("=")
        if not key or not value:
            raise InputError("--cluster-options", word, "no option", "Write key=value,...")
        if key not in _NAMES and kind != "slurm":
            known = ", ".join(_NAMES)
            raise InputError(
                "--cluster-options", key, "only Slurm has it", f"Choose among: {known}"
            )
        name = _NAMES.get(key, f"slurm_{key.removeprefix('slurm_')}")
        options[name] = int(value) if value.isdecimal() else value
    return options


def run_shards(
    kind: str,
    shards: int,
    workers: int,
    options: Mapping[str, Any],
    folder: Path,
    command: str,
    argv: Sequence[str],
    missing: Callable[[int], dict[int, int]],
) -> None:
    """Run all shards of a command until no part is missing.

    Args:
      kind: of :data:`KINDS`.
      shards: number of shards.
      workers: most of them at a time.
      options: of jobs.
      folder: workdir, whose ``jobs`` gets scripts and outputs.
      command: name of the command.
      argv: its arguments.
      missing: missing parts of a number of shards, by the shards that lack some.

    Raises:
      InputError: if jobs end without finishing any part.
    """
    own = _without_cluster(argv)
    array = {"slurm_array_parallelism": workers} if kind == "slurm" else {}
    # A job that was preempted finds its parts again, so it may be queued again very often.
    timeouts = {"slurm_max_num_timeout": 1000} if kind == "slurm" else {}
    executor = submitit.AutoExecutor(folder=folder / "jobs", cluster=kind, **timeouts)
    own_options = {"name": f"collapipe_{command}", "timeout_min": _TIMEOUT_MIN, **array}
    executor.update_parameters(**{**own_options, **options})
    left = missing(shards)
    while left:
        print(f"{sum(left.values())} parts are missing; starting {len(left)} shards on {kind}")
        names = [f"{index}/{shards}" for index in left]
        if kind == "slurm":
            rows = [command] * len(names), [own] * len(names), names
            for job in executor.map_array(ShardJob(), *rows):
                job.wait()
        else:
            _run_locally(executor, command, own, names, workers)
        before, left = sum(left.values()), missing(shards)
        if left and sum(left.values()) == before:
            problem = f"jobs ended, and {before} parts are missing as before"
            remedy = f"See the outputs in {folder / 'jobs'}"
            raise InputError("--cluster", kind, problem, remedy)


def _run_locally(
    executor: submitit.AutoExecutor,
    command: str,
    argv: Sequence[str],
    names: Sequence[str],
    workers: int,
) -> None:
    """Run shards as processes, so many at a time."""
    waiting, running = list(names), []
    while waiting or running:
        running = [job for job in running if not job.done()]
        while waiting and len(running) < workers:
            running.append(executor.submit(ShardJob(), command, argv, waiting.pop(0)))
        time.sleep(_POLL_S)


def _without_cluster(argv: Sequence[str]) -> list[str]:
    """Arguments without those of the cluster, given as ``--option=value`` or ``--option value``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--cluster", "--shards", "--workers", "--cluster-options", "--shard"):
        parser.add_argument(option)
    return parser.parse_known_args(list(argv))[1]
