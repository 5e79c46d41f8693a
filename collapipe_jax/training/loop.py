"""Training: a network decides and has its costs, a model learns, on a simulated clock."""

import contextlib
import functools
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from collapipe_jax import hosts
from collapipe_jax.compilation import WITHOUT_FUSION_EMITTERS, quick_jit
from collapipe_jax.config.experiment import Experiment
from collapipe_jax.errors import InputError
from collapipe_jax.federated.bound_constants import BoundConstants, estimate_constants
from collapipe_jax.files.atomic import read_object, write_json, write_text
from collapipe_jax.files.checkpoints import Checkpoints, RunRecord, load_run
from collapipe_jax.files.results import read_settings
from collapipe_jax.files.workdir import added_rounds, open_workdir
from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch
from collapipe_jax.pipeline.mesh import make_pipeline_mesh
from collapipe_jax.seeds import seed_of
from collapipe_jax.simulation.environment import (
    Environment,
    SystemRound,
    SystemState,
    initial_state,
    simulate_round,
)
from collapipe_jax.tasks.sampling import sample_round
from collapipe_jax.training.history import (
    History,
    Metrics,
    metrics_line,
    round_metrics,
    run_constants,
    summarise,
)

_ESTIMATE_BATCHES = 8  # of every cluster
_METRICS = "metrics.jsonl"
_EXTENDED = {
    "constant": "learning rates stay as they are",
    "inverse_sqrt": "learning rates go on falling as before",
    "cosine": "learning rates rise again, to where a cosine over all rounds has them",
}
"""What the schedules do when a run gets more rounds."""


class TrainedRun(NamedTuple):
    """What :func:`collapipe_jax.train` returns; its example shows one.

    Attributes:
      params: of the trained model.
      history: metrics by name, first axis the rounds; names carry their units.
      summary: test scores, and means over the rounds.
      record: what figures are drawn from.
    """

    params: Params
    history: dict[str, np.ndarray]
    summary: dict[str, Any]
    record: RunRecord


