"""One training run: where it starts, what is due when, and what it leaves on file."""

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from rich.console import Console

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.console import tell_phase
from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.core.files import (
    append_line,
    lock_folder,
    read_object,
    remove_partials,
    write_json,
    write_sealed,
    write_text,
)
from collapipe_jax.core.trackers import Tracker, find_tracker, finite_means
from collapipe_jax.edge.environment import SystemState
from collapipe_jax.learning.federated.bound_constants import BoundConstants, estimate_constants
from collapipe_jax.learning.federated.learner import LearningReport
from collapipe_jax.learning.models.adapters import NO_BASE, add_adapters, digest, fuse, join, split
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.pipeline.mesh import make_pipeline_mesh
from collapipe_jax.learning.tasks.registry import seal_model
from collapipe_jax.runs import hosts
from collapipe_jax.runs.config.experiment import Experiment
from collapipe_jax.runs.results.checkpoints import Checkpoints, RunRecord, load_run
from collapipe_jax.runs.results.experiment import (
    added_rounds,
    make_workdir,
    open_workdir,
    read_settings,
)
from collapipe_jax.runs.results.realisations import warn_of_run
from collapipe_jax.runs.training.history import (
    History,
    Metrics,
    metrics_line,
    round_metrics,
    run_constants,
    summarise,
    untrained_rounds,
)
from collapipe_jax.runs.training.learning_rounds import estimate_batches, run_key
from collapipe_jax.runs.training.network_ahead import NetworkRound, initial_network

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
    best: Params | None = None  # those of the best score so far, where a run keeps them


def initial_run_state(experiment: Experiment) -> RunState:
    """State before the first round."""
    learning = _fresh_learning(experiment.learner, initial_params(experiment))
    # Committed to a place as a checkpoint's arrays are: both run in one compilation.
    learning = jax.device_put(learning, learning_place(experiment))
    best = learning.trained if experiment.config["evaluation"]["keep_best"] else None
    return RunState(learning, initial_network(experiment), best)


def initial_params(experiment: Experiment) -> Params:
    """Parameters before the first round: fresh or pretrained ones, and adapters."""
    learning_key, adapter_key = jax.random.split(run_key(experiment, 1, "model"))
    task = experiment.task
    params = task.starting_params(_fresh_params(learning_key, model=task.model))
    return add_adapters(adapter_key, params, task.model.sizes.adapters)


_fresh_params = quick_jit(lambda key, model: model.init(key), static_argnames="model")
_fresh_learning = quick_jit(lambda learner, params: learner.init(params))


def learning_place(experiment: Experiment) -> Sharding:
    """One device, or all of a mesh that runs the encoder."""
    if experiment.execution.backend != "sharded":
        return SingleDeviceSharding(jax.local_devices()[0])
    return NamedSharding(stage_mesh(experiment), PartitionSpec())


def stage_mesh(experiment: Experiment) -> Mesh:
    """The mesh for clusters and devices of the network."""
    problem = experiment.system.mean_problem
    return make_pipeline_mesh(problem.clusters, problem.devices)


def _mesh_note(experiment: Experiment) -> str:
    """How the stages of the clusters share the devices of the mesh."""
    problem, mesh = experiment.system.mean_problem, stage_mesh(experiment)
    (rows, columns), there = mesh.devices.shape, len(jax.devices())
    note = f"{rows} x {columns} devices run {problem.clusters} clusters x {problem.devices} stages"
    return note if mesh.size == there else f"{note}; {there - mesh.size} are idle"


def _without_base(state: RunState) -> RunState:
    """What a checkpoint holds: the base is what training starts from, and stays so."""
    return state._replace(learning=state.learning._replace(base=NO_BASE))


