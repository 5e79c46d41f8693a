"""Ways of learning with privacy, on a small tagger."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.compilations import compiles
from support.leaves_close import assert_close
from support.tagger_rounds import BATCH, CLUSTERS, MODEL, UNEVEN, WEIGHTS, make_batches, start

from collapipe_jax.learning.federated.data_parallel_learner import (
    ClientsOutcome,
    DataParallelLearner,
)
from collapipe_jax.learning.federated.optimizers import Optimizers, Rules, make_optimizer
from collapipe_jax.learning.federated.pipeline_learner import PipelineLearner, PipelineOutcome
from collapipe_jax.learning.federated.privacy import (
    ClusterPrivacy,
    ExamplePrivacy,
    clip,
    seed_words,
)
from collapipe_jax.learning.models.split_model import example_losses
from collapipe_jax.learning.pipeline.execution import Execution
from collapipe_jax.learning.pipeline.mesh import make_pipeline_mesh

RATE, CLIP = 0.5, 0.05
SGD, AVERAGE = make_optimizer("sgd", RATE), make_optimizer("sgd", 1.0)
SHARED = {
    "cluster_weight": WEIGHTS,
    "model": MODEL,
    "optimizers": Optimizers(client=SGD, decoder=SGD, server=AVERAGE),
}
PIPELINES = PipelineLearner(**SHARED)
CLIENTS = DataParallelLearner(devices=2, **SHARED)
SAMPLES = np.asarray(UNEVEN)
KEY = jax.random.key(4)


def clusters_private(learner, noise_multiplier=0.0, clip_norm=1e9):
    numbers = {"clip_norm": clip_norm, "decoder_clip_norm": clip_norm, "seed": seed_words(3)}
    numbers |= {"noise_multiplier": noise_multiplier, "largest_share": 0.5}
    rule = jax.tree.map(jnp.asarray, ClusterPrivacy(**numbers))
    return learner.replace(rules=Rules(cluster_privacy=rule))


def examples_private(noise_multiplier=0.0, at_once=3):
    numbers = {"clip_norm": CLIP, "noise_multiplier": noise_multiplier, "seed": seed_words(3)}
    rule = jax.tree.map(jnp.asarray, ExamplePrivacy(examples_at_once=at_once, **numbers))
    return CLIENTS.replace(rules=Rules(example_privacy=rule))


def in_pipelines(loss=0.0, segments=None):
    nobody_out = jnp.ones(CLUSTERS, bool)
    return PipelineOutcome(jnp.full(CLUSTERS, 2), jnp.full(CLUSTERS, loss), nobody_out, segments)


def at_clients(loss=0.0):
    return ClientsOutcome(jnp.array(SAMPLES, jnp.int32), jnp.full(SAMPLES.shape, loss))


def change(after, before):
    return jax.tree.map(np.subtract, after, before)


@pytest.mark.slow
def test_clipping_that_never_bites_leaves_the_round_of_pipelines():
    """So every cluster's own gradient by the decoder is right; with lost micro-batches."""
    state, batches, outcome = PIPELINES.init(start()), make_batches(2, 2), in_pipelines(0.4)
    plain, _ = PIPELINES.round(state, batches, outcome, KEY, 0)
    with compiles(PipelineLearner.round, 1):
        private, report = clusters_private(PIPELINES).round(state, batches, outcome, KEY, 0)
        noisy, _ = clusters_private(PIPELINES, 0.1, 1.0).round(state, batches, outcome, KEY, 0)
    assert_close(private, plain, 1e-5)
    assert 0.0 < report.erased_fraction < 1.0
    assert optax.tree.norm(change(noisy.params, plain.params)) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules", [Rules(), Rules(activation_noise=0.5)], ids=["plain", "activation noise"]
)
def test_a_round_by_1f1b_is_that_of_one_mini_batch(rules):
    segments = jnp.array([[2, 0], [1, 1], [0, 2]])
    batches, outcome = make_batches(2, 2), in_pipelines(0.4, segments)
    learner = PIPELINES.replace(rules=rules)
    expected, _ = learner.round(learner.init(start()), batches, outcome, KEY, 0)
    everywhere = NamedSharding(make_pipeline_mesh(CLUSTERS, 2), PartitionSpec())
    state = jax.device_put(learner.init(start()), everywhere)
    piped = learner.replace(execution=Execution("sharded", 2, schedule="1f1b"))
    assert_close(piped.round(state, batches, outcome, KEY, 0)[0], expected, 1e-5)


