"""Central training is what collaboration would be without cuts, losses and distance."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.rounds import run_round

from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.learning_rounds import LearningRounds
from collapipe_jax.runs.training.ongoing_run import initial_run_state, learning_place
from experiments.studies.central import central_learner, central_rounds


@pytest.fixture(scope="module")
def alone():
    """One cluster, whose messages practically never get lost."""
    config = default.get_config()
    config.network.update({"clusters": 1, "devices": 2})
    config.radio.outage_threshold_db = -90.0
    config.policy.name = "static_pipeline"
    config.model.update({"width": 16, "heads": 2, "feed_forward_width": 32, "dropout_rate": 0.0})
    config.model.update({"encoder_blocks": 2, "decoder_blocks": 1})
    config.task.update({"pairs": 300, "validation_pairs": 20, "test_pairs": 20})
    config.task.vocabulary_size = 300
    config.training.update({"rounds": 40, "local_steps": 2, "batch": 8, "warmup_steps": 2})
    config.training.micro_batch_choices = (1, 2, 4, 8)
    config.training.update({"embedding_rate_factor": 1.0})
    return build_experiment(config)


@pytest.mark.slow
def test_a_single_cluster_learns_what_central_training_learns(alone):
    run, learner = initial_run_state(alone), central_learner(alone)
    start = learner.init(jax.tree.map(jnp.copy, run.learning.params))
    central = LearningRounds([learner], [start], learning_place(alone))
    ((*reports,),) = central.advance([central_rounds(alone, range(3))])
    for index, report in enumerate(reports):
        run, metrics = run_round(alone, run, index)
        assert metrics["erased_fraction"] == 0.0
        np.testing.assert_allclose(metrics["train_loss"], report.loss, rtol=1e-5)
    ours = _moved_by_data(run.learning.params)
    theirs = _moved_by_data(central.state(0).params)
    chex.assert_trees_all_close(ours, theirs, atol=2e-5)


def _moved_by_data(params):
    """Without the keys' biases: softmax cancels them, so Adam walks them along rounding alone."""
    leaves = jax.tree.leaves_with_path(params)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if not _is_key_bias(path)}


def _is_key_bias(path):
    return [step.key for step in path[-2:]] == ["key", "bias"]