class OngoingRun:
    """A training run in its workdir.

    Attributes:
      breakdown: why it cannot go on; empty if it can.

    Args:
      experiment: the run.
      workdir: of metrics and checkpoints.
      resume: whether to go on with the run in it.
      console: for notes where a mesh runs it, or where it gets more rounds.

    Raises:
      InputError: if the workdir is not this configuration's, or its checkpoint is damaged.
    """

    def __init__(
        self, experiment: Experiment, workdir: str | os.PathLike, resume: bool, console: Console
    ):
        self.experiment, self.rounds = experiment, int(experiment.config["training"]["rounds"])
        with contextlib.ExitStack() as opened:

            def take() -> list[Any]:
                folder = make_workdir(workdir)
                opened.enter_context(lock_folder(folder))
                remove_partials(folder)
                more = added_rounds(read_settings(folder), experiment.config)
                if more and resume:
                    _check_added(experiment)
                return [str(open_workdir(folder, experiment.config, resume)), more]

            # The other hosts may not look before the first has taken the folder.
            folder, more = hosts.on_first(take)
            self.folder = Path(folder)
            if more and hosts.is_first():
                note = _EXTENDED[experiment.config["training"]["schedule"]]
                console.print(f"{more} rounds more than before; {note}")
            if experiment.execution.backend == "sharded" and hosts.is_first():
                console.print(_mesh_note(experiment))
            self.constants = run_constants(experiment)
            self._checkpoints = opened.enter_context(Checkpoints(self.folder))
            self._opened = opened.pop_all()
        self._tracker: Tracker | None = None
        self._merit = experiment.task.merit
        self.breakdown = ""

    def __enter__(self) -> "OngoingRun":
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def start(self) -> RunState:
        """A fresh state, or that of the newest checkpoint; its history is taken over."""
        state, self.history = initial_run_state(self.experiment), History({}, self._merit)
        self._base = state.learning.base
        self._base_digest = digest(self._base)
        if (done := self._checkpoints.latest()) is not None:
            state, record = self._checkpoints.load(done, _without_base(state))
            if array := broken_array(state.learning):
                raise self._checkpoints.damaged(done, f"has numbers that are not finite in {array}")
            self._check_base(record.get("base_digest"))
            state = state._replace(learning=state.learning._replace(base=self._base))
            self.history = History(record["history"], self._merit)
        kept, self._best = self.history.pop(), _copied(state.best)

        def write() -> None:
            # Rounds after the newest checkpoint will be written again.
            rows = (dict(zip(kept, row, strict=True)) for row in zip(*kept.values(), strict=True))
            write_text(self.folder / _METRICS, "".join(map(metrics_line, rows)))
            (self.folder / BREAKDOWN).unlink(missing_ok=True)
            self.experiment.task.save(self.folder)

        hosts.on_first(write)
        config = self.experiment.config
        make_tracker = find_tracker(config["tracker"])
        if make_tracker is not None and hosts.is_first():
            self._tracker = make_tracker(self.folder, self.done, config)
            self._opened.callback(self._tracker.close)
        return state

    @property
    def done(self) -> int:
        """Number of rounds that are done."""
        return self.history.done

    def until_due(self) -> int:
        """Rounds to the next evaluation, estimate or checkpoint; 0 after the last."""
        if self.breakdown:
            return 0
        evaluation = self.experiment.config["evaluation"]
        periods = [evaluation["every_rounds"], evaluation["estimate_every_rounds"]]
        periods.append(self.experiment.config["checkpoint_every_rounds"])
        left = [period - self.done % period for period in periods if period]
        return min([self.rounds - self.done, *left])

    def append(
        self,
        rounds: Sequence[NetworkRound],
        reports: Sequence[LearningReport],
        params: Callable[..., Params],
    ) -> None:
        """Take up the next rounds, and evaluate where the last of them is due.

        The first round that broke down is the last one that is taken up.

        Args:
          rounds: of the network.
          reports: of the learning in these rounds.
          params: of the model after them; ``scored`` asks for those to score.
        """
        for (_, happened), report in zip(rounds, reports, strict=True):
            index, is_last = self.done, report is reports[-1]
            if number := broken_number(report):
                self._break_down(index, f"the {number} is not finite")
                is_last = False
            metrics = round_metrics(index, happened, report)
            metrics |= self._evaluate(index, params if is_last else None)
            metrics |= self._estimate(index, params if is_last else None)
            metrics["simulated_time_s"] = np.float64(
                self.history.simulated_time_s + metrics["latency_s"]
            )
            self.history.append(metrics)
            hosts.on_first(functools.partial(self._log, metrics))
            if self._tracker is not None:
                self._tracker.log(finite_means(metrics), step=index)
            if self.breakdown:
                return

    def saves_now(self) -> bool:
        """Whether a checkpoint is due after the rounds that are done."""
        return self._is_due(self.done - 1, self.experiment.config["checkpoint_every_rounds"])

    def save(self, state: RunState) -> None:
        """Write a checkpoint, unless the run broke down."""
        if self.breakdown:
            return
        held = hosts.fetch(_without_base(state)._replace(best=self._best))
        if array := broken_array(held.learning):
            self._break_down(self.done - 1, f"it left numbers that are not finite in {array}")
            return
        record: dict[str, Any] = {"history": self.history.pop(), "constants": self.constants}
        if self._base_digest is not None:
            record["base_digest"] = self._base_digest
        self._checkpoints.save(self.done, held, record)

    def finish(self, params: Params, console: Console) -> TrainedRun:
        """Test and export the trained model, unless that is done; the console tells each phase.

        It has these parameters, or those of the best score where the run keeps them.
        """
        if self._best is not None and np.isfinite(self.history.best_merit):
            params = jax.device_put(join(self._best, self._base), learning_place(self.experiment))
        path = self.folder / "summary.json"
        if hosts.on_first(lambda: read_object(path) is None):
            last_set = self.experiment.task.last_set
            tell_phase(console, f"scoring the trained model on the {last_set} set")
            summary = summarise(self.experiment, params, load_run(self.folder).history)
            if self.experiment.config["model"]["pretrained"]:
                tell_phase(console, f"scoring the model before training on the {last_set} set")
                summary |= self._score_at_start()
            held = hosts.fetch(params)
            if summary["untrained_rounds"] < self.rounds:
                tell_phase(console, "writing the trained model")
                hosts.on_first(lambda: self._export(held))
            hosts.on_first(lambda: write_sealed(path, summary))  # last of all
        record = load_run(self.folder)
        control = self.experiment.system.mean_problem.control
        target = float(control.divergence_target)
        warn_of_run(record.history, np.asarray(control.energy_budget_j), target)
        if hosts.is_first() and untrained_rounds(record.history) == self.rounds:
            warnings.warn(
                f"workdir = {str(self.folder)!r}: nobody trained in any round, so no model is "
                "written. Raise dynamics.availability, the budgets or the share that is sampled.",
                InputWarning,
                stacklevel=2,
            )
        return TrainedRun(params, record.history, read_object(path) or {}, record)

    def _score_at_start(self) -> dict[str, float]:
        """Final score of a pretrained model before the first round."""
        task = self.experiment.task
        start = jax.device_put(initial_params(self.experiment), learning_place(self.experiment))
        scores = task.score(start, getattr(task.data, task.last_set))
        return {f"{task.headline}_at_start": scores[task.score_key]}

    def _break_down(self, index: int, problem: str) -> None:
        """Stop here; the last checkpoint stays."""
        kept = self._checkpoints.latest() or 0
        self.breakdown = f"{self.folder} in round {index} ({problem}), {kept} rounds are kept"
        told = {"round": index, "problem": problem}
        hosts.on_first(lambda: write_json(self.folder / BREAKDOWN, told))

    def _check_base(self, found: Any) -> None:
        """Refuse adapters of another base than the one that training would go on with."""
        own = self._base_digest
        if own is not None and not np.array_equal(own, found):
            source = self.experiment.config["model"]["pretrained"]
            problem = "the adapters in the checkpoint were trained on other weights"
            remedy = "Put those weights back, or train anew in another folder"
            raise InputError("model.pretrained", source, problem, remedy)

    def _export(self, params: Params) -> None:
        """Write the model with its adapters in its weights, and the adapters alone."""
        task = self.experiment.task
        adapters = task.model.sizes.adapters
        if adapters is not None:
            task.export_adapters(params, self.folder / "adapters")
        task.export(fuse(params, adapters), self.folder / "model")
        if (self.folder / "model").is_dir():  # a task of one's own may export nothing
            seal_model(self.folder / "model")

    def energy_over_budget(self) -> float:
        """Mean energy of a round over its budget, that of the worst node."""
        return float((self.history.energy_j / self.done / self.constants["energy_budget_j"]).max())

    def _log(self, metrics: Metrics) -> None:
        append_line(self.folder / _METRICS, metrics_line(metrics))

    def _evaluate(self, index: int, params: Callable[..., Params] | None) -> Metrics:
        """Loss and scores on the validation set; not a number in rounds without."""
        loss, score, evaluation = np.nan, np.float32(np.nan), self.experiment.config["evaluation"]
        clusters = np.full(len(self.experiment.cluster_weight), np.nan, np.float32)
        due = params if params and self._is_due(index, evaluation["every_rounds"]) else None
        if due is not None:
            scored = due(scored=True)
            loss, score = map(np.float32, self.experiment.task.validate(scored))
            if self._best is not None and self._merit(score) > self.history.best_merit:
                self._best = _copied(split(scored, self.experiment.task.model.sizes.adapters)[0])
            if evaluation["by_cluster"]:
                clusters = cluster_scores(self.experiment, scored)
        found: Metrics = {"validation_loss": np.float32(loss), "score": score}
        if (account := self.experiment.account) is not None:
            found["epsilon"] = np.float64(account.epsilon(index + 1) if due else np.nan)
        return found | ({"cluster_scores": clusters} if evaluation["by_cluster"] else {})

    def _estimate(self, index: int, params: Callable[..., Params] | None) -> Metrics:
        """Constants of the bound; not a number in rounds without, empty in runs without."""
        every = self.experiment.config["evaluation"]["estimate_every_rounds"]
        if not every:
            return {}
        if not (params and self._is_due(index, every)):
            return dict.fromkeys(BoundConstants._fields, np.float32(np.nan))
        return estimate_bound(self.experiment, params(scored=False), index)

    def _is_due(self, index: int, every: int) -> bool:
        """Whether something due every so many rounds, and in the last one, is due in a round."""
        return (index + 1) % every == 0 or index + 1 == self.rounds


