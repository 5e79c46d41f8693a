import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from support.compilations import compiles
from support.tagger_rounds import BATCH, CLUSTERS, KEY, STEPS, WEIGHTS, make_batches, start
from support.tiny_bert import SIZES

from collapipe_jax.learning.federated.data_parallel_learner import (
    ClientsOutcome,
    DataParallelLearner,
)
from collapipe_jax.learning.federated.learner import device_mesh
from collapipe_jax.learning.federated.optimizers import Optimizers, Rules, make_optimizer
from collapipe_jax.learning.federated.pipeline_learner import PipelineLearner, PipelineOutcome
from collapipe_jax.learning.models.bert import BertWithHead
from collapipe_jax.learning.models.split_model import example_losses


class BrittleTagger(BertWithHead):
    """A tagger to which an unknown word is not a number."""

    def embed(self, embedding_params, batch, keys):
        x, mask = super().embed(embedding_params, batch, keys)
        known = batch.token_ids < SIZES.vocabulary_size
        return jnp.where(known[..., None], x, jnp.nan), mask


@struct.dataclass(kw_only=True)
class ChunkedLearner(DataParallelLearner):
    """A learner with chunks of any size."""

    size: int = struct.field(pytree_node=False)

    def chunk(self, batch_size):
        return self.size


FIELDS = "cluster_weight", "model", "optimizers", "devices"
MODEL = BrittleTagger(sizes=SIZES, labels=5, pools=False, label_smoothing=0.1)
DROPPING = dataclasses.replace(MODEL, sizes=dataclasses.replace(SIZES, dropout_rate=0.3))
CLIENT = make_optimizer("momentum", 0.3, clip_norm=0.5)
DECODER = make_optimizer("momentum", 0.2, clip_norm=1.0)
SERVER = make_optimizer("momentum", 1.0)
LEARNER = DataParallelLearner(
    cluster_weight=WEIGHTS,
    model=MODEL,
    optimizers=Optimizers(client=CLIENT, decoder=DECODER, server=SERVER),
    devices=2,
)
CHUNKED = ChunkedLearner(**{name: getattr(LEARNER, name) for name in FIELDS}, size=2)
SGD = make_optimizer("sgd", 0.5)
AVERAGE = make_optimizer("sgd", 1.0)
PLAIN = LEARNER.replace(optimizers=Optimizers(client=SGD, decoder=SGD, server=AVERAGE))
DROPS = PLAIN.replace(model=DROPPING, rules=Rules(embedding_rate_factor=1.0))  # plain averaging
UNEVEN, THREES = [[3, 1], [0, 4], [2, 2]], [[3, 0], [1, 3], [0, 2]]


def train(state, batches, samples, loss=0.0, key=KEY, learner=LEARNER, **changed):
    samples = jnp.array(samples, jnp.int32)
    outcome = ClientsOutcome(samples, jnp.full(samples.shape, loss))
    return learner.replace(**changed).round(state, batches, outcome, key, 0)


@pytest.fixture(scope="module")
def fresh():
    return LEARNER.init(start())


@pytest.fixture(scope="module")
def warm(fresh):
    """A state whose optimisers have a past."""
    return train(fresh, make_batches(7), THREES)[0]


@pytest.fixture(scope="module")
def plain():
    return PLAIN.init(start())


@jax.jit
def example_gradients(params, batch):
    """Losses and gradients of their sums `[B]`, and numbers of tokens, one example at a time."""

    def loss(params, example):
        losses, tokens = example_losses(MODEL, params, jax.tree.map(lambda a: a[None], example))
        return losses[0], tokens[0]

    one = jax.value_and_grad(loss, has_aux=True)
    (losses, tokens), grads = jax.vmap(one, in_axes=(None, 0))(params, batch)
    return losses, tokens, grads


def client_gradient(params, batch, first, count):
    losses, tokens, grads = jax.tree.map(np.asarray, example_gradients(params, batch))
    own = slice(first, first + count)
    total = tokens[own].sum()
    return jax.tree.map(lambda g: g[own].sum(0) / total, grads), losses[own].sum(), total


