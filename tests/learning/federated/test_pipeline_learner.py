import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support import leaves_close
from support.compilations import compiles
from support.tagger_rounds import (
    BATCH,
    CLUSTERS,
    KEY,
    MODEL,
    STEPS,
    WEIGHTS,
    make_batches,
    start,
)

from collapipe_jax.learning.federated.aggregation import ErasureLaw
from collapipe_jax.learning.federated.data_parallel_learner import (
    ClientsOutcome,
    DataParallelLearner,
)
from collapipe_jax.learning.federated.learner import COPY, EXAMPLE, device_mesh, spread
from collapipe_jax.learning.federated.optimizers import Optimizers, Rules, make_optimizer
from collapipe_jax.learning.federated.pipeline_learner import PipelineLearner, PipelineOutcome
from collapipe_jax.learning.models.bert import UNLABELLED, LabelledBatch
from collapipe_jax.learning.models.split_model import example_losses
from collapipe_jax.learning.pipeline.execution import Execution
from collapipe_jax.learning.pipeline.mesh import make_pipeline_mesh

TX = make_optimizer("momentum", 0.3, clip_norm=1.0)
CLIENT = TX.transformation
SERVER = make_optimizer("momentum", 1.0)
LEARNER = PipelineLearner(
    cluster_weight=WEIGHTS,
    model=MODEL,
    optimizers=Optimizers(client=TX, decoder=TX, server=SERVER),
)


def make_outcome(loss=0.0, present=(True,) * CLUSTERS, micro_batches=2, segments=None):
    return PipelineOutcome(
        micro_batches=jnp.full(len(present), micro_batches),
        loss_probability=jnp.full(len(present), loss),
        participates=jnp.array(present),
        segments=segments,
    )


def with_rules(factor=1.0, noise=0.0):
    """Plain averaging without noise, where no other numbers are asked for."""
    rules = Rules(embedding_rate_factor=factor, activation_noise=noise)
    return LEARNER.replace(rules=rules)


@pytest.fixture(scope="module")
def state():
    return LEARNER.init(start())


@jax.jit
def cluster_gradient(client, decoder, batch):
    def loss(client, decoder):
        losses, tokens = example_losses(MODEL, client | {"decoder": decoder}, batch)
        return losses.sum() / tokens.sum()

    return jax.grad(loss, argnums=(0, 1))(client, decoder)


@functools.partial(jax.jit, static_argnums=0)
def step_of(optimizer, gradient, state, params):
    update, state = optimizer.update(gradient, state, params, step=0)
    return optax.apply_updates(params, update), state


def by_hand(state, batches, weights, present):
    """The same round in Python loops, one cluster and one step at a time."""
    state, batches = jax.device_get((state, batches))
    shares = np.where(present, weights, 0.0)
    shares = shares / shares.sum()
    clients = [state.client] * CLUSTERS
    states = [jax.tree.map(lambda s, n=n: s[n], state.client_optimizer) for n in range(CLUSTERS)]
    decoder, decoder_state = state.decoder, state.decoder_optimizer
    norms = []
    for step in range(STEPS):
        mean = jax.tree.map(np.zeros_like, (state.client, decoder))
        for n in np.flatnonzero(present):
            batch = jax.tree.map(lambda leaf, n=n, s=step: leaf[s, n], batches)
            both = jax.device_get(cluster_gradient(clients[n], decoder, batch))
            clients[n], states[n] = step_of(CLIENT, both[0], states[n], clients[n])
            mean = jax.tree.map(lambda m, g, n=n: m + shares[n] * g, mean, both)
        decoder, decoder_state = step_of(CLIENT, mean[1], decoder_state, decoder)
        norms.append(norm(mean))
    mean = jax.tree.map(
        lambda *leaves: sum(s * leaf for s, leaf in zip(shares, leaves, strict=True)),
        *jax.device_get(clients),
    )
    pseudo = jax.tree.map(np.subtract, state.client, mean)
    client, server = step_of(SERVER.transformation, pseudo, state.server_optimizer, state.client)
    client_states = jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(states))
    after = state._replace(
        client=client,
        client_optimizer=client_states,
        decoder=decoder,
        decoder_optimizer=decoder_state,
        server_optimizer=server,
    )
    return after, np.mean(norms)


