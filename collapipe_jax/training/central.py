"""The same model trained in one place: the reference for the cost of collaboration.

Every mini-batch merges those of all clusters in that local step, no message is lost, and nothing
is aggregated. Samples, their order, steps and initial parameters are those of the collaborative
run of the same seed. The decoder's optimiser steps the whole model, since its mini-batches are
the merged ones.
"""

import jax
import jax.numpy as jnp
import optax

from collapipe_jax.config.experiment import Experiment
from collapipe_jax.federated.learner import LearningReport, LearningState
from collapipe_jax.federated.optimizers import Optimizers
from collapipe_jax.federated.pipeline_learner import PipelineLearner, PipelineOutcome
from collapipe_jax.training.loop import initial_run_state, round_batches, run_key

_AVERAGE = optax.sgd(1.0)  # one object, since it is a static argument of the compiled round


def initial_central_state(experiment: Experiment) -> LearningState:
    """State with the initial parameters of the collaborative run."""
    return _central_learner(experiment).init(initial_run_state(experiment).learning.params)


def central_round(
    experiment: Experiment, state: LearningState, index: int
) -> tuple[LearningState, LearningReport]:
    """``H`` steps on merged mini-batches of ``N B`` samples; ``index`` fixes samples and keys."""
    batches = round_batches(experiment, index)
    merged = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], 1, -1, *leaf.shape[3:]), batches)
    nothing_lost = PipelineOutcome(jnp.ones(1, jnp.int32), jnp.zeros(1), jnp.ones(1, bool))
    round_key = jax.random.fold_in(run_key(experiment, 3), index)
    return _central_learner(experiment).round(state, merged, nothing_lost, round_key, index)


def _central_learner(experiment: Experiment) -> PipelineLearner:
    """One cluster without a network."""
    decoder = experiment.optimizers.decoder
    return PipelineLearner(
        cluster_weight=jnp.ones(1),
        model=experiment.objective.model,
        optimizers=Optimizers(client=decoder, decoder=decoder, server=_AVERAGE),
    )
