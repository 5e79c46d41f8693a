"""Rounds of learning of several runs at once: one program, many rounds a call."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, Sharding
from jax.typing import ArrayLike

from collapipe_jax.core.batch_axis import pick, stack
from collapipe_jax.core.compilation import CPU_MESH_OPTIONS
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.learning.federated.learner import (
    COPY,
    EXAMPLE,
    Learner,
    LearningReport,
    spread,
    spread_state,
    state_shardings,
)
from collapipe_jax.learning.models.split_model import Batch
from collapipe_jax.learning.tasks.sampling import sample_round, sample_round_by_length
from collapipe_jax.runs.config.experiment import Experiment

ROUNDS_PER_CALL = 16
"""Most rounds of learning in one call."""


class Configured(Protocol):
    """An experiment, or what it left on file."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Nested, as it is saved."""
        ...


class Rounds(NamedTuple):
    """Consecutive rounds of one run, :data:`ROUNDS_PER_CALL` of them or fewer, or none."""

    first: int  # number of the first one
    batches: Sequence[Batch]  # of every round, leaves ``[H, N, B, ...]``
    outcomes: Sequence[Any]  # of every round, as of ``Learner.outcome``
    keys: Array  # ``[ROUNDS_PER_CALL]``


class LearningRounds:
    """Runs of one program, and the states of their learning.

    Rates, weights, outcomes and data are array values, with a leading axis of runs where there
    are several.

    Args:
      learners: ways of learning, of one structure but for their values.
      states: of the learners before their next round.
      place: where they learn. A single run may have a mesh that ``placement.RULES`` know.
      length_buckets: number of lengths that mini-batches are padded to.
    """

    def __init__(
        self,
        learners: Sequence[Learner],
        states: Sequence[Any],
        place: Sharding,
        length_buckets: int = 1,
    ):
        self._model, self._length_buckets = learners[0].model, length_buckets
        self._mesh: Any = place.mesh if isinstance(place, NamedSharding) else None
        self._alone = len(learners) == 1
        if self._alone:
            (learner,), (state,) = learners, states
        else:
            learner, state = stack(learners), stack(jax.device_get(states))
        # Hosts compare what they place, and a float of Python with its rounding to 32 bits.
        learner = jax.tree.map(jnp.asarray, learner)
        self._place, self._learners = place, jax.device_put(learner, place)
        self._states_place = state_shardings(state, self._mesh) if self._mesh else place
        self._states = jax.device_put(state, self._states_place)
        is_cpu_mesh = self._mesh is not None and jax.default_backend() == "cpu"
        self._learn = _learn_on_cpu_mesh if is_cpu_mesh else learn

    def state(self, run: int) -> Any:
        """State of the learning of a run."""
        return self._states if self._alone else pick(self._states, run)

    def advance(self, rounds: Sequence[Rounds]) -> list[list[LearningReport]]:
        """Learn for some rounds of every run.

        Returns:
          The reports of every run's rounds.
        """
        arguments = self._arguments(rounds)
        with self._mesh_in_use():
            self._states, reports = self._learn(*arguments, **self._static())
        # Another placement would compile the next call anew.
        self._states = jax.device_put(self._states, self._states_place)
        reports = jax.device_get(reports)
        reports = [reports] if self._alone else [pick(reports, run) for run in range(len(rounds))]
        return [
            [pick(own, turn) for turn in range(len(inputs.batches))]
            for own, inputs in zip(reports, rounds, strict=True)
        ]

    def lower(self, rounds: Sequence[Rounds]) -> jax.stages.Lowered:
        """The program of :meth:`advance`, to compile it and to measure its memory."""
        arguments = self._arguments(rounds)
        with self._mesh_in_use():
            return self._learn.lower(*arguments, **self._static())

    def _static(self) -> dict[str, Any]:
        return {"alone": self._alone, "length_buckets": self._length_buckets}

    def _mesh_in_use(self) -> contextlib.AbstractContextManager:
        return jax.set_mesh(self._mesh) if self._mesh else contextlib.nullcontext()

    def _arguments(self, rounds: Sequence[Rounds]) -> tuple:
        """Arguments of :func:`learn`."""
        example = next((own.batches[0], own.outcomes[0]) for own in rounds if own.batches)
        padded = [
            _padded(list(zip(own.batches, own.outcomes, strict=True)), example) for own in rounds
        ]
        first = [np.int32(own.first) for own in rounds]
        count = [np.int32(len(own.batches)) for own in rounds]
        keys = [np.asarray(jax.random.key_data(own.keys)) for own in rounds]
        if self._alone:
            inputs = padded[0], keys[0], first[0], count[0]
        else:
            inputs = stack(padded), np.stack(keys), np.stack(first), np.stack(count)
        inputs = *inputs, self._buckets(rounds)
        return self._learners, self._states, *jax.device_put(inputs, self._place)

    def _buckets(self, rounds: Sequence[Rounds]) -> np.ndarray:
        """Numbers of the shortest lengths that hold the mini-batches of every turn, ``[T]``."""
        buckets = np.zeros(ROUNDS_PER_CALL, np.int32)
        for own in rounds if self._length_buckets > 1 else ():
            for turn, batch in enumerate(own.batches):
                share = self._model.filled(batch).max()
                bucket = int(np.ceil(share * self._length_buckets - 1e-9)) - 1
                buckets[turn] = max(buckets[turn], bucket)
        return buckets


