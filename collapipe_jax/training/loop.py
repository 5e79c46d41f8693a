"""Training: networks decide and have their costs, models learn, on a simulated clock."""

import contextlib
import dataclasses
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from collapipe_jax import hosts
from collapipe_jax.config.experiment import Experiment
from collapipe_jax.errors import InputError, TrainingError
from collapipe_jax.federated.data_parallel_learner import DataParallelLearner
from collapipe_jax.federated.learner import Learner, LearningReport
from collapipe_jax.models.layers import Params
from collapipe_jax.simulation.environment import SystemRound
from collapipe_jax.training.device_shares import share_devices, workers
from collapipe_jax.training.learning_rounds import ROUNDS_PER_CALL, LearningRounds, Rounds
from collapipe_jax.training.network_ahead import NetworkAhead, NetworkRound, cpus
from collapipe_jax.training.ongoing_run import (
    OngoingRun,
    RunState,
    TrainedRun,
    learning_place,
    stage_mesh,
)
from collapipe_jax.training.samples import learning_keys, round_batches
from collapipe_jax.training.tracking import count_tokens, log_speed

_REMEDY = "Lower the learning rates or training.clip_norm, in another workdir"
_CALL_S = 2.0  # longest call of several rounds, so that progress and interrupts are not late


def train(
    experiment: Experiment,
    workdir: str | os.PathLike,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> TrainedRun:
    """Train a model over a simulated network.

    Every round is a pure function of the state and of keys folded from the seeds and the
    round's number, so a run that was killed and resumed ends with the same numbers. Several hosts
    (``hosts.join``) all call this alike; the first one writes. An interrupt lets the round end,
    saves, and then stops.

    Args:
      experiment: the run.
      workdir: folder of metrics and checkpoints, which all hosts see.
      resume: whether to continue the run in it, perhaps for more rounds than it had.
      console: of the progress; None is the terminal.

    Raises:
      InputError: if ``workdir`` is not this configuration's, or its checkpoint is damaged, or
        if one of several hosts would have no work of its own.
      KeyboardInterrupt: after an interrupt; its message says what is saved.
      TrainingError: if a loss or a parameter is not finite. The last checkpoint before is kept.
    """
    return train_together([experiment], [workdir], resume=resume, console=console)[0]


def train_together(
    experiments: Sequence[Experiment],
    workdirs: Sequence[str | os.PathLike],
    *,
    resume: bool = False,
    console: Console | None = None,
    devices: Sequence[Any] | None = None,
) -> list[TrainedRun]:
    """Train several models, those of one program at once.

    Seeds, learning rates, numbers of rounds, policies of one way of learning, and all that sets
    decisions and prices of a network may differ within a program. Each run has a workdir of its
    own and equals, up to rounding, the run of :func:`train`. Errors are those of :func:`train` too.
    A run that breaks down lets the others end first.

    Args:
      experiments: the runs.
      workdirs: folder of each.
      resume: whether to continue the runs that are there.
      console: of the progress; None is the terminal.
      devices: among which the runs of a program are spread. Where there are several for a run,
        they share its clusters or clients and the examples of each, as far as their number
        divides these; ``console`` tells how, and which are idle. None is all of this host.
    """
    for experiment in experiments:
        _check_hosts(experiment)
    console, groups = console or Console(), dict[Hashable, list[int]]()
    for place, experiment in enumerate(experiments):
        groups.setdefault(_program(experiment), []).append(place)
    trained: dict[int, TrainedRun] = {}
    broken: list[str] = []
    for places in groups.values():
        with contextlib.ExitStack() as stack:
            runs = [
                stack.enter_context(OngoingRun(experiments[one], workdirs[one], resume, console))
                for one in places
            ]
            found = _train_group(runs, console, devices or workers())
            trained |= {p: found[r] for p, r in zip(places, runs, strict=True) if r in found}
            broken += [run.breakdown for run in runs if run.breakdown]
    if broken:
        raise TrainingError(f"training broke down: {'; '.join(broken)}. {_REMEDY}.")
    return [trained[place] for place in range(len(experiments))]


def _train_group(
    runs: Sequence[OngoingRun], console: Console, devices: Sequence[Any]
) -> dict[OngoingRun, TrainedRun]:
    """Train runs of one program; those that broke down do not come back."""
    learners = _learners([run.experiment for run in runs])
    shares = share_devices([run.experiment for run in runs], learners, devices, console)
    parts = [
        _Part(runs[own], learners[own], place, index % len(cpus()))
        for index, (own, place) in enumerate(shares)
    ]
    columns = BarColumn(bar_width=10), MofNCompleteColumn(), TimeRemainingColumn()
    columns += (TextColumn("{task.fields[status]}"),)
    total = sum(run.rounds for run in runs)
    with (
        stop_between_rounds() as is_stopped,
        ThreadPoolExecutor(min(len(parts), len(devices))) as pool,
        Progress(*columns, console=console, disable=not hosts.is_first()) as progress,
    ):
        bar = progress.add_task("rounds", total=total, status="")
        progress.update(bar, completed=sum(run.done for run in runs))
        limit, is_compiled = 1, False
        while any(run.until_due() for run in runs):
            started_s = time.monotonic()
            # A program that runs is compiled once, for the first part. A single part stays in
            # this thread, which keeps the memory that it frees.
            each = pool.map if is_compiled and len(parts) > 1 else map
            done = sum(each(lambda part, limit=limit: part.advance(limit), parts))
            round_s = (time.monotonic() - started_s) / limit
            limit = int(np.clip(_CALL_S / round_s, 1, ROUNDS_PER_CALL))
            is_compiled = True
            stops = is_stopped()
            for part in parts:
                part.keep(stops)
            progress.update(bar, advance=done, status=_status(runs))
            if stops:
                raise KeyboardInterrupt(_saved(runs, total))
    ended = [(part, run) for part in parts for run in part.runs if not run.breakdown]
    return {run: run.finish(part.params(run, scored=True)) for part, run in ended}


class _Part:
    """Runs on one device, or one run on several: their networks, their learning and their files.

    Runs never meet, so every device has a program of its own.

    Args:
      runs: of one program.
      learners: their ways of learning.
      place: where they learn.
      cpu: number of the CPU's device that decides.
    """

    def __init__(
        self, runs: Sequence[OngoingRun], learners: Sequence[Learner], place: Sharding, cpu: int
    ):
        experiments = [run.experiment for run in runs]
        states = [run.start() for run in runs]
        self.runs, self._networks = runs, [state.system for state in states]
        self._ahead = NetworkAhead(experiments, self._networks, [run.done for run in runs], cpu)
        self._learners = learners
        buckets = experiments[0].config["training"]["length_buckets"]
        learning = [state.learning for state in states]
        self._learning = LearningRounds(self._learners, learning, place, buckets)
        self._new: list[tuple[list[NetworkRound], list[LearningReport], int]] = []
        self._seconds = 0.0

    def advance(self, limit: int) -> int:
        """Simulate and learn to what is due next, at most ``limit`` rounds; return their sum."""
        counts = [min(run.until_due(), limit) for run in self.runs]
        if not any(counts):
            self._new = []
            return 0
        started_s = time.monotonic()
        rounds = hosts.on_first(lambda: self._ahead.take(counts))
        inputs = [
            round_inputs(run.experiment, learner, run.done, [happened for _, happened in own])
            for run, learner, own in zip(self.runs, self._learners, rounds, strict=True)
        ]
        reports = self._learning.advance(inputs)
        self._seconds = time.monotonic() - started_s
        tokens = [sum(map(count_tokens, own.batches)) for own in inputs]
        self._new = list(zip(rounds, reports, tokens, strict=True))
        return sum(counts)

    def keep(self, always: bool) -> None:
        """Take the new rounds into the runs' histories; save those that are due, or all."""
        pairs = zip(self.runs, self._new, strict=False)
        for index, (run, (rounds, reports, tokens)) in enumerate(pairs):
            if not rounds:
                continue
            self._networks[index] = rounds[-1][0]
            run.append(rounds, reports, functools.partial(self.params, run))
            if hosts.is_first():
                log_speed(run.folder, run.done, len(rounds), self._seconds, tokens)
            if always or run.saves_now():
                run.save(RunState(self._learning.state(index), self._networks[index]))

    def params(self, run: OngoingRun, *, scored: bool) -> Params:
        """Parameters of a run's model, those to score or the newest, where all are evaluated."""
        state = self._learning.state(self.runs.index(run))
        params = state.scored_params if scored else state.params
        # One place compiles the evaluation once.
        return jax.device_put(params, learning_place(run.experiment))


def _saved(runs: Sequence[OngoingRun], total: int) -> str:
    """Where an interrupted training is saved."""
    where = str(runs[0].folder) if len(runs) == 1 else f"{len(runs)} folders"
    return (
        f"{sum(run.done for run in runs)} of {total} rounds are saved in {where}; --resume goes on"
    )


def round_inputs(
    experiment: Experiment, learner: Learner, first: int, happened: Sequence[SystemRound]
) -> Rounds:
    """What a run learns from in consecutive rounds of its network, the first of this number."""
    return Rounds(
        first=first,
        batches=[round_batches(experiment, first + turn) for turn in range(len(happened))],
        outcomes=[learner.outcome(record.decision, record.cost) for record in happened],
        keys=learning_keys(experiment, first + np.arange(ROUNDS_PER_CALL)),
    )


def _learners(experiments: Sequence[Experiment]) -> list[Learner]:
    """The ways of learning of runs of one program, of one structure."""
    learners = [experiment.learner for experiment in experiments]
    clients = [learner for learner in learners if isinstance(learner, DataParallelLearner)]
    if not clients:
        return learners
    # Room for the most samples of any client changes no values.
    most = max(learner.max_samples for learner in clients)
    return [dataclasses.replace(learner, max_samples=most) for learner in clients]


def _program(experiment: Experiment) -> Hashable:
    """Equal for runs that one program can train."""
    if experiment.execution.backend == "sharded":
        return id(experiment)  # which has the devices to itself
    (learner,), config = _learners([experiment]), experiment.config["training"]
    if isinstance(learner, DataParallelLearner):
        learner = dataclasses.replace(learner, max_samples=0)
    leaves, structure = jax.tree.flatten(learner)
    samples = jax.tree.leaves(experiment.objective.data.train)
    shapes = tuple(np.shape(leaf) for leaf in leaves), tuple(leaf.shape[1:] for leaf in samples)
    problem = experiment.system.mean_problem
    network = problem.clusters, problem.devices
    sizes = tuple(config[key] for key in ("local_steps", "batch", "length_buckets"))
    return structure, shapes, network, sizes


@contextlib.contextmanager
def stop_between_rounds() -> Iterator[Callable[[], bool]]:
    """Let an interrupt (Ctrl-C) wait for the end of a round; a second one does not wait.

    Yields:
      Whether there was one. A thread other than the main one, and one of several hosts, are
      interrupted at once as ever.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread() or jax.process_count() > 1:
        yield asked.is_set
        return

    def ask(number: int, frame: Any) -> None:
        del number, frame
        signal.signal(signal.SIGINT, before)
        asked.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _check_hosts(experiment: Experiment) -> None:
    """Refuse several hosts that would not share the work."""
    count = jax.process_count()
    if count == 1:
        return
    check_shared(experiment, count)
    devices = stage_mesh(experiment).devices
    working = {device.process_index for device in devices.flat}
    if len(working) < count:
        problem = f"the {devices.size} devices of the network are all on {len(working)}"
        remedy = "Take fewer hosts, or fewer devices on each"
        raise InputError("--hosts", count, problem, remedy)


def check_shared(experiment: Experiment, count: int) -> None:
    """Refuse an encoder that several hosts cannot share."""
    backend = experiment.execution.backend
    if count > 1 and backend != "sharded":
        problem = f"{count} hosts would all do the same work"
        raise InputError("pipeline.backend", backend, problem, "Choose sharded, or one host")


def _status(runs: Sequence[OngoingRun]) -> str:
    """Score, simulated time and worst mean energy over budget, for the progress bar."""
    name = runs[0].experiment.task.score_name
    scores = [run.history.last_score for run in runs if np.isfinite(run.history.last_score)]
    losses = [run.history.last["train_loss"] for run in runs if run.done]
    texts = [_range(scores, "{:.1f}"), _range(losses, "{:.2f}")]
    if len(runs) > 1:
        return f"{len(runs)} runs {name} {texts[0]} loss {texts[1]}"
    (run,) = runs
    return (
        f"{name} {texts[0]} loss {texts[1]} "
        f"clock {run.history.simulated_time_s:.0f} s energy/budget {run.energy_over_budget():.2f}"
    )


def _range(values: Sequence[float], form: str) -> str:
    """The smallest and the largest value, if they differ."""
    ends = dict.fromkeys(form.format(end) for end in (min(values), max(values))) if values else "-"
    return " to ".join(ends)