def halves(params):
    return {name: params[name] for name in ("embedding", "encoder")}, params["decoder"]


@jax.jit
def own_step(params, gradient, states):
    """Both optimisers of a client, each on its own part of the model."""
    stepped = [
        tx.transformation.update(grads, state, part, step=0)
        for tx, grads, state, part in zip(
            (CLIENT, DECODER), halves(gradient), states, halves(params), strict=True
        )
    ]
    updates = stepped[0][0] | {"decoder": stepped[1][0]}
    return optax.apply_updates(params, updates), [state for _, state in stepped]


def by_hand(params, batches, samples):
    """Federated averaging from fresh optimisers, one client and one step at a time."""
    ends, shares, loss_sum, token_count = [], [], 0.0, 0.0
    for cluster, device in zip(*np.nonzero(samples), strict=True):
        first, count = sum(samples[cluster][:device]), samples[cluster][device]
        client, decoder = halves(params)
        model, states = (
            params,
            [CLIENT.transformation.init(client), DECODER.transformation.init(decoder)],
        )
        for step in range(STEPS):
            batch = jax.tree.map(lambda leaf, s=step, n=cluster: leaf[s, n], batches)
            gradient, loss, tokens = client_gradient(model, batch, first, count)
            model, states = own_step(model, gradient, states)
            loss_sum, token_count = loss_sum + loss, token_count + tokens
        ends.append(model)
        shares.append(WEIGHTS[cluster] * count / sum(samples[cluster]))
    mean = jax.tree.map(lambda *leaves: np.average(leaves, axis=0, weights=shares), *ends)
    return mean, loss_sum / token_count


def distance(a, b):
    """Norm of the difference of two trees, over that of the second."""
    return norm(change(a, b)) / norm(b)


def norm(tree):
    return np.sqrt(sum(np.sum(np.square(leaf, dtype=float)) for leaf in jax.tree.leaves(tree)))


def change(after, before):
    return jax.tree.map(lambda a, b: np.asarray(a, float) - np.asarray(b, float), after, before)


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def of_clients(tree, chosen):
    return jax.tree.map(lambda leaf: leaf[np.array(chosen)], jax.device_get(tree))


@pytest.mark.parametrize("samples", [[[3, 0]] * CLUSTERS, THREES, [[1, 1], [0, 0], [0, 3]]])
def test_a_round_is_federated_averaging_written_out(fresh, samples):
    """One device a cluster, uneven parts (weights by samples), and a cluster left out."""
    batches = make_batches(1)
    after, report = train(fresh, batches, samples)
    expected, loss = by_hand(fresh.params, batches, samples)
    # The server's first step, its momentum still at rest, is plain averaging.
    assert distance(after.params, expected) < 1e-6
    assert distance(change(after.params, fresh.params), change(expected, fresh.params)) < 1e-4
    np.testing.assert_allclose(report.loss, loss, rtol=1e-5)
    assert report.erased_fraction == 0.0


@pytest.mark.slow
def test_a_client_alone_learns_as_its_cluster_does(plain):
    """The edge server's one decoder is then the client's own: same keys, same dropout."""
    batches, params = make_batches(2, steps=1), plain.params
    cluster = PipelineLearner(cluster_weight=WEIGHTS, model=DROPPING, optimizers=PLAIN.optimizers)
    ones, alone = jnp.ones(CLUSTERS, jnp.int32), jnp.arange(CLUSTERS) == 1
    expected, expected_report = cluster.round(
        cluster.init(start()),
        batches,
        PipelineOutcome(ones, jnp.zeros(CLUSTERS), alone),
        KEY,
        0,
    )
    samples = [[0, 0], [0, BATCH], [0, 0]]
    after, report = train(plain, batches, samples, learner=DROPS)
    expected_params = expected.params
    assert distance(change(after.params, params), change(expected_params, params)) < 1e-5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), report, expected_report)