def _check_added(experiment: Experiment) -> None:
    """Refuse more rounds where the noise was set for fewer."""
    if experiment.config["privacy"]["epsilon"]:
        rounds = experiment.config["training"]["rounds"]
        problem = "privacy.epsilon has set the noise of the first rounds for fewer"
        remedy = "Restore the number, or train anew in another workdir"
        raise InputError("training.rounds", rounds, problem, remedy)


def _copied(params: Params | None) -> Params | None:
    """Arrays of NumPy of their own: learning gives up what they are taken from."""
    return jax.tree.map(np.array, hosts.fetch(params))


def cluster_scores(experiment: Experiment, params: Params) -> np.ndarray:
    """Validation score of every cluster by the mix of its own training samples, ``[N]``.

    A cluster weighs validation samples such that each split key has the share that it has among
    the cluster's samples. Keys that validation lacks count nowhere; a cluster that has no others
    has no score.
    """
    scores, keys = experiment.task.sample_scores(params)
    own = experiment.task.data.split_keys
    names, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    means = np.bincount(place, scores) / counts
    found = []
    for indices in experiment.cluster_indices:
        shares = (own[indices][:, None] == names).mean(axis=0)
        total = shares.sum()
        found.append(shares @ means / total if total > 0.0 else np.nan)
    return np.array(found, np.float32)


def estimate_bound(experiment: Experiment, params: Params, index: int) -> Metrics:
    """Estimates of the bound's constants after a round."""
    constants = estimate_constants(
        params,
        estimate_batches(experiment, index),
        jnp.asarray(experiment.cluster_weight, jnp.float32),
        run_key(experiment, 3),
        model=experiment.task.model,
    )
    return {name: np.asarray(value) for name, value in constants._asdict().items()}


BREAKDOWN = "breakdown.json"
"""File in the workdir of a run that broke down, with ``round`` and ``problem``."""


def broken_number(report: LearningReport) -> str:
    """Which number of a round is not finite; empty if none is.

    A round without participants reports nan throughout, which is fine.
    """
    if np.isnan(report.erased_fraction):
        return ""
    wrong = [name for name in ("loss", "gradient_norm") if not np.isfinite(getattr(report, name))]
    return " and ".join(wrong)


def broken_array(state: Any) -> str:
    """Path of the first array of a learning state with a number that is not finite, if any."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(hosts.fetch(leaf)).all():
            return jax.tree_util.keystr(path, simple=True, separator="/")
    return ""