@pytest.mark.slow
def test_clipping_that_never_bites_leaves_a_round_by_1f1b():
    segments = jnp.array([[2, 0], [1, 1], [0, 2]])
    batches, outcome = make_batches(2, 2), in_pipelines(0.4, segments)
    expected, _ = PIPELINES.round(PIPELINES.init(start()), batches, outcome, KEY, 0)
    everywhere = NamedSharding(make_pipeline_mesh(CLUSTERS, 2), PartitionSpec())
    state = jax.device_put(PIPELINES.init(start()), everywhere)
    piped = clusters_private(PIPELINES).replace(execution=Execution("sharded", 2, schedule="1f1b"))
    found, _ = piped.round(state, batches, outcome, KEY, 0)
    assert_close(found, expected, 1e-5)


@pytest.mark.slow
def test_no_cluster_moves_a_round_of_clients_beyond_its_share():
    """Whole models; the data of each cluster in turn are others, or none."""
    learner, batches = clusters_private(CLIENTS, clip_norm=CLIP), make_batches(2, 1)
    state = learner.init(start())

    def step(batches, samples):
        outcome = ClientsOutcome(jnp.array(samples, jnp.int32), jnp.zeros(samples.shape))
        after, _ = learner.round(state, batches, outcome, KEY, 0)
        return change(after.client, state.client)

    everyone = step(batches, SAMPLES)
    for cluster, weight in enumerate(WEIGHTS):
        without = SAMPLES.copy()
        without[cluster] = 0
        moved = float(optax.tree.norm(change(everyone, step(batches, without))))
        assert moved <= CLIP * weight * (1 + 1e-4)
        assert moved > 0.5 * CLIP * weight
        rows = np.arange(CLUSTERS)
        rows[cluster] -= 1
        others = jax.tree.map(lambda leaf, rows=rows: leaf[:, rows], batches)
        moved = float(optax.tree.norm(change(everyone, step(others, SAMPLES))))
        assert 0.0 < moved <= 2 * CLIP * weight * (1 + 1e-4)


@jax.jit
def clipped_gradients(params, batch):
    """Of every example's loss per token, one at a time; norms before, losses and tokens."""

    def loss(params, example):
        losses, tokens = example_losses(MODEL, params, jax.tree.map(lambda a: a[None], example))
        return losses[0] / tokens[0], (losses[0], tokens[0])

    def one(example):
        gradient, sums = jax.grad(loss, has_aux=True)(params, example)
        return clip(gradient, CLIP), optax.tree.norm(gradient), sums

    return jax.lax.map(one, batch)


def test_clients_take_the_noisy_mean_of_clipped_gradients():
    batches, outcome = make_batches(2, 1), at_clients()
    state = CLIENTS.init(start())
    exact, report = examples_private().round(state, batches, outcome, KEY, 0)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), batches)
    # A client's mean times its share B_k / B: every example of cluster n weighs w_n / B.
    weights = jnp.repeat(WEIGHTS / BATCH, BATCH)
    gradients, norms, (losses, tokens) = clipped_gradients(start(), flat)
    assert norms.min() > CLIP
    np.testing.assert_allclose(report.loss, losses.sum() / tokens.sum(), rtol=1e-5)
    mean = jax.tree.map(lambda g: jnp.tensordot(weights, g, 1), gradients)
    expected = jax.tree.map(lambda w, g: w - RATE * g, start(), mean)
    assert_close(change(exact.params, start()), change(expected, start()), 1e-3)

    z = 4.0
    with compiles(DataParallelLearner.round, 0):  # numbers are array values
        noisy, _ = examples_private(z).round(state, batches, outcome, KEY, 0)
    spread = np.sqrt(np.mean(np.square(flat_vector(change(noisy.params, exact.params)))))
    counts = np.maximum(SAMPLES, 1)
    shares = np.asarray(WEIGHTS)[:, None] * SAMPLES / BATCH
    deviation = z * CLIP * RATE * np.sqrt(np.sum((shares / counts) ** 2))
    assert spread == pytest.approx(deviation, rel=0.08)

    erased, _ = examples_private(z).round(state, batches, at_clients(1.0), KEY, 0)
    assert np.abs(flat_vector(change(erased.params, start()))).max() < 1e-6


def flat_vector(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