@pytest.mark.slow
def test_parts_of_a_mini_batch_make_one_step_on_all_of_it(plain):
    """Plain SGD, H = 1, all examples equally long: gradients add up to the whole one's."""
    batches = make_batches(3, steps=1, shortest=4)
    whole = jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1]), batches)
    weights = jnp.ones(CLUSTERS) / CLUSTERS
    gradient, _, _ = client_gradient(plain.params, whole, 0, CLUSTERS * BATCH)
    expected = jax.tree.map(lambda g: -0.5 * g, gradient)
    for samples in ([[4, 0]] * CLUSTERS, [[2, 2]] * CLUSTERS, UNEVEN):
        after, report = train(plain, batches, samples, learner=PLAIN, cluster_weight=weights)
        assert distance(change(after.params, plain.params), expected) < 1e-5
        np.testing.assert_allclose(report.gradient_norm, norm(gradient), rtol=1e-5)


def test_dropout_goes_by_the_example_and_not_by_who_trains_on_it(plain):
    batches = make_batches(3, steps=1, shortest=4)
    alone, parted, otherwise = (
        change(train(plain, batches, samples, key=key, learner=DROPS)[0].params, plain.params)
        for samples, key in (
            ([[4, 0]] * CLUSTERS, KEY),
            (UNEVEN, KEY),
            (UNEVEN, jax.random.key(1)),
        )
    )
    assert distance(parted, alone) < 1e-5
    assert distance(parted, otherwise) > 0.1


def test_a_client_loses_micro_batches_one_by_one(fresh):
    """Of its part some is lost and some is not, and no more pieces than samples there are."""
    batches, samples = make_batches(3, shortest=4), jnp.array([[3, 0]] * CLUSTERS, jnp.int32)
    outcome = ClientsOutcome(samples, jnp.full(samples.shape, 0.5), micro_batches=1)
    erased = {}
    for count in (1, 2, 9):
        reports = [
            LEARNER.round(fresh, batches, outcome._replace(micro_batches=count), key, 0)[1]
            for key in jax.random.split(KEY, 12)
        ]
        erased[count] = np.array([report.erased_fraction for report in reports])
    assert np.all(np.isin(np.round(erased[1] * 3 * STEPS, 4), np.arange(3 * STEPS + 1)))
    assert erased[9].std() < erased[1].std()
    assert 0.3 < erased[9].mean() < 0.7


def test_identical_clients_are_one_client(fresh):
    first = jax.tree.map(lambda leaf: leaf[:, :1, :1], make_batches(4))
    same = jax.tree.map(lambda leaf: np.tile(leaf, (1, CLUSTERS, BATCH, 1)), first)
    everyone, report_a = train(fresh, same, [[1, 1]] * CLUSTERS)
    one, report_b = train(fresh, same, [[0, 0], [0, 2], [0, 0]])
    assert distance(everyone.params, one.params) < 1e-6
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), report_a, report_b)
    for leaf in jax.tree.leaves(jax.device_get(everyone.client_optimizer)):
        np.testing.assert_allclose(leaf, np.broadcast_to(leaf[:1], leaf.shape), atol=1e-6)


@pytest.fixture(scope="module")
def in_chunks(warm):
    """A round of a learner where a client has more than a chunk, with lost micro-batches."""
    batches, samples = make_batches(5), [[4, 0], [1, 3], [0, 2]]
    return lambda learner: train(warm, batches, samples, 0.4, learner=learner, model=DROPPING)


@pytest.mark.parametrize(
    "size",
    [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(BATCH, marks=pytest.mark.slow)],
)
def test_chunks_change_nothing(in_chunks, size):
    assert_close(in_chunks(CHUNKED.replace(size=size)), in_chunks(LEARNER))


def test_clients_side_by_side_are_clients_one_after_the_other(in_chunks):
    """A mesh has those of all devices at once."""
    with jax.set_mesh(device_mesh(jax.devices()[:1], 2 * CLUSTERS, 2)):
        found = in_chunks(LEARNER)
    assert_close(found, in_chunks(LEARNER))


