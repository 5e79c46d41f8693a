"""The same model trained in one place: the reference for the cost of collaboration.

Every mini-batch merges those of all clusters in that local step, no message is lost, and nothing
is aggregated. Samples, their order, steps and initial parameters are those of the collaborative
run of the same seed. The decoder's optimiser steps the whole model, since its mini-batches are
the merged ones. Which parameters are scored goes by the keys of the collaborative run.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from collapipe_jax.core.console import track
from collapipe_jax.learning.federated.optimizers import Optimizers, Rules, make_optimizer
from collapipe_jax.learning.federated.pipeline_learner import PipelineLearner, PipelineOutcome
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.split_model import Batch
from collapipe_jax.runs.config.experiment import Experiment
from collapipe_jax.runs.training.learning_rounds import (
    ROUNDS_PER_CALL,
    LearningRounds,
    Rounds,
    central_keys,
    round_batches,
)
from collapipe_jax.runs.training.ongoing_run import initial_run_state, learning_place


class CentralRun(NamedTuple):
    """A model that was trained centrally."""

    params: Params
    score: float  # of these on the validation set


def train_centrally(experiments: Sequence[Experiment], console: Console) -> list[CentralRun]:
    """Train the models of several experiments, side by side; nothing is kept on file.

    Args:
      experiments: of one model and one number of rounds; seeds and rates may differ.
      console: for progress.
    """
    learners = [central_learner(experiment) for experiment in experiments]
    states = [
        learner.init(initial_run_state(experiment).learning.params)
        for learner, experiment in zip(learners, experiments, strict=True)
    ]
    config = experiments[0].config
    training, rounds = config["training"], config["training"]["rounds"]
    place = learning_place(experiments[0])
    learning = LearningRounds(learners, states, place, training["length_buckets"])
    scored = _scored_after(rounds, config["evaluation"])
    ends = sorted({*range(0, rounds, ROUNDS_PER_CALL), *scored})
    best: list[CentralRun | None] = [None] * len(experiments)
    best_merit, merit = [-np.inf] * len(experiments), experiments[0].task.merit
    for start, end in zip(ends, track(ends[1:], "central", len(ends) - 1, console), strict=False):
        numbers = range(start, end)
        learning.advance([central_rounds(experiment, numbers) for experiment in experiments])
        for run, experiment in enumerate(experiments if end in scored else ()):
            params = learning.state(run).scored_params
            score = float(experiment.task.validate(params)[1])
            if best[run] is None or merit(score) > best_merit[run]:
                # Learning gives up the arrays of its state.
                best[run] = CentralRun(jax.tree.map(np.array, params), score)
                best_merit[run] = merit(score) if np.isfinite(score) else -np.inf
    return [run for run in best if run is not None]


def _scored_after(rounds: int, evaluation: Any) -> set[int]:
    """Numbers of rounds after which models are scored: the last, and all where the best counts."""
    every = evaluation["every_rounds"] if evaluation["keep_best"] else rounds
    return {*range(every, rounds, every), rounds}


def central_rounds(experiment: Experiment, numbers: range) -> Rounds:
    """Steps on merged mini-batches of ``N B`` samples; round numbers fix samples and keys."""
    arrays: Any = np.ones(1, np.int32), np.zeros(1, np.float32), np.ones(1, bool)
    nothing_lost = PipelineOutcome(*arrays)
    return Rounds(
        first=numbers.start,
        batches=[_merged(round_batches(experiment, index)) for index in numbers],
        outcomes=[nothing_lost for _ in numbers],
        keys=central_keys(experiment, numbers.start + np.arange(ROUNDS_PER_CALL)),
    )


def central_learner(experiment: Experiment) -> PipelineLearner:
    """One cluster without a network."""
    decoder, average = experiment.optimizers.decoder, make_optimizer("sgd", 1.0)
    return PipelineLearner(
        cluster_weight=jnp.ones(1),
        model=experiment.task.model,
        optimizers=Optimizers(client=decoder, decoder=decoder, server=average),
        rules=Rules(server_average=experiment.rules.server_average),
    )


def _merged(batches: Batch) -> Batch:
    """Mini-batches of all clusters as one, leaves ``[H, 1, N B, ...]``."""
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], 1, -1, *leaf.shape[3:]), batches)