def norm(tree):
    return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree)))


def assert_close(got, expected, tolerance=2e-5):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("present", [(True, True, True), (True, False, True)])
def test_a_round_equals_the_loop_written_out(state, present):
    second = state
    for seed in (1, 2):  # the second round starts from optimisers that have a past
        batches = make_batches(seed)
        expected, gradient_norm = by_hand(second, batches, WEIGHTS, present)
        second, report = LEARNER.round(second, batches, make_outcome(present=present), KEY, 0)
        assert_close(second, expected)
        assert report.erased_fraction == 0.0
        np.testing.assert_allclose(report.gradient_norm, gradient_norm, rtol=1e-4)
    assert np.abs(second.decoder["head"]["bias"]).max() > 1e-3


@pytest.mark.parametrize(
    "execution",
    [
        pytest.param(Execution("vmapped", 2), marks=pytest.mark.slow),
        pytest.param(Execution("sharded", 2), marks=pytest.mark.slow),
        pytest.param(Execution("sharded", 4, decided=True), marks=pytest.mark.slow),
        pytest.param(Execution("sharded", 2, schedule="1f1b"), marks=pytest.mark.slow),
    ],
)
def test_a_round_run_as_a_pipeline_is_the_same_round(state, execution):
    """Every cluster cut in its own way, one of them absent; the decision is array values."""
    if execution.backend == "sharded":
        everywhere = NamedSharding(make_pipeline_mesh(CLUSTERS, 2), PartitionSpec())
        state = jax.device_put(state, everywhere)
    batches, present = make_batches(5), (True, False, True)
    learner = LEARNER.replace(execution=execution)
    with compiles(PipelineLearner.round, 1):
        for sizes, counts in (
            ([[1, 1], [0, 0], [2, 0]], [4, 1, 1]),
            ([[0, 2], [0, 0], [1, 1]], [1, 2, 4]),
        ):
            outcome = make_outcome(0.3, present, jnp.array(counts), jnp.array(sizes))
            piped, report = learner.round(state, batches, outcome, KEY, 0)
    expected, expected_report = LEARNER.round(state, batches, outcome, KEY, 0)
    assert_close(piped, expected)
    assert_close(report, expected_report)
    assert 0.0 < report.erased_fraction < 1.0


def test_devices_that_share_clusters_and_examples_learn_the_same_round(state):
    """Three rows for three clusters, two columns for the examples of each."""
    mesh = device_mesh(jax.devices(), CLUSTERS, BATCH)
    batches, outcome = make_batches(5), make_outcome(0.3)
    expected = LEARNER.round(state, batches, outcome, KEY, 0)
    everywhere = NamedSharding(mesh, PartitionSpec())
    given, own, now, key = jax.device_put((state, batches, outcome, KEY), everywhere)
    with jax.set_mesh(mesh):
        own = jax.jit(spread, static_argnums=1)(own, (None, COPY, EXAMPLE))
        got = LEARNER.round(given, own, now, key, 0)
    assert jax.tree.leaves(own)[0].sharding.spec == PartitionSpec(None, "device", "data")
    assert dict(mesh.shape) == {"device": 3, "data": 2}
    assert_close(got, expected)


