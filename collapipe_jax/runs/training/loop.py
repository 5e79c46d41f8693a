"""Training: networks decide and have their costs, models learn, on a simulated clock."""

import contextlib
import functools
import itertools
import os
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from rich.console import Console

from collapipe_jax.core.batch_axis import pick
from collapipe_jax.core.compilation import cores
from collapipe_jax.core.console import progress
from collapipe_jax.core.errors import InputError, TrainingError
from collapipe_jax.core.stopping import Stop, stop_between_steps
from collapipe_jax.edge.environment import SystemRound
from collapipe_jax.learning.federated.data_parallel_learner import DataParallelLearner
from collapipe_jax.learning.federated.learner import Learner, device_mesh
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.runs import hosts
from collapipe_jax.runs.config.experiment import Experiment
from collapipe_jax.runs.results.checkpoints import newest_step
from collapipe_jax.runs.training.history import count_tokens, log_speed
from collapipe_jax.runs.training.learning_rounds import (
    ROUNDS_PER_CALL,
    LearningRounds,
    Rounds,
    learning_keys,
    round_batches,
)
from collapipe_jax.runs.training.network_ahead import (
    NetworkAhead,
    NetworkRound,
    cpus,
    decide_mode_and_cut,
)
from collapipe_jax.runs.training.ongoing_run import (
    OngoingRun,
    RunState,
    TrainedRun,
    learning_place,
    stage_mesh,
)

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
    (``hosts.join``) all call this alike; the first one writes. Ctrl-C or SIGTERM lets the round
    end, saves, and then stops.

    Args:
      experiment: the run.
      workdir: folder of metrics and checkpoints, which all hosts see.
      resume: whether to continue the run in it, perhaps for more rounds than it had.
      console: of the progress; None is the terminal.

    Raises:
      InputError: if ``workdir`` is not this configuration's, or its checkpoint is damaged, or
        if one of several hosts would have no work of its own.
      KeyboardInterrupt: after Ctrl-C or SIGTERM; its message says what is saved.
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
    with telling_what_is_saved(experiments, workdirs, resume):
        return _train_together(experiments, workdirs, resume, console, devices)


def _train_together(
    experiments: Sequence[Experiment],
    workdirs: Sequence[str | os.PathLike],
    resume: bool,
    console: Console | None,
    devices: Sequence[Any] | None,
) -> list[TrainedRun]:
    for experiment in experiments:
        _check_hosts(experiment)
    console, groups = console or Console(), dict[Hashable, list[int]]()
    experiments = [decide_mode_and_cut(experiment, console) for experiment in experiments]
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
    learners = [run.experiment.learner for run in runs]
    shares = share_devices([run.experiment for run in runs], learners, devices, console)
    parts = [
        _Part(runs[own], learners[own], place, index % len(cpus()))
        for index, (own, place) in enumerate(shares)
    ]
    shown = console if hosts.is_first() else Console(quiet=True)
    total, found = sum(run.rounds for run in runs), dict[OngoingRun, TrainedRun]()
    with ThreadPoolExecutor(min(len(parts), len(devices))) as pool:
        # A single part stays in this thread, where an interrupt that does not wait ends it.
        each = pool.map if len(parts) > 1 else map
        with (
            _stop_between_rounds() as stop,
            progress(shown, "rounds", total, sum(run.done for run in runs), "compiling") as advance,
        ):

            def train_part(part: _Part) -> None:
                with _stopping_others(stop):
                    for rounds in part.train(stop):
                        advance(rounds, _status(runs))

            with _stopping_others(stop):
                parts[0].compile()
                list(each(train_part, parts))
            if stop.is_set():
                raise stop.kind
        told = shown if len(runs) == 1 else Console(quiet=True)
        for ended in each(lambda part: part.finish(told), parts):
            found |= ended
    return found