def _learn(
    learners: Learner,
    states: Any,
    data: tuple[Batch, Any],
    keys: Array,
    first: Array,
    count: Array,
    buckets: Array,
    *,
    alone: bool,
    length_buckets: int,
) -> tuple[Any, LearningReport]:
    """Rounds ``first`` to ``first + count - 1`` of every run.

    Args:
      learners, states: of the runs.
      data: batches and outcomes, leaves ``[T, ...]``.
      keys: data of the rounds' keys, ``[T, ...]``.
      first, count: array values.
      buckets: number of the length that every round's mini-batches have, ``[T]``, of all runs.
      alone: whether there is one run; else all leaves but ``buckets`` have a leading axis of runs.
      length_buckets: how many lengths there are. Each is compiled.

    Returns:
      States, and reports ``[T]``; NaN after ``count`` rounds.
    """
    run = functools.partial(_learn_one, buckets, length_buckets)
    arguments = learners, states, data, keys, first, count
    return run(*arguments) if alone else jax.vmap(run)(*arguments)


_compiled = functools.partial(
    jax.jit, _learn, donate_argnames="states", static_argnames=("alone", "length_buckets")
)
learn = _compiled()
_learn_on_cpu_mesh = _compiled(compiler_options=CPU_MESH_OPTIONS)


def _learn_one(
    buckets: Array,
    length_buckets: int,
    learner: Learner,
    state: Any,
    data: tuple[Batch, Any],
    keys: Array,
    first: Array,
    count: Array,
) -> tuple[Any, LearningReport]:
    """The rounds of one run."""

    def at_length(number: int) -> Callable[..., tuple[Any, LearningReport]]:
        share = (number + 1) / length_buckets

        def learn_round(state: Any, batch: Batch, *rest: Any) -> tuple[Any, LearningReport]:
            return learner.round(state, learner.model.shortened(batch, share), *rest)

        return learn_round

    lengths = [at_length(number) for number in range(length_buckets)]

    def one(turn: Array, carry: tuple[Any, LearningReport]) -> tuple[Any, LearningReport]:
        state, reports = carry
        batch, outcome = pick(data, turn)
        batch = spread(batch, (None, COPY, EXAMPLE))
        key = jax.random.wrap_key_data(keys[turn])
        arguments = state, batch, outcome, key, first + turn
        state, report = jax.lax.switch(buckets[turn], lengths, *arguments)
        reports = jax.tree.map(lambda rows, new: rows.at[turn].set(new), reports, report)
        return spread_state((state, reports))

    empty = LearningReport.filled(learner.rules, jnp.full(len(keys), jnp.nan))
    return jax.lax.fori_loop(0, count, one, (state, empty))


def _padded(rounds: Sequence[Any], example: Any) -> Any:
    """The data of rounds as one tree, leaves ``[ROUNDS_PER_CALL, ...]``, 0 after the last."""

    def pad(like: Any, *values: Any) -> np.ndarray:
        rows = np.zeros((ROUNDS_PER_CALL, *np.shape(like)), np.asarray(like).dtype)
        for turn, value in enumerate(values):
            rows[turn] = value
        return rows

    return jax.tree.map(pad, example, *rounds)


# Random keys and mini-batches of a run's rounds: functions of its seeds and of their numbers.

_ESTIMATE_BATCHES = 8  # of every cluster


def run_key(experiment: Configured, purpose: int, section: str = "") -> Array:
    """A key of the experiment's seed: 1 for the start, 2 rounds, 3 estimates and central rounds.

    ``system_key`` is that of purpose 0, the network. A ``section`` takes its own seed.
    """
    config = experiment.config
    seed = seed_of(config, section) if section else config["seed"]
    return jax.random.fold_in(jax.random.key(seed), purpose)


def network_keys(experiment: Configured, rounds: Sequence[int] | np.ndarray) -> Array:
    """Keys of the network in rounds of these numbers, ``[T]``."""
    return _split(_fold(run_key(experiment, 2, "network"), np.asarray(rounds)))[:, 0]


def learning_keys(experiment: Experiment, rounds: Sequence[int] | np.ndarray) -> Array:
    """Keys of the learning in rounds of these numbers, ``[T]``."""
    return _split(_fold(run_key(experiment, 2), np.asarray(rounds)))[:, 1]


def central_keys(experiment: Experiment, rounds: Sequence[int] | np.ndarray) -> Array:
    """Keys of central training in rounds of these numbers, ``[T]``."""
    return _fold(run_key(experiment, 3), np.asarray(rounds))


@jax.jit
def _fold(key: Array, rounds: ArrayLike) -> Array:
    """A key of every round, ``[T]``."""
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.asarray(rounds))


_split = jax.jit(jax.vmap(jax.random.split))


def round_batches(experiment: Experiment, index: int) -> Batch:
    """Mini-batches of a round, leaves ``[H, N, B, ...]``: a function of seed and round."""
    training, indices = experiment.config["training"], experiment.cluster_indices
    seed, sizes = experiment.config["seed"], (training["local_steps"], training["batch"])
    if training["length_buckets"] > 1:
        rows = sample_round_by_length(seed, indices, experiment.task.filled, index, *sizes)
    else:
        rows = sample_round(seed, indices, index, *sizes)
    return experiment.task.draw(rows, (experiment.config["seed"], index))


def estimate_batches(experiment: Experiment, index: int) -> Batch:
    """Mini-batches for the estimates of constants, leaves ``[J, N, B, ...]``.

    They come from passes after those of training: samples just learnt would bias the estimate.
    """
    training = experiment.config["training"]
    after_training = training["rounds"] * training["local_steps"]
    sizes = after_training + index, _ESTIMATE_BATCHES, training["batch"]
    rows = sample_round(experiment.config["seed"], experiment.cluster_indices, *sizes)
    return jax.tree.map(lambda leaf: leaf[rows], experiment.task.data.train)