@pytest.mark.slow
def test_a_token_is_averaged_over_the_clusters_that_met_it(state):
    """All else, and the clusters' own steps, are those of plain averaging; one program."""
    batches, present = make_batches(5), (True, False, True)
    batches.token_ids[:, 0][batches.token_ids[:, 0] > 8] = 8
    plain, scaled = (
        with_rules(factor).round(state, batches, make_outcome(present=present), KEY, 0)[0]
        for factor in (1.0, 0.0)
    )
    ids = batches.token_ids
    met = [set(ids[:, n].ravel().tolist()) if here else set() for n, here in enumerate(present)]
    shares = np.asarray(WEIGHTS * np.array(present)) / 0.8
    factors = []
    for token in range(MODEL.sizes.vocabulary_size):
        weight = sum(share for share, own in zip(shares, met, strict=True) if token in own)
        factors.append(1.0 / weight if weight else 2.0)
    assert len(set(np.round(factors, 3))) > 2
    tables = [after.client["embedding"].pop("word") for after in (plain, scaled)]
    moved, expected = (table - state.client["embedding"]["word"] for table in tables[::-1])
    expected = np.array(factors)[:, None] * expected
    np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-6)
    jax.tree.map(
        np.testing.assert_array_equal, *(x._replace(server_optimizer=()) for x in (plain, scaled))
    )


def test_when_all_is_erased_nobody_moves_and_the_loss_is_still_told(state):
    batches, present = make_batches(3), (True, False, True)
    after, report = LEARNER.round(state, batches, make_outcome(1.0, present), KEY, 0)
    assert_close((after.client, after.decoder), (state.client, state.decoder), 1e-6)
    assert report.erased_fraction == 1.0
    assert report.gradient_norm == 0.0
    held = jax.tree.map(lambda leaf: leaf[:, [0, 2]].reshape(STEPS * 2 * BATCH, -1), batches)
    losses = jax.jit(example_losses, static_argnums=0)
    loss, tokens = losses(MODEL, state.client | {"decoder": state.decoder}, held)
    np.testing.assert_allclose(report.loss, loss.sum() / tokens.sum(), rtol=1e-5)


def test_identical_clusters_are_one_cluster(state):
    one = make_batches(4, clusters=1)
    same = jax.tree.map(lambda leaf: np.tile(leaf, (1, CLUSTERS, 1, 1)), one)
    results = [
        LEARNER.round(state, same, make_outcome(present=present), KEY, 0)
        for present in ((True, True, True), (False, True, False))
    ]
    (a, report_a), (b, report_b) = results
    assert_close((a.client, a.decoder, report_a), (b.client, b.decoder, report_b))


def test_without_anybody_nothing_changes(state):
    warm, _ = LEARNER.round(state, make_batches(1), make_outcome(), KEY, 0)
    nobody = make_outcome(present=(False,) * CLUSTERS)
    for outcome, weights in ((nobody, WEIGHTS), (make_outcome(), jnp.zeros(CLUSTERS))):
        learner = LEARNER.replace(cluster_weight=weights)
        after, report = learner.round(warm, make_batches(2), outcome, KEY, 1)
        jax.tree.map(np.testing.assert_array_equal, after, warm)
        assert np.isnan(report.loss)


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["pipeline", "data-parallel"])
def test_a_cluster_that_missed_rounds_steps_at_the_rate_of_the_run(learner):
    """Plain SGD down a cosine: the same batch moves both clusters alike in the last round."""
    tx = make_optimizer("sgd", 0.5, schedule="cosine", total_steps=4 * STEPS)
    settings = {
        "cluster_weight": jnp.ones(2),
        "model": MODEL,
        "optimizers": Optimizers(client=tx, decoder=tx, server=make_optimizer("sgd", 1.0)),
    }
    batches = jax.tree.map(lambda leaf: np.tile(leaf, (1, 2, 1, 1)), make_batches(1, clusters=1))

    if learner == "pipeline":
        method = PipelineLearner(**settings)

        def outcome(*participates):
            return make_outcome(present=participates)
    else:
        method = DataParallelLearner(**settings, devices=1)

        def outcome(*participates):
            samples = BATCH * jnp.array(participates, jnp.int32)[:, None]
            return ClientsOutcome(samples, jnp.zeros((2, 1)))

    state = method.init(start())
    for index, participates in enumerate(((True, False), (True, False), (True, True))):
        state, _ = method.round(state, batches, outcome(*participates), KEY, index)

    def moved(index, *participates):
        after, _ = method.round(state, batches, outcome(*participates), KEY, index)
        before = jax.tree.leaves(state.params)
        return norm(jax.tree.map(jnp.subtract, jax.tree.leaves(after.params), before))

    often, seldom = moved(3, True, False), moved(3, False, True)
    np.testing.assert_allclose(often, seldom, rtol=1e-5)
    assert often < 0.5 * moved(0, True, False)  # down the cosine, both of them