def assert_close(found, expected):
    """The same rounds up to rounding."""
    (after, report), (state, told) = found, expected
    assert distance(after.params, state.params) < 1e-6
    assert distance(after.client_optimizer, state.client_optimizer) < 1e-5
    assert 0.0 < report.erased_fraction < 1.0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), report, told)


def test_a_token_is_averaged_over_the_clients_that_met_it(plain):
    """With plain SGD a client leaves the rows of other tokens alone."""
    batches, samples = make_batches(5, steps=1), np.array([[3, 1], [0, 4], [0, 0]])
    rules = [Rules(embedding_rate_factor=factor) for factor in (1.0, 0.0)]
    found = [train(plain, batches, samples, learner=DROPS, rules=each)[0] for each in rules]
    mean, scaled = (change(after.params, plain.params) for after in found)
    first, ids = np.cumsum(samples, 1) - samples, np.asarray(batches.token_ids)[0]
    shares, met = [], []
    for n, k in zip(*np.nonzero(samples), strict=True):
        own = ids[n, first[n, k] : first[n, k] + samples[n, k]]
        met.append(np.isin(np.arange(SIZES.vocabulary_size), own))
        shares.append(WEIGHTS[n] / 0.7 * samples[n, k] / samples[n].sum())
    weight = np.array(shares) @ np.array(met)
    expected = mean["embedding"].pop("word") / np.where(weight > 0, weight, 1 / 3)[:, None]
    np.testing.assert_allclose(scaled["embedding"].pop("word"), expected, rtol=1e-3, atol=1e-6)
    assert_same(scaled, mean)


def test_what_nobody_takes_is_never_read(warm):
    """Unknown words in place of examples left over turn their gradients into NaN."""
    batches, samples = make_batches(5), [[2, 1], [0, 0], [1, 0]]
    taken = np.arange(BATCH) < np.array([[3], [0], [1]])
    broken = jax.tree.map(lambda leaf: np.where(taken[None, ..., None], leaf, 999), batches)
    _, _, grads = example_gradients(warm.params, jax.tree.map(lambda leaf: leaf[0, 1], broken))
    assert np.isnan(grads["encoder"]["feed_forward"]["inner"]["kernel"]).all()
    a, b = (train(warm, data, samples) for data in (batches, broken))
    assert np.isfinite(a[1].loss)
    assert_same(a, b)


def test_a_client_reads_its_own_part_alone(warm):
    """Other words for client 3, device 1 of cluster 1, reach its optimisers and no others."""
    batches, samples = make_batches(5), [[2, 2], [1, 2], [2, 2]]
    other = make_batches(5)
    for leaf in jax.tree.leaves(other):
        leaf[:, 1, 1:3] = leaf[:, 1, 1:3, ::-1]
    (a, _), (b, _) = (train(warm, data, samples) for data in (batches, other))
    rest = [0, 1, 2, 4, 5]
    assert_same(of_clients(a.client_optimizer, rest), of_clients(b.client_optimizer, rest))
    assert distance(*(of_clients(s.client_optimizer, [3]) for s in (a, b))) > 1e-2


def test_a_client_left_out_keeps_its_optimisers(warm):
    batches, samples = make_batches(6), np.array([[3, 0], [0, 2], [2, 2]])
    weights = WEIGHTS.at[2].set(0.0)
    after, report = train(warm, batches, samples, cluster_weight=weights)
    out, taking_part = [1, 2, 4, 5], [0, 3]
    assert_same(of_clients(after.client_optimizer, out), of_clients(warm.client_optimizer, out))
    for client in taking_part:
        before, now = (of_clients(s.client_optimizer, [client]) for s in (warm, after))
        assert distance(now, before) > 1e-2
    samples[2] = 0  # a cluster without weight and one without samples are as good as none
    again, report_again = train(warm, batches, samples)
    assert distance(again.params, after.params) < 1e-6
    np.testing.assert_allclose(jax.tree.leaves(report), jax.tree.leaves(report_again), rtol=1e-5)


