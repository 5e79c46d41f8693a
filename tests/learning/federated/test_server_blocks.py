"""Where the encoder is cut changes no gradient: blocks at the server learn the same round."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.drawn_parameters import drawn
from support.leaves_close import assert_close

from collapipe_jax.learning.federated.optimizers import Optimizers, Rules, make_optimizer
from collapipe_jax.learning.federated.pipeline_learner import PipelineLearner, PipelineOutcome
from collapipe_jax.learning.federated.privacy import ClusterPrivacy, seed_words
from collapipe_jax.learning.federated.secure_aggregation import SecureAggregation
from collapipe_jax.learning.models.adapters import add_adapters
from collapipe_jax.learning.models.bert import BertWithHead, LabelledBatch
from collapipe_jax.learning.models.config import AdapterConfig, BertConfig
from collapipe_jax.learning.models.split_model import ServerPart, cut_model, join_model
from collapipe_jax.learning.pipeline.execution import Execution
from collapipe_jax.learning.pipeline.mesh import make_pipeline_mesh

CLUSTERS, BATCH, LENGTH, BLOCKS, RATE = 3, 4, 6, 4, 0.1
SIZES = BertConfig(
    vocabulary_size=20,
    positions=LENGTH,
    width=8,
    heads=2,
    feed_forward_width=16,
    encoder_blocks=BLOCKS,
    initial_deviation=0.3,
    dropout_rate=0.2,
)
STILL = dataclasses.replace(SIZES, dropout_rate=0.0)
MODEL = BertWithHead(sizes=SIZES, labels=3, pools=True)
ADAPTERS = AdapterConfig(rank=2, alpha=4.0, targets=("query", "outer"))
WEIGHTS = jnp.array([0.5, 0.2, 0.3])
KEY = jax.random.key(9)
SEGMENTS = {0: [[3, 1], [0, 4], [2, 2]], 1: [[3, 0], [0, 3], [1, 2]], BLOCKS: [[0, 0]] * CLUSTERS}
"""Partitions by the number of blocks at the server."""
TWO = (True, False, True)
"""Who takes part: the cluster in the middle sits out."""


def learner(server_blocks, sizes=SIZES, **options):
    """Plain gradient steps of one rate, for which a mean of steps is a step on the mean."""
    step = make_optimizer("sgd", RATE)
    average = make_optimizer("sgd", 1.0)
    return PipelineLearner(
        cluster_weight=WEIGHTS,
        model=dataclasses.replace(MODEL, sizes=sizes),
        optimizers=Optimizers(client=step, decoder=step, server=average),
        server_blocks=server_blocks,
        **options,
    )


def outcome(server_blocks, loss=0.3, present=TWO):
    return PipelineOutcome(
        micro_batches=jnp.full(CLUSTERS, 2),
        loss_probability=jnp.full(CLUSTERS, loss),
        participates=jnp.array(present),
        segments=jnp.array(SEGMENTS[server_blocks]) * jnp.array(present)[:, None],
    )


def make_batches(steps=1):
    rng = np.random.default_rng(3)
    token_ids = rng.integers(4, 20, (steps, CLUSTERS, BATCH, LENGTH))
    labels = rng.integers(0, 3, (steps, CLUSTERS, BATCH))
    return LabelledBatch(*(jnp.asarray(part, jnp.int32) for part in (token_ids, labels)))


def params_of(sizes=SIZES):
    model = dataclasses.replace(MODEL, sizes=sizes)
    return drawn(lambda key: add_adapters(key, model.init(key), sizes.adapters))


def one_round(server_blocks, sizes=SIZES, present=TWO, **options):
    """Report and state after a round of one step, some of whose micro-batches are lost."""
    own = learner(server_blocks, sizes, **options)
    state = own.init(params_of(sizes))
    if own.execution.backend == "sharded":
        everywhere = NamedSharding(make_pipeline_mesh(CLUSTERS, 2), PartitionSpec())
        state = jax.device_put(state, everywhere)
    after, report = own.round(
        state, make_batches(), outcome(server_blocks, present=present), KEY, 0
    )
    return after, report


def assert_same_round(found, expected):
    (after, report), (plain, plain_report) = found, expected
    assert isinstance(after.decoder, ServerPart) != isinstance(plain.decoder, ServerPart)
    assert_close(after.params, plain.params, 2e-6)
    assert_close(report, plain_report, 1e-5)


def check_cut(found, plain, server_blocks):
    """The server holds the last blocks, and learns them as without a cut."""
    after, report = found
    assert 0.0 < report.erased_fraction < 1.0
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(after.decoder.encoder)}
    assert lengths == {server_blocks}
    assert_same_round(found, plain)
    assert np.abs(after.params["encoder"]["attention"]["query"]["kernel"][-1]).max() > 0.0


@pytest.fixture(scope="module")
def plain():
    return one_round(0)


@pytest.mark.slow
@pytest.mark.parametrize("server_blocks", [1, BLOCKS])
def test_a_round_is_the_same_wherever_the_encoder_is_cut(server_blocks, plain):
    """With dropout, losses, and a cluster that sits out."""
    check_cut(one_round(server_blocks), plain, server_blocks)


@pytest.mark.parametrize(
    "execution",
    [
        Execution("vmapped", 2),
        pytest.param(Execution("sharded", 2), marks=pytest.mark.slow),
        pytest.param(Execution("sharded", 2, schedule="1f1b"), marks=pytest.mark.slow),
    ],
)
def test_a_round_run_as_a_pipeline_is_the_same(execution, plain):
    check_cut(one_round(1, execution=execution), plain, 1)


@pytest.mark.slow
def test_a_pipeline_without_a_block_interleaves_nothing(plain):
    execution = Execution("sharded", 2, schedule="1f1b")
    check_cut(one_round(BLOCKS, execution=execution), plain, BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "execution",
    [
        Execution(),
        Execution("sharded", 2, schedule="1f1b"),
    ],
)
def test_adapters_learn_the_same_on_a_frozen_base(execution):
    sizes = dataclasses.replace(SIZES, adapters=ADAPTERS, rematerialise=True)
    expected = one_round(0, sizes)
    found = one_round(1, sizes, execution=execution)
    assert_same_round(found, expected)
    assert_close(found[0].base, expected[0].base, 0.0)


def secure_round(noise):
    secure = SecureAggregation(
        ring_bits=32, clip=4.0, threshold=0.5, dropout_probability=0.0, clients=1
    )
    return one_round(1, rules=Rules(secure_aggregation=secure, activation_noise=noise))[0]


@pytest.mark.slow
def test_updates_of_blocks_at_the_server_are_in_no_masked_sum(plain):
    own, server = cut_model(secure_round(0.0).params, 1)
    exact, exact_server = cut_model(plain[0].params, 1)
    assert_close(server, exact_server, 2e-6)
    assert_close(own, exact, 1e-4)


@pytest.mark.slow
def test_noise_on_activations_reaches_the_blocks_at_the_server():
    noisy, silent = (secure_round(noise).decoder.encoder for noise in (0.5, 0.0))
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).max(), noisy, silent)
    assert min(jax.tree.leaves(moved["attention"]["query"]["kernel"])) > 1e-5


def private_round(clip_norm, decoder_clip_norm, present):
    numbers = {"clip_norm": clip_norm, "decoder_clip_norm": decoder_clip_norm}
    rule = ClusterPrivacy(noise_multiplier=0.0, largest_share=0.5, seed=seed_words(0), **numbers)
    return one_round(1, present=present, rules=Rules(cluster_privacy=rule))


@pytest.mark.slow
def test_privacy_clips_blocks_and_decoder_of_a_cluster_together():
    after, _ = private_round(1e3, 0.02, TWO)
    _, start = cut_model(params_of(), 1)
    step = jax.tree.map(lambda a, b: (np.asarray(a) - b) / RATE, start, after.decoder)
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(step)))
    # Shares of the participants, which are not rescaled, bound the norm of the mean.
    assert 0.0 < norm <= 0.8 * 0.02 + 1e-5


@pytest.mark.slow
def test_clipping_that_never_bites_leaves_the_round():
    """So every cluster's own gradient by the server's part is right."""
    everyone = (True,) * CLUSTERS
    expected, found = one_round(0, present=everyone), private_round(1e9, 1e9, everyone)
    assert_same_round(found, expected)


@pytest.mark.parametrize("server_blocks", [0, 1, 3])
def test_a_cut_model_is_joined_again(server_blocks):
    whole = params_of()
    jax.tree.map(np.testing.assert_array_equal, join_model(*cut_model(whole, server_blocks)), whole)


def test_blocks_keep_the_rate_of_the_clusters():
    """Another rate of the decoder moves no block, wherever it lies."""
    states = []
    for rate in (RATE, 10 * RATE):
        own = learner(1, execution=Execution("vmapped", 2))
        fast = dataclasses.replace(own.optimizers, decoder=make_optimizer("sgd", rate))
        own = own.replace(optimizers=fast)
        state = own.init(params_of())
        states.append(own.round(state, make_batches(), outcome(1), KEY, 0)[0])
    assert_close(states[0].decoder.encoder, states[1].decoder.encoder, 0.0)
    start = params_of()["decoder"]["head"]["bias"]
    moved = [state.decoder.decoder["head"]["bias"] - start for state in states]
    np.testing.assert_allclose(moved[1], 10 * moved[0], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_optimisers_with_a_memory_and_an_average_keep_the_whole_model():
    """Many steps of Adam, its weight decay, a clipped norm and the average over rounds."""
    adam = make_optimizer("adamw", 1e-2, clip_norm=1.0, weight_decay=0.1)
    own = learner(1, STILL, rules=Rules(server_average=0.5))
    own = own.replace(
        optimizers=Optimizers(client=adam, decoder=adam, server=make_optimizer("sgd", 1.0))
    )
    state, reports = own.init(params_of(STILL)), []
    for index in range(6):
        state, report = own.round(state, make_batches(4), outcome(1, 0.0), KEY, index)
        reports.append(float(report.loss))
    assert reports[-1] < 0.7 * reports[0]
    shapes = jax.tree.map(jnp.shape, params_of())
    assert jax.tree.map(jnp.shape, state.params) == shapes
    assert jax.tree.map(jnp.shape, state.scored_params) == shapes