def test_an_absent_cluster_could_hold_anything(state):
    present = (True, False, True)
    batches, other = make_batches(1), make_batches(1)
    for leaf in jax.tree.leaves(other):
        leaf[:, 1] = leaf[:, 1, ::-1] % 5
    a, b = (
        LEARNER.round(state, data, make_outcome(present=present), KEY, 0)
        for data in (batches, other)
    )
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_new_decisions_cost_no_compilation(state):
    batches = make_batches(1)
    LEARNER.round(state, batches, make_outcome(), KEY, 0)
    learner = LEARNER.replace(cluster_weight=WEIGHTS[::-1])
    with compiles(PipelineLearner.round, 0):
        for m, loss, present in ((1, 0.3, (True,) * 3), (4, 0.0, (False, True, True))):
            _, report = learner.round(state, batches, make_outcome(loss, present, m), KEY, m)
            assert np.isfinite(report.loss)


@pytest.mark.slow
def test_losses_that_come_together_take_a_cluster_out_of_all_steps(state):
    """All or none of a cluster's samples in a round; and what survives weighs the same."""
    learner = LEARNER.replace(erasure_law=ErasureLaw(per_round=True, pooled=True))
    batches, outcome = make_batches(0), make_outcome(loss=0.5, micro_batches=4)
    seen = set()
    for number in range(12):
        key = jax.random.key(number)
        after, report = learner.round(state, batches, outcome, key, 0)
        lost = round(float(report.erased_fraction) * CLUSTERS)
        assert report.erased_fraction == pytest.approx(lost / CLUSTERS)
        seen.add(lost)
        if lost == CLUSTERS:
            assert_close(after.client, state.client, 1e-6)
    assert len(seen) > 2


def test_noise_on_activations_reaches_clusters_and_decoder(state):
    """One program for any noise; without noise nothing changes."""
    batches, outcome = make_batches(2), make_outcome(0.4)
    plain, _ = LEARNER.round(state, batches, outcome, KEY, 0)
    silent, noisy = (
        with_rules(noise=noise).round(state, batches, outcome, KEY, 0)[0] for noise in (0.0, 0.5)
    )
    leaves_close.assert_close(silent, plain, 1e-6)
    parts = jax.device_get((noisy.params, plain.params))
    for part in ("encoder", "decoder"):
        assert norm(jax.tree.map(np.subtract, *(params[part] for params in parts))) > 1e-3


def test_training_learns_to_copy_a_word(state):
    """The last token's label is the first one's; blind to it, no model gets below log 5 nats."""
    rng, losses = np.random.default_rng(0), []
    slow = make_optimizer("momentum", 0.05, clip_norm=1.0)
    own = Optimizers(client=slow, decoder=slow, server=make_optimizer("momentum", 0.1))
    learner = LEARNER.replace(optimizers=own)
    for step in range(150):
        token_ids = rng.integers(4, 9, (STEPS, CLUSTERS, BATCH, 4))
        labels = np.full_like(token_ids, UNLABELLED)
        labels[..., -1] = token_ids[..., 0] - 4
        batches = LabelledBatch(token_ids.astype(np.int32), labels.astype(np.int32))
        key = jax.random.fold_in(KEY, step)
        state, report = learner.round(state, batches, make_outcome(0.1), key, step)
        losses.append(float(report.loss))
    assert losses[0] > 1.5
    assert np.mean(losses[-5:]) < 0.5 * np.log(5)
