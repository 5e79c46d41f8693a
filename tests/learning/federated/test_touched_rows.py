"""Clients that get and return those rows of the embedding alone that they read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.tagger_rounds import CLUSTERS, KEY, MODEL, WEIGHTS, make_batches, start

from collapipe_jax.learning.federated import learner as shared_round
from collapipe_jax.learning.federated.data_parallel_learner import (
    ClientsOutcome,
    DataParallelLearner,
)
from collapipe_jax.learning.federated.embedding_rows import rows_held
from collapipe_jax.learning.federated.optimizers import Optimizers, Rules, make_optimizer
from collapipe_jax.learning.federated.pipeline_learner import PipelineLearner, PipelineOutcome
from collapipe_jax.learning.federated.quantisation import quantiser_of
from collapipe_jax.learning.pipeline.execution import Execution

SGD, AVERAGE = make_optimizer("sgd", 0.1, clip_norm=1.0), make_optimizer("sgd", 1.0)
ADAMW = make_optimizer("adamw", 0.05, clip_norm=0.5, weight_decay=0.3)
SHARED = {"cluster_weight": WEIGHTS, "model": MODEL}
LEARNERS = {
    "pipelines": PipelineLearner(
        optimizers=Optimizers(client=ADAMW, decoder=ADAMW, server=AVERAGE), **SHARED
    ),
    "clients": DataParallelLearner(
        optimizers=Optimizers(client=ADAMW, decoder=ADAMW, server=AVERAGE),
        devices=2,
        **SHARED,
    ),
}
OUTCOMES = {
    "pipelines": PipelineOutcome(
        micro_batches=jnp.full(CLUSTERS, 2),
        loss_probability=jnp.full(CLUSTERS, 0.3),
        participates=jnp.array([True, False, True]),
        segments=jnp.array([[2, 0]] * CLUSTERS),
    ),
    "clients": ClientsOutcome(jnp.array([[3, 1], [0, 4], [0, 0]]), jnp.full((3, 2), 0.3)),
}
DRIFT = Rules(embedding_rate_factor=0.0, touched_rows=True, proximal_weight=0.2)


BATCHES = make_batches(5, shortest=4)


@jax.jit
def one_round(unknown, learner, *arguments):
    """A round in which rows that a client does not know hold one value."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_round, "UNKNOWN", unknown)
        return type(learner).round.__wrapped__(learner, *arguments)


def two_rounds(kind, unknown=0.0, **changed):
    """Parameters of two rounds, so that moments of the first are there in the second."""
    learner = LEARNERS[kind].replace(**changed)
    state, data = learner.init(start()), BATCHES
    first, _ = one_round(unknown, learner, state, data, OUTCOMES[kind], KEY, 0)
    other = data._replace(token_ids=np.flip(data.token_ids, 2))
    return state, first, *one_round(unknown, learner, first, other, OUTCOMES[kind], KEY, 1)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("pipelines", {"rules": DRIFT}),
        pytest.param(
            *("pipelines", {"rules": DRIFT, "execution": Execution("vmapped", 2)}),
            marks=pytest.mark.slow,
        ),
        pytest.param("clients", {"rules": DRIFT}, marks=pytest.mark.slow),
        pytest.param(
            *("clients", {"rules": DRIFT.replace(embedding_rate_factor=None)}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("clients", {"rules": DRIFT.replace(update_quantiser=quantiser_of(8, 1, False))}),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["sequential", "vmapped", "clients", "plain mean", "rounded"],
)
def test_rows_that_a_client_does_not_read_may_hold_anything(kind, changed):
    *_, expected, report = two_rounds(kind, 7.0, **changed)
    *_, found, broken = two_rounds(kind, np.nan, **changed)
    for leaf in jax.tree.leaves((found.params, broken)):
        assert np.isfinite(leaf).all()
    jax.tree.map(np.testing.assert_array_equal, (found, broken), (expected, report))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipelines", "clients"])
def test_a_row_that_nobody_reads_stays_as_it_is(kind):
    """Neither moments of the round before nor weight decay move it, as they do in whole tables."""
    read = np.isin(np.arange(MODEL.sizes.vocabulary_size), BATCHES.token_ids)
    for touched in (True, False):
        _, first, second, _ = two_rounds(kind, rules=DRIFT.replace(touched_rows=touched))
        table = [after.client["embedding"]["word"] for after in (first, second)]
        moved = np.any(np.abs(table[0] - table[1]) > 1e-5, axis=1)  # the mean itself is rounded
        assert moved[:4].tolist() == [not touched] * 4
        assert moved[~read].all() == (not touched)
        assert moved[read].any()


@pytest.mark.parametrize("kind", [pytest.param("pipelines", marks=pytest.mark.slow), "clients"])
def test_with_plain_steps_it_learns_as_with_whole_tables(kind):
    plain = Optimizers(client=SGD, decoder=SGD, server=AVERAGE)
    rules = [Rules(embedding_rate_factor=0.0, touched_rows=touched) for touched in (False, True)]
    found = [two_rounds(kind, optimizers=plain, rules=each)[2].params for each in rules]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *found)


def test_tables_of_n_grams_travel_whole():
    copies = {"embedding": {"word": jnp.ones((2, 3, 4)), "ngram": jnp.ones((2, 3, 4))}}
    met = {name: jnp.zeros((2, 3), bool) for name in ("word", "ngram")}
    found = rows_held(Rules(touched_rows=True), copies, met, 0.0)["embedding"]
    assert (float(found["word"].sum()), float(found["ngram"].sum())) == (0.0, 24.0)
    assert rows_held(Rules(), copies, met, 0.0) is copies