@contextlib.contextmanager
def _stopping_others(stop: threading.Event) -> Iterator[None]:
    """After an error, let what runs in other threads save and end."""
    try:
        yield
    except BaseException:
        stop.set()
        raise


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
        networks, self.runs, self._learners = [state.system for state in states], runs, learners
        self._ahead = NetworkAhead(experiments, networks, [run.done for run in runs], cpu)
        buckets = experiments[0].config["training"]["length_buckets"]
        learning = [state.learning for state in states]
        self._learning = LearningRounds(self._learners, learning, place, buckets)

    def compile(self) -> None:
        """Compile what decides and what learns at once."""
        if not any(run.until_due() for run in self.runs) or jax.process_count() > 1:
            return  # several hosts call the same programs in the same order
        deciding = self._ahead.lower()
        with ThreadPoolExecutor(1) as other:
            compiled = other.submit(deciding.compile)
            found = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), deciding.out_info)
            rounds = [[pick(found, (0, 0))]] * len(self.runs)
            self._learning.lower(self._inputs(rounds)).compile()
            compiled.result()

    def train(self, stop: threading.Event) -> Iterator[int]:
        """Train to the end or, after ``stop``, save and end; yield numbers of new rounds."""
        limit, stops = 1, stop.is_set()
        while not stops and any(counts := [min(run.until_due(), limit) for run in self.runs]):
            started_s = time.monotonic()
            take = functools.partial(self._ahead.take, counts)
            rounds = hosts.on_first(take, self._ahead.restore)
            inputs = self._inputs(rounds)
            reports = self._learning.advance(inputs)
            seconds, stops = time.monotonic() - started_s, stop.is_set()
            limit = int(np.clip(_CALL_S * limit / seconds, 1, ROUNDS_PER_CALL))
            each = zip(self.runs, rounds, inputs, reports, strict=True)
            for index, (run, own, data, told) in enumerate(each):
                if not own:
                    continue
                run.append(own, told, functools.partial(self.params, run))
                if hosts.is_first():
                    tokens = sum(map(count_tokens, data.batches))
                    log_speed(run.folder, run.done, len(own), seconds, tokens)
                if stops or run.saves_now():
                    network, _ = own[-1]
                    run.save(RunState(self._learning.state(index), network))
            yield sum(counts)

    def _inputs(self, rounds: Sequence[Sequence[NetworkRound]]) -> list[Rounds]:
        """What the runs learn from in their next rounds."""
        return [
            round_inputs(run.experiment, learner, run.done, [happened for _, happened in own])
            for run, learner, own in zip(self.runs, self._learners, rounds, strict=True)
        ]

    def finish(self, console: Console) -> dict[OngoingRun, TrainedRun]:
        """Test and export what was trained, but for runs that broke down."""
        whole = [run for run in self.runs if not run.breakdown]
        return {run: run.finish(self.params(run, scored=True), console) for run in whole}

    def params(self, run: OngoingRun, *, scored: bool) -> Params:
        """Parameters of a run's model, those to score or the newest, where all are evaluated."""
        state = self._learning.state(self.runs.index(run))
        params = state.scored_params if scored else state.params
        # One place compiles the evaluation once.
        return jax.device_put(params, learning_place(run.experiment))


@contextlib.contextmanager
def telling_what_is_saved(
    experiments: Sequence[Experiment], workdirs: Sequence[str | os.PathLike], resume: bool
) -> Iterator[None]:
    """Let an interrupt say how many rounds are saved, and how to go on; wherever it comes."""
    try:
        yield
    except KeyboardInterrupt as stop:
        done = sum(newest_step(Path(workdir) / "checkpoints") or 0 for workdir in workdirs)
        if done and not stop.args:
            total = sum(int(one.config["training"]["rounds"]) for one in experiments)
            where = str(workdirs[0]) if len(workdirs) == 1 else f"{len(workdirs)} folders"
            command = "the same command" if resume else "the same command with --resume"
            stop.args = (f"{done} of {total} rounds are saved in {where}; {command} goes on",)
        raise


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


