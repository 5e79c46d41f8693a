"""Rounds of learning whose updates the server learns the mean of, and no single one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import compiles
from support.leaves_close import assert_close, assert_same
from support.tagger_rounds import (
    BATCH,
    CLUSTERS,
    KEY,
    clients_outcome,
    learner_fields,
    make_batches,
    outcome,
    start,
)
from support.tiny_transformer import CONFIG

from collapipe_jax.learning.federated.data_parallel_learner import (
    DataParallelLearner,
)
from collapipe_jax.learning.federated.optimizers import (
    Rules,
    updated_average,
)
from collapipe_jax.learning.federated.pipeline_learner import PipelineLearner
from collapipe_jax.learning.federated.secure_aggregation import SecureAggregation
from collapipe_jax.learning.models.transformer import TranslationBatch, Translator

FIELDS = learner_fields("momentum")


def rules(clients=1, **changed):
    numbers = {"ring_bits": 32, "clip": 0.5, "threshold": 0.5, "dropout_probability": 0.0}
    numbers = {name: jnp.asarray(number) for name, number in (numbers | changed).items()}
    secure = SecureAggregation(**numbers, clients=clients)
    return Rules(embedding_rate_factor=0.0, server_average=0.5, secure_aggregation=secure)


PLAIN = Rules(embedding_rate_factor=0.0, server_average=0.5)
PIPELINE = PipelineLearner(rules=rules(), **FIELDS)
CLIENTS = DataParallelLearner(rules=rules(), devices=2, **FIELDS)


def largest_difference(got, expected):
    leaves = zip(*map(jax.tree.leaves, (got, expected)), strict=True)
    return max(float(np.abs(np.asarray(a) - b).max()) for a, b in leaves)


def two_rounds(learner, *outcomes):
    state = learner.init(start())
    for index, each in enumerate(outcomes):
        state, report = learner.round(state, make_batches(index), each, KEY, index)
    return state, report


def test_pipelines_train_as_without_to_the_quantiser():
    present = outcome((True, False, True))
    state, report = two_rounds(PIPELINE, outcome(), present)
    plain, _ = two_rounds(PIPELINE.replace(rules=PLAIN), outcome(), present)
    assert largest_difference(state, plain) < 2e-6
    assert report.secure == (0.0, 0.0, 0.0)


def test_a_ring_of_fewer_bits_rounds_more():
    """The steps of the quantiser are all that differs: by 16 bits of them, 2^-15 at most."""
    state, _ = two_rounds(PIPELINE.replace(rules=rules(ring_bits=16)), outcome())
    exact, _ = two_rounds(PIPELINE, outcome())
    most = largest_difference(state.client, exact.client)
    step = 0.5 * 2.0**-14
    assert 0.05 * step < most < 4 * step / 0.2  # rows are divided by the weight of their readers


def test_a_cluster_that_drops_out_keeps_what_it_learned():
    """Its upload is lost, which nobody knows before the end of the local steps."""
    learner, state = PIPELINE.replace(rules=rules(dropout_probability=0.25)), PIPELINE.init(start())
    for key in jax.random.split(KEY, 50):
        after, report = learner.round(state, make_batches(0), outcome(), key, 0)
        if report.secure.dropped > 0.0 and not report.secure.failed:
            break
    everyone, _ = PIPELINE.round(state, make_batches(0), outcome(), key, 0)
    assert largest_difference(after.client, everyone.client) > 1e-4
    for name in ("client_optimizer", "decoder", "decoder_optimizer"):
        assert largest_difference(getattr(after, name), getattr(everyone, name)) == 0.0


def test_a_failed_round_changes_nothing_and_is_reported():
    learner = PIPELINE.replace(rules=rules(dropout_probability=1.0))
    before, _ = two_rounds(PIPELINE, outcome())
    after, report = learner.round(before, make_batches(1), outcome(), KEY, 1)
    assert_same(after._replace(average=None), before._replace(average=None))
    # Of all rounds, of which this is one more at the same parameters.
    average = updated_average(before.average, before.trained, learner.rules.server_average, 1)
    assert_close(after.average, average, 1e-6)
    assert (report.secure.failed, report.secure.dropped) == (1.0, 1.0)
    assert np.isfinite(report.loss)


def test_a_round_of_one_cluster_fails_and_a_round_of_none_reports_nothing():
    before = PIPELINE.init(start())
    after, report = PIPELINE.round(before, make_batches(0), outcome((False, True, False)), KEY, 0)
    assert_same(after, before)
    assert report.secure.failed == 1.0
    _, report = PIPELINE.round(before, make_batches(0), outcome((False,) * 3), KEY, 0)
    assert np.isnan(jax.tree.leaves(report)).all()


@pytest.mark.slow
def test_clients_train_as_without_and_without_those_that_drop_out():
    plain, _ = two_rounds(CLIENTS.replace(rules=PLAIN), clients_outcome())
    for learner in (CLIENTS, CLIENTS.replace(rules=rules(clients=2))):
        state, report = two_rounds(learner, clients_outcome())
        assert largest_difference(state, plain) < 2e-6
        assert report.secure.failed == 0.0
    # One client a cluster: without it the round is that of the other clusters.
    alone = jnp.array([[4, 0], [0, 4], [4, 0]], jnp.int32)
    state, batches = CLIENTS.init(start()), make_batches(0)
    learner, dropped = CLIENTS.replace(rules=rules(dropout_probability=0.2)), set()
    others = [
        CLIENTS.replace(rules=PLAIN).round(
            state, batches, clients_outcome(samples=alone.at[n].set(0)), KEY, 0
        )[0]
        for n in range(CLUSTERS)
    ]
    for key in jax.random.split(KEY, 40):
        after, report = learner.round(state, batches, clients_outcome(samples=alone), key, 0)
        if report.secure.dropped > 0.0 and not report.secure.failed:
            differences = [largest_difference(after.client, each.client) for each in others]
            assert sorted(differences)[0] < 2e-6 < 1e-4 < sorted(differences)[1]
            dropped.add(int(np.argmin(differences)))
    assert dropped == set(range(CLUSTERS))


@pytest.mark.slow
def test_the_servers_part_of_a_split_model_is_not_quantised():
    """With a coarse ring only what clients send is rounded: embedding and the first block."""
    learner = CLIENTS.replace(rules=rules(ring_bits=16, clip=8.0))
    state, _ = two_rounds(learner, clients_outcome(jnp.int32(1)))
    plain, _ = two_rounds(CLIENTS.replace(rules=PLAIN), clients_outcome())

    found = {}
    for name, part in state.client.items():
        leaves = zip(*map(jax.tree.leaves, (part, plain.client[name])), strict=True)
        found[name] = [np.abs(a - b) for a, b in leaves]
    assert max(leaf.max() for leaf in found["decoder"]) < 1e-6
    assert max(leaf[1:].max() for leaf in found["encoder"]) < 1e-6
    assert max(leaf[0].max() for leaf in found["encoder"]) > 1e-4
    assert max(leaf.max() for leaf in found["embedding"]) > 1e-4


@pytest.mark.slow
def test_runs_side_by_side_are_each_as_alone():
    numbers = {"dropout_probability": (0.3, 0.0, 1.0), "ring_bits": (24, 32, 20)}
    runs = [dict(zip(numbers, each, strict=True)) for each in zip(*numbers.values(), strict=True)]
    model, rng = Translator(CONFIG), np.random.default_rng(0)
    ids = rng.integers(4, 12, (2, 2, CLUSTERS, BATCH, 5), np.int32)
    ids[1, ..., 0] = 1
    learners = [PIPELINE.replace(model=model, rules=rules(**run)) for run in runs]
    state = learners[0].init(jax.jit(model.init)(jax.random.key(0)))
    keys = jax.random.split(KEY, len(runs))

    def one(learner, key):
        return learner.round(state, TranslationBatch(*ids), outcome(), key, 0)

    together = jax.vmap(one)(jax.tree.map(lambda *leaves: jnp.stack(leaves), *learners), keys)
    for run, (learner, key) in enumerate(zip(learners, keys, strict=True)):
        own = jax.tree.map(lambda leaf, run=run: leaf[run], together)
        assert_same(own, one(learner, key))


def test_other_numbers_compile_nothing():
    state, batches = PIPELINE.init(start()), make_batches(0)
    PIPELINE.round(state, batches, outcome(), KEY, 0)
    other = PIPELINE.replace(rules=rules(ring_bits=20, clip=0.1, dropout_probability=0.3))
    with compiles(PipelineLearner.round, 0):
        other.round(state, batches, outcome(), KEY, 0)
