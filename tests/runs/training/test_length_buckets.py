"""Mini-batches in shorter rows learn what they learn in whole ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_run
from support.compilations import compiles

from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.learning_rounds import LearningRounds, learn
from collapipe_jax.runs.training.ongoing_run import initial_run_state, learning_place
from experiments.studies.central import central_learner, central_rounds


@pytest.mark.slow
def test_rounds_of_several_lengths_are_one_program():
    config = tiny_run.get_config()
    config.model.dropout_rate = 0.0  # its bits depend on the shape
    config.model.encoder_blocks = 1
    # Adam divides by the size of a gradient, also where that is rounding alone.
    config.training.update({"length_buckets": 2, "decoder_optimizer": "sgd"})
    experiment = build_experiment(config)
    learner, start = central_learner(experiment), initial_run_state(experiment).learning.params
    place, rounds = learning_place(experiment), central_rounds(experiment, range(8))
    found = []
    for buckets in (1, 2):
        learning = LearningRounds(
            [learner], [learner.init(jax.tree.map(jnp.copy, start))], place, buckets
        )
        with compiles(learn, 1):
            reports = learning.advance([rounds])
        found.append((learning.state(0), reports))
    used = set(learning._buckets([rounds]))
    assert used == {0, 1}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *found)


def test_runs_of_one_call_have_the_length_that_holds_all():
    config = tiny_run.get_config()
    config.training.length_buckets = 4
    experiment = build_experiment(config)
    learner = central_learner(experiment)
    state = learner.init(initial_run_state(experiment).learning.params)
    learning = LearningRounds([learner], [state], learning_place(experiment), 4)
    both = [central_rounds(experiment, range(start, start + 3)) for start in (0, 40)]
    alone = [learning._buckets([one]) for one in both]
    np.testing.assert_array_equal(learning._buckets(both), np.maximum(*alone))
