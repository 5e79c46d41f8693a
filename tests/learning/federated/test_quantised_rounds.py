"""Rounds of learning whose updates are rounded on their way up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import compiles
from support.tagger_rounds import (
    BATCH,
    CLUSTERS,
    KEY,
    UNEVEN,
    clients_outcome,
    learner_fields,
    make_batches,
    outcome,
    start,
)

from collapipe_jax.learning.federated.data_parallel_learner import (
    DataParallelLearner,
)
from collapipe_jax.learning.federated.optimizers import Rules
from collapipe_jax.learning.federated.pipeline_learner import PipelineLearner
from collapipe_jax.learning.federated.quantisation import quantiser_of

FIELDS = learner_fields("sgd")
PLAIN = PipelineLearner(**FIELDS)


def rules(bits, clients=1):
    return Rules(update_quantiser=quantiser_of(bits, clients))


def one_round(learner, outcome):
    return learner.round(learner.init(start()), make_batches(0), outcome, KEY, 0)[0]


def largest(*trees):
    leaves = zip(*map(jax.tree.leaves, trees), strict=True)
    return max(float(np.abs(np.asarray(a) - b).max()) for a, b in leaves)


def test_pipelines_train_as_without_to_the_grid_in_one_program():
    plain, errors = one_round(PLAIN, outcome()), []
    learner = PLAIN.replace(rules=rules(16))
    one_round(learner, outcome())
    with compiles(PipelineLearner.round, 0):
        for bits in (4, 8, 16):
            after = one_round(learner.replace(rules=rules(bits)), outcome())
            errors.append(largest(after.client, plain.client))
    assert errors[0] > 8 * errors[1] > 100 * errors[2] > 0.0
    moved = largest(plain.client, PLAIN.init(start()).client)
    assert errors[0] < moved / (2**3 - 1)
    assert largest(after.decoder, plain.decoder) == 0.0


def test_the_step_and_the_mean_residual_are_the_mean_update():
    learner = PLAIN.replace(rules=rules(4))
    after, plain = one_round(learner, outcome()), one_round(PLAIN, outcome())
    left = jax.tree.map(
        lambda leaf: np.tensordot(FIELDS["cluster_weight"], leaf, 1), after.residuals.clients
    )
    owed = jax.tree.map(np.subtract, plain.client, after.client)
    assert largest(owed, left) < 1e-6
    assert after.residuals.control_units is None
    assert PLAIN.init(start()).residuals is None


def test_one_that_sits_out_keeps_its_residual():
    learner = PLAIN.replace(rules=rules(4))
    state = one_round(learner, outcome())
    for present in ((True, False, True), (False,) * CLUSTERS):
        after, _ = learner.round(state, make_batches(1), outcome(present), KEY, 1)
        leaves = (jax.tree.leaves(each.residuals) for each in (after, state))
        for new, old in zip(*leaves, strict=True):
            for n in range(CLUSTERS):
                assert np.array_equal(new[n], old[n]) != present[n] or not old[n].any()


def clients_learner(own):
    return DataParallelLearner(rules=own, devices=2, **FIELDS)


@pytest.fixture(scope="module")
def split_round():
    """A split model of one block at every client, updates of clients and their control units."""
    own = clients_learner(rules(4, clients=2))
    return one_round(own, clients_outcome(jnp.asarray(1)))


@pytest.fixture(scope="module")
def plain_round():
    return one_round(clients_learner(Rules()), clients_outcome())


@pytest.mark.slow
def test_what_a_server_holds_of_a_split_model_is_not_rounded(split_round, plain_round):
    blocks, after, plain = 1, split_round, plain_round
    assert largest(after.client["decoder"], plain.client["decoder"]) < 1e-6
    assert largest(after.client["embedding"], plain.client["embedding"]) > 1e-4
    encoders = [each.client["encoder"] for each in (after, plain)]
    assert largest(*(jax.tree.map(lambda leaf: leaf[blocks:], each) for each in encoders)) < 1e-6
    assert largest(*(jax.tree.map(lambda leaf: leaf[:blocks], each) for each in encoders)) > 1e-4
    for leaf in jax.tree.leaves(after.residuals.clients["decoder"]):
        assert not leaf.any()


@pytest.mark.slow
def test_control_units_round_the_means_of_their_devices_once_more(split_round, plain_round):
    after, plain = split_round, plain_round
    weights, part = FIELDS["cluster_weight"], UNEVEN / BATCH
    of_devices = jax.tree.map(
        lambda leaf: np.tensordot((weights[:, None] * part).reshape(-1), leaf, 1),
        after.residuals.clients,
    )
    of_units = jax.tree.map(
        lambda leaf: np.tensordot(weights, leaf, 1), after.residuals.control_units
    )
    owed = jax.tree.map(np.subtract, plain.client, after.client)
    assert largest(owed, jax.tree.map(np.add, of_devices, of_units)) < 1e-6
    assert largest(of_units, jax.tree.map(np.zeros_like, of_units)) > 1e-5