class RunState(NamedTuple):
    """State from round to round: that of the experiment's learner, and that of the network."""

    learning: Any
    system: SystemState


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
    """
    _check_hosts(experiment)
    # The other hosts may not look before the first has taken the folder.
    more = hosts.on_first(lambda: added_rounds(read_settings(workdir), experiment.config))
    folder = hosts.on_first(lambda: open_workdir(workdir, experiment.config, resume))
    if more and hosts.is_first():
        note = _EXTENDED[experiment.config["training"]["schedule"]]
        (console or Console()).print(f"{more} rounds more than before; {note}")
    with Checkpoints(folder) as checkpoints, stop_between_rounds() as is_stopped:
        state, history, done = _start(experiment, checkpoints, folder)
        constants = run_constants(experiment)
        rounds = experiment.config["training"]["rounds"]
        status = TextColumn("{task.fields[status]}")
        columns = BarColumn(bar_width=10), MofNCompleteColumn(), TimeRemainingColumn(), status
        with Progress(*columns, console=console, disable=not hosts.is_first()) as progress:
            bar = progress.add_task("rounds", total=rounds, completed=done, status="")
            for index in range(done, rounds):
                state, metrics = run_round(experiment, state, index)
                metrics |= _evaluate_when_due(experiment, state, index)
                metrics |= _estimate_when_due(experiment, state, index)
                now_s = np.float64(history.simulated_time_s + metrics["latency_s"])
                metrics["simulated_time_s"] = now_s
                history.append(metrics)
                hosts.on_first(functools.partial(_log, folder, metrics))
                every = experiment.config["checkpoint_every_rounds"]
                saves = is_stopped() or _is_due(experiment, index, every)
                if saves:
                    record = {"history": history.arrays(), "constants": constants}
                    checkpoints.save(index + 1, state, record)
                progress.update(bar, advance=1, status=_status(experiment, history, constants))
                if saves and is_stopped():
                    saved = f"{index + 1} of {rounds} rounds are saved in {workdir}"
                    raise KeyboardInterrupt(f"{saved}; --resume goes on")
    params = state.learning.params
    if hosts.on_first(lambda: not (folder / "summary.json").exists()):
        summary = summarise(experiment, params, history.arrays())
        hosts.on_first(lambda: experiment.objective.export(params, folder / "model"))
        hosts.on_first(lambda: write_json(folder / "summary.json", summary))  # last of all
    record = load_run(folder)
    return TrainedRun(params, record.history, read_object(folder / "summary.json") or {}, record)


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
    count, backend = jax.process_count(), experiment.execution.backend
    if count == 1:
        return
    if backend != "sharded":
        problem = f"{count} hosts would all do the same work"
        raise InputError("pipeline.backend", backend, problem, "Choose sharded, or one host")
    devices = _mesh(experiment).devices
    working = {device.process_index for device in devices.flat}
    if len(working) < count:
        problem = f"the {devices.size} devices of the network are all on {len(working)}"
        remedy = "Take fewer hosts, or fewer devices on each"
        raise InputError("--hosts", count, problem, remedy)


def _start(
    experiment: Experiment, checkpoints: Checkpoints, folder: Path
) -> tuple[RunState, History, int]:
    """State, history and number of rounds done: fresh, or from the newest checkpoint."""
    state, history, done = initial_run_state(experiment), History({}), checkpoints.latest()
    if done is not None:
        state, record = checkpoints.load(done, state)
        history = History(record["history"])

    def write() -> None:
        # Rounds after the newest checkpoint will be written again.
        write_text(folder / _METRICS, "".join(map(metrics_line, history.rounds)))
        experiment.objective.save(folder)

    hosts.on_first(write)
    return state, history, done or 0


def _log(folder: Path, metrics: Metrics) -> None:
    with (folder / _METRICS).open("a", encoding="utf-8") as stream:
        stream.write(metrics_line(metrics))


def initial_run_state(experiment: Experiment) -> RunState:
    """State before the first round."""
    learning_key, _ = jax.random.split(run_key(experiment, 1, "model"))
    objective, learner = experiment.objective, experiment.learner
    params = objective.starting_params(_fresh_params(learning_key, model=objective.model))
    # Committed to a place as a checkpoint's arrays are: both run in one compilation.
    learning = jax.device_put(_fresh_learning(learner, params), _learning_place(experiment))
    return RunState(learning, _first_network(experiment))


_fresh_params = quick_jit(lambda key, model: model.init(key), static_argnames="model")
_fresh_learning = quick_jit(lambda learner, params: learner.init(params))
_initial_system_state = quick_jit(initial_state)


def _first_network(experiment: Experiment) -> SystemState:
    _, key = jax.random.split(run_key(experiment, 1, "network"))
    return jax.device_put(_initial_system_state(key, experiment.system), jax.local_devices()[0])


def _learning_place(experiment: Experiment) -> Sharding:
    """One device, or all of a mesh whose stages run the encoder."""
    if experiment.execution.backend != "sharded":
        return SingleDeviceSharding(jax.local_devices()[0])
    return NamedSharding(_mesh(experiment), PartitionSpec())


def _mesh(experiment: Experiment) -> Mesh:
    """A device of the mesh for every device of the network."""
    problem = experiment.system.mean_problem
    return make_pipeline_mesh(problem.clusters, problem.devices)


def run_key(experiment: Experiment, purpose: int, section: str = "") -> Array:
    """A key of the experiment's seed: 1 for the start, 2 rounds, 3 estimates and central rounds.

    ``system_key`` is that of purpose 0, the network. A ``section`` takes its own seed.
    """
    config = experiment.config
    seed = seed_of(config, section) if section else config["seed"]
    return jax.random.fold_in(jax.random.key(seed), purpose)


def run_round(experiment: Experiment, state: RunState, index: int) -> tuple[RunState, Metrics]:
    """One round: network state, decision, costs, queues, local steps, aggregation."""
    network_key, learning_key = _round_keys(experiment, index)
    system_state, happened = state.system, None
    if hosts.is_first():  # it decides for all
        system_state, happened = _next_network(experiment, system_state, network_key)
    happened: Any = hosts.from_first(happened)
    place, learner = _learning_place(experiment), experiment.learner
    outcome = jax.device_get(learner.outcome(happened.decision, happened.cost))
    batches, outcome = round_batches(experiment, index), jax.device_put(outcome, place)
    learning, report = learner.round(state.learning, batches, outcome, learning_key, index)
    # Another placement would compile the next round anew.
    learning = jax.device_put(learning, place)
    return RunState(learning, system_state), round_metrics(index, happened, report)


def _round_keys(experiment: Experiment, index: int) -> tuple[Array, Array]:
    """Keys of a round's network and of its learning."""
    network, learning = (
        jax.random.split(jax.random.fold_in(run_key(experiment, 2, section), index))
        for section in ("network", "")
    )
    return network[0], learning[1]


