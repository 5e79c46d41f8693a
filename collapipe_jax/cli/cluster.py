"""Jobs of Slurm, or processes of this machine, that share a command (extra ``cluster``).

Shards of a command are a job each, the hosts of one training run are the tasks of one job. Jobs
that Slurm preempts are queued again. Jobs that were lost start again as long as something gets
done, and go on where it ended.
"""

import argparse
import functools
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit

from collapipe_jax.core.errors import InputError

_KINDS = ("slurm", "local")
_NAMES = {
    **{"time": "timeout_min", "cpus": "cpus_per_task", "gpus": "gpus_per_node"},
    **{"memory_gb": "mem_gb", "nodes": "nodes", "name": "name"},
}
"""Options of all kinds of clusters; others are Slurm's."""
_POLL_S = 1.0
_TIMEOUT_MIN = 24 * 60  # of a job; that of submitit is minutes


class _ShardJob(submitit.helpers.Checkpointable):
    """A shard of a command; a job that is preempted is submitted again as it is."""

    def __call__(self, command: str, argv: Sequence[str], shard: str) -> None:
        """Run the command in this process."""
        from collapipe_jax.cli.main import main

        status = main([command, *argv, f"--shard={shard}"])
        if status:
            raise RuntimeError(f"shard {shard} ended with status {status}")


class _HostJob(submitit.helpers.Checkpointable):
    """A host of a training run, which goes on where the run stopped."""

    def __call__(self, argv: Sequence[str], port: int) -> None:
        """Train in this process; ``port`` is that of the first host on this machine."""
        from collapipe_jax.cli.main import main

        job, where = submitit.JobEnvironment(), ["--coordinator=auto"]
        if job.cluster == "local":
            where = [f"--coordinator=localhost:{port}", f"--hosts={job.num_tasks}"]
            where.append(f"--host={job.global_rank}")
        status = main(["train", *argv, "--resume", *where])
        if status:
            raise RuntimeError(f"host {job.global_rank} ended with status {status}")


def read_cluster(given: argparse.Namespace) -> Callable[..., None]:
    """The function that runs all shards as the options of a command say.

    Raises:
      InputError: naming the option that is wrong.
    """
    kind, shards = _read_kind(given), given.shards
    if shards < 1 or given.workers < 0:
        raise InputError("--shards", shards, "not positive", "Give 1 or more")
    options = read_options(given.cluster_options, kind)
    return functools.partial(run_shards, kind, shards, given.workers or shards, options)


def read_hosts(given: argparse.Namespace) -> Callable[..., None]:
    """The function that trains one run on as many hosts as the options of a command say.

    Raises:
      InputError: naming the option that is wrong.
    """
    kind, hosts = _read_kind(given), given.hosts
    options = {"nodes": 1, **read_options(given.cluster_options, kind)}
    nodes, gpus = options["nodes"], options.get("gpus_per_node", 0)
    if not isinstance(nodes, int) or nodes < 1:
        raise InputError("--cluster-options", f"nodes={nodes}", "no count", "Give 1 or more")
    if not hosts or hosts < 1 or hosts % nodes:
        problem, remedy = f"no multiple of {nodes} nodes", "Give the processes of all nodes"
        raise InputError("--hosts", hosts, problem, remedy)
    tasks = hosts // nodes
    if kind == "local" and (nodes > 1 or gpus):
        remedy = "Leave out --cluster and --hosts: one process has all devices of a machine"
        raise InputError("--cluster-options", given.cluster_options, "not on one machine", remedy)
    if gpus and gpus != tasks:
        problem = f"{tasks} processes a node, each of which takes one GPU"
        raise InputError("--cluster-options", f"gpus={gpus}", problem, f"Give gpus={tasks}")
    return functools.partial(run_hosts, kind, options | {"tasks_per_node": tasks})


def _read_kind(given: argparse.Namespace) -> str:
    if given.cluster not in _KINDS:
        remedy = f"Choose among: {', '.join(_KINDS)}"
        raise InputError("--cluster", given.cluster, "no such cluster", remedy)
    return given.cluster


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
      kind: of :data:`_KINDS`.
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
    executor = _make_executor(kind, folder, {"name": f"collapipe_{command}", **array, **options})

    def start(left: Mapping[int, int]) -> None:
        print(f"{sum(left.values())} parts are missing; starting {len(left)} shards on {kind}")
        names = [f"{index}/{shards}" for index in left]
        if kind == "slurm":
            rows = [command] * len(names), [own] * len(names), names
            for job in executor.map_array(_ShardJob(), *rows):
                job.wait()
        else:
            _run_locally(executor, command, own, names, workers)

    _until_done(kind, folder, start, functools.partial(missing, shards), "parts")


def run_hosts(
    kind: str,
    options: Mapping[str, Any],
    folder: Path,
    argv: Sequence[str],
    missing: Callable[[], int],
) -> None:
    """Train one run on several hosts until it is finished.

    Args:
      kind: of :data:`_KINDS`.
      options: of the job, with its nodes and tasks.
      folder: workdir, whose ``jobs`` gets scripts and outputs.
      argv: arguments of ``collapipe train``.
      missing: rounds that no checkpoint has yet.

    Raises:
      InputError: if a job ends without a new checkpoint.
    """
    own = _without_cluster(argv)
    executor = _make_executor(kind, folder, {"name": "collapipe_train", **options})

    def start(left: Mapping[int, int]) -> None:
        count = options["nodes"] * options["tasks_per_node"]
        print(f"{left[0]} rounds are missing; starting {count} hosts on {kind}")
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        executor.submit(_HostJob(), own, port).wait()

    def left() -> dict[int, int]:
        rounds = missing()
        return {0: rounds} if rounds else {}

    _until_done(kind, folder, start, left, "rounds")


def _make_executor(kind: str, folder: Path, options: Mapping[str, Any]) -> submitit.AutoExecutor:
    # A job that was preempted finds what is done again, so it may be queued again very often.
    timeouts = {"slurm_max_num_timeout": 1000} if kind == "slurm" else {}
    executor = submitit.AutoExecutor(folder=folder / "jobs", cluster=kind, **timeouts)
    executor.update_parameters(**{"timeout_min": _TIMEOUT_MIN, **options})
    return executor


def _until_done(
    kind: str,
    folder: Path,
    start: Callable[[Mapping[int, int]], None],
    missing: Callable[[], dict[int, int]],
    what: str,
) -> None:
    """Start jobs for what is missing until nothing is.

    Raises:
      InputError: if jobs end without finishing anything.
    """
    left = missing()
    while left:
        start(left)
        before, left = sum(left.values()), missing()
        if left and sum(left.values()) == before:
            problem = f"jobs ended, and {before} {what} are missing as before"
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
    try:
        while waiting or running:
            running = [job for job in running if not job.done()]
            while waiting and len(running) < workers:
                running.append(executor.submit(_ShardJob(), command, argv, waiting.pop(0)))
            time.sleep(_POLL_S)
    finally:  # an interrupt of this process alone ends its shards too
        for job in running:
            job.cancel(check=False)


def _without_cluster(argv: Sequence[str]) -> list[str]:
    """Arguments without those of the cluster, given as ``--option=value`` or ``--option value``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("cluster", "shards", "workers", "cluster-options", "shard", "hosts"):
        parser.add_argument(f"--{option}")
    return parser.parse_known_args(list(argv))[1]