def _program(experiment: Experiment) -> Hashable:
    """Equal for runs that one program can train."""
    if experiment.execution.backend == "sharded":
        return id(experiment)  # which has the devices to itself
    learner, config = experiment.learner, experiment.config["training"]
    leaves, structure = jax.tree.flatten(learner)
    samples = jax.tree.leaves(experiment.task.data.train)
    shapes = tuple(np.shape(leaf) for leaf in leaves), tuple(leaf.shape[1:] for leaf in samples)
    problem = experiment.system.mean_problem
    network = problem.clusters, problem.devices
    sizes = tuple(config[key] for key in ("local_steps", "batch", "length_buckets"))
    return structure, shapes, network, sizes


def _stop_between_rounds() -> contextlib.AbstractContextManager[Stop]:
    """As :func:`stop_between_steps`; one of several hosts is interrupted at once as ever."""
    if jax.process_count() > 1:
        return contextlib.nullcontext(Stop())
    return stop_between_steps()


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
    if losses and not np.isfinite(losses).any():
        texts[1] = "-, nobody trained,"
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


def workers() -> list[Any]:
    """Devices of this host; a CPU as often as it has cores, of which a run uses about one."""
    devices = jax.local_devices()
    if len(devices) == 1 and devices[0].platform == "cpu":
        return devices * cores()
    return devices


def share_devices(
    experiments: Sequence[Experiment],
    learners: Sequence[Learner],
    devices: Sequence[Any],
    console: Console,
) -> list[tuple[slice, Sharding]]:
    """Runs in parts of a device each, on a CPU one by one; or several devices for every run.

    Args:
      experiments: runs of one program.
      learners: their ways of learning.
      devices: one may be there several times, for runs at a time.
      console: where to print how several devices share a run, and which are idle.

    Returns:
      Consecutive runs, and where they learn.
    """
    own, count = list(dict.fromkeys(devices)), len(experiments)
    if count <= len(own):
        each = len(own) // count
        places = [
            _place_of_one(experiment, learner, own[each * index : each * (index + 1)])
            for index, (experiment, learner) in enumerate(zip(experiments, learners, strict=True))
        ]
        if note := _note(experiments, learners[0], places[0], len(own)):
            console.print(note)
    else:
        parts, spots = (count, devices) if _takes_turns(devices) else (len(own), own)
        places = [SingleDeviceSharding(spots[index % len(spots)]) for index in range(parts)]
    bounds = itertools.pairwise(count * part // len(places) for part in range(len(places) + 1))
    return [(slice(*pair), place) for pair, place in zip(bounds, places, strict=True)]


def _takes_turns(devices: Sequence[Any]) -> bool:
    """Whether each core trains a run at a time, as on CPUs; they are batches on accelerators."""
    return devices[0].platform == "cpu"


def _place_of_one(experiment: Experiment, learner: Learner, devices: Sequence[Any]) -> Sharding:
    """The devices of a run that has them to itself."""
    if experiment.execution.backend == "sharded":
        return learning_place(experiment)
    mesh = device_mesh(devices, learner.copies, _examples_of_a_copy(experiment, learner))
    return (
        SingleDeviceSharding(devices[0]) if mesh.size == 1 else NamedSharding(mesh, PartitionSpec())
    )


def _examples_of_a_copy(experiment: Experiment, learner: Learner) -> int:
    """Examples of a cluster or client that are computed at once."""
    batch = experiment.config["training"]["batch"]
    return learner.chunk(batch) if isinstance(learner, DataParallelLearner) else batch


def _note(experiments: Sequence[Experiment], learner: Learner, place: Sharding, there: int) -> str:
    """How runs share devices, and how many are idle; empty where each run has one of them."""
    experiment, count = experiments[0], len(experiments)
    if experiment.execution.backend == "sharded":
        return ""  # the run tells of its own mesh
    rows, columns = place.mesh.axis_sizes if isinstance(place, NamedSharding) else (1, 1)
    idle = there - count * rows * columns
    examples, notes = _examples_of_a_copy(experiment, learner), []
    numbers = f"{learner.copies} copies of the model x {examples} examples of each"
    if rows * columns > 1:
        runs = f", in each of {count} runs" if count > 1 else ""
        notes.append(f"{rows} x {columns} devices share {numbers}{runs}")
    if idle:
        notes.append(f"{idle} of {there} are idle, as no larger mesh divides {numbers}")
    return "; ".join(notes)