def round_latencies_s(experiment: Experiment) -> Iterator[float]:
    """Latency of every round of a training run, without end and without learning.

    The network changes and decides independently of what is learnt.
    """
    state = _first_network(experiment)
    for index in itertools.count():
        key, _ = _round_keys(experiment, index)
        state, happened = _next_network(experiment, state, key)
        yield float(happened.cost.latency_s)


# The decision of one network runs fast and compiles slowly: on a CPU in half the time without
# the emitters of fusions.
_simulate_round = functools.partial(
    jax.jit, static_argnames="policy", compiler_options=WITHOUT_FUSION_EMITTERS
)(simulate_round)


def _next_network(
    experiment: Experiment, state: SystemState, key: Array
) -> tuple[SystemState, SystemRound]:
    """The network after a round, and the round's record."""
    environment = Environment(experiment.system, state, key)
    return _simulate_round(environment, policy=experiment.policy)


def round_batches(experiment: Experiment, index: int) -> Batch:
    """Mini-batches of a round, leaves ``[H, N, B, ...]``: a function of seed and round."""
    rows = _sample(experiment, index, experiment.config["training"]["local_steps"])
    return experiment.objective.draw(rows, (experiment.config["seed"], index))


def _sample(experiment: Experiment, index: int, steps: int) -> np.ndarray:
    """Training samples of a round, ``[steps, N, B]``."""
    seed, batch = experiment.config["seed"], experiment.config["training"]["batch"]
    return sample_round(seed, experiment.cluster_indices, index, steps, batch)


def _evaluate_when_due(experiment: Experiment, state: RunState, index: int) -> Metrics:
    """Loss and score on the validation set; not a number in rounds without."""
    loss, score = np.nan, np.nan
    if _is_due(experiment, index, experiment.config["evaluation"]["every_rounds"]):
        loss, score = experiment.objective.validate(state.learning.params)
    return {"validation_loss": np.float32(loss), "score": np.float32(score)}


def _estimate_when_due(experiment: Experiment, state: RunState, index: int) -> Metrics:
    """Constants of the bound; not a number in rounds without, empty in runs without."""
    every = experiment.config["evaluation"]["estimate_every_rounds"]
    if not every:
        return {}
    if not _is_due(experiment, index, every):
        return dict.fromkeys(BoundConstants._fields, np.float32(np.nan))
    constants = estimate_constants(
        state.learning.params,
        estimate_batches(experiment, index),
        jnp.asarray(experiment.cluster_weight, jnp.float32),
        run_key(experiment, 3),
        model=experiment.objective.model,
    )
    return {name: np.asarray(value) for name, value in constants._asdict().items()}


def estimate_batches(experiment: Experiment, index: int) -> Batch:
    """Mini-batches for the estimates of constants, leaves ``[J, N, B, ...]``.

    They come from passes after those of training: samples just learnt would bias the estimate.
    """
    training = experiment.config["training"]
    after_training = training["rounds"] * training["local_steps"]
    rows = _sample(experiment, after_training + index, _ESTIMATE_BATCHES)
    return jax.tree.map(lambda leaf: leaf[rows], experiment.objective.data.train)


def _is_due(experiment: Experiment, index: int, every: int) -> bool:
    """Whether something due every so many rounds, and in the last one, is due in a round."""
    return (index + 1) % every == 0 or index + 1 == experiment.config["training"]["rounds"]


def _status(experiment: Experiment, history: History, constants: Mapping[str, np.ndarray]) -> str:
    """Score, simulated time and worst mean energy over budget, for the progress bar."""
    score = f"{history.last_score:.1f}" if np.isfinite(history.last_score) else "-"
    over = (history.energy_j / len(history.rounds) / constants["energy_budget_j"]).max()
    return (
        f"{experiment.task.score_name} {score} loss {history.rounds[-1]['train_loss']:.2f} "
        f"clock {history.simulated_time_s:.0f} s energy/budget {over:.2f}"
    )
