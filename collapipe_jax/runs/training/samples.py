"""Random keys and mini-batches of a run's rounds: functions of its seeds and of their numbers."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from collapipe_jax.core.seeds import seed_of
from collapipe_jax.learning.models.split_model import Batch
from collapipe_jax.learning.tasks.sampling import sample_round, sample_round_by_length
from collapipe_jax.runs.config.experiment import Experiment

_ESTIMATE_BATCHES = 8  # of every cluster


def run_key(experiment: Experiment, purpose: int, section: str = "") -> Array:
    """A key of the experiment's seed: 1 for the start, 2 rounds, 3 estimates and central rounds.

    ``system_key`` is that of purpose 0, the network. A ``section`` takes its own seed.
    """
    config = experiment.config
    seed = seed_of(config, section) if section else config["seed"]
    return jax.random.fold_in(jax.random.key(seed), purpose)


def network_keys(experiment: Experiment, rounds: Sequence[int] | np.ndarray) -> Array:
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