def test_without_anybody_nothing_changes(warm):
    batches, nobody = make_batches(6), [[0, 0]] * CLUSTERS
    for samples, weights in ((nobody, WEIGHTS), (THREES, jnp.zeros(CLUSTERS))):
        after, report = train(warm, batches, samples, cluster_weight=weights)
        assert_same(after, warm)
        assert np.isnan(jax.tree.leaves(report)).all()


def test_when_all_is_erased_nobody_moves_and_the_loss_is_still_told(fresh):
    batches = make_batches(3)
    after, report = train(fresh, batches, THREES, loss=1.0)
    assert distance(after.params, fresh.params) < 1e-6
    assert (report.erased_fraction, report.gradient_norm) == (1.0, 0.0)
    sums = np.zeros(2)
    for step, cluster in np.ndindex(STEPS, CLUSTERS):
        own = jax.tree.map(lambda leaf, s=step, n=cluster: leaf[s, n], batches)
        losses, tokens, _ = jax.device_get(example_gradients(fresh.params, own))
        held = sum(THREES[cluster])
        sums += losses[:held].sum(), tokens[:held].sum()
    np.testing.assert_allclose(report.loss, sums[0] / sums[1], rtol=1e-5)


@pytest.mark.slow
def test_the_step_under_erasures_is_unbiased(plain):
    """Mean over keys against the step without loss, and every client erased by itself."""
    batches, draws, loss = make_batches(3, steps=1), 600, 0.3

    @jax.jit
    @jax.vmap
    def step(key, loss):
        after, report = train(plain, batches, UNEVEN, loss, key=key, learner=PLAIN)
        return after.params, report.erased_fraction

    losses = jnp.full(draws + 1, loss).at[0].set(0.0)
    after, erased = step(jax.random.split(KEY, draws + 1), losses)
    pairs = zip(jax.tree.leaves(after), jax.tree.leaves(plain.params), strict=True)
    moved = [np.asarray(a - b[None], float).reshape(draws + 1, -1) for a, b in pairs]
    exact, moved = np.split(np.concatenate(moved, axis=1), [1])
    exact, erased = exact[0], np.asarray(erased)[1:]
    # Along the step itself, and along four directions that have nothing to do with it.
    rng = np.random.default_rng(0)
    directions = np.stack([exact, *rng.normal(size=(4, exact.size))])
    along = moved @ directions.T
    error = along.std(0) / np.sqrt(draws)
    assert np.all(np.abs(along.mean(0) - directions @ exact) < 4 * error)
    assert error[0] < 0.05 * exact @ exact
    assert abs(erased.mean() - loss) < 4 * erased.std() / np.sqrt(draws)
    # Parts of 3, 1, 4, 2 and 2 of the 12 examples are lost or kept as a whole.
    shares = np.array([3, 1, 4, 2, 2]) / 12
    patterns = np.array(np.meshgrid(*[[0.0, 1.0]] * 5)).reshape(5, -1)
    assert np.isclose(erased[:, None], shares @ patterns, atol=1e-6).any(1).all()
    assert np.isclose(erased.var(), loss * (1 - loss) * np.sum(shares**2), rtol=0.2)


def test_new_splits_and_losses_cost_no_compilation(warm):
    train(warm, make_batches(5), THREES)
    with compiles(DataParallelLearner.round, 0):
        for samples, loss in (([[1, 3], [3, 0], [0, 0]], 0.3), ([[2, 2]] * CLUSTERS, 0.9)):
            _, report = train(warm, make_batches(6), samples, loss, cluster_weight=WEIGHTS[::-1])
            assert np.isfinite(report.loss)


@pytest.mark.parametrize("samples", [[5, 0], [3, 2]], ids=["of a client", "of a cluster"])
def test_parts_that_do_not_fit_give_nan_throughout(warm, samples):
    after, report = train(warm, make_batches(5), [samples] * CLUSTERS)
    for leaf in jax.tree.leaves((after.params, report)):
        assert np.isnan(leaf).all()
