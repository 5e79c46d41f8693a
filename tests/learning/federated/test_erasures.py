import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from support.compilations import compiles
from support.tiny_transformer import CONFIG

from collapipe_jax.learning.federated.aggregation import (
    ErasureLaw,
    cluster_example_weights,
    loss_per_token,
    pool_survivors,
    sample_example_weights,
)
from collapipe_jax.learning.models.split_model import example_losses
from collapipe_jax.learning.models.transformer import TranslationBatch, Translator

DRAWS, BATCH = 100_000, 8


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None, None, None))
def draw_gradients(key, per_sample, micro_batches, loss):
    """A mini-batch's gradient under erasures."""
    data_key, erasure_key = jax.random.split(key)
    rows = jax.random.randint(data_key, (BATCH,), 0, len(per_sample))
    weights = sample_example_weights(erasure_key, BATCH, micro_batches, loss)
    return weights @ per_sample[rows] / BATCH


@pytest.mark.parametrize(("micro_batches", "loss"), [(1, 0.4), (4, 0.25), (8, 0.05), (2, 0.0)])
def test_the_gradient_is_unbiased_with_the_variance_of_17(x64, micro_batches, loss):
    """docs/system-model.md (17) on a least-squares gradient, against 100 000 draws."""
    rng = np.random.default_rng(0)
    population = 5
    features, labels = rng.normal(size=(population, 3)), rng.normal(size=population)
    model = jnp.array([0.4, -0.3, 0.8])
    per_sample = jax.vmap(jax.grad(lambda w, x, y: 0.5 * (w @ x - y) ** 2), (None, 0, 0))(
        model, jnp.array(features), jnp.array(labels)
    )
    mean = per_sample.mean(0)
    sigma2 = ((per_sample - mean[None]) ** 2).sum(1).mean()

    keys = jax.random.split(jax.random.key(1), DRAWS)
    gradients = np.asarray(draw_gradients(keys, per_sample, micro_batches, loss))
    a = loss / (micro_batches * (1 - loss))
    expected = float(sigma2 / (BATCH * (1 - loss)) + a * (mean @ mean))
    squares = ((gradients - np.asarray(mean)) ** 2).sum(1)
    error = squares.std() / np.sqrt(DRAWS)
    assert abs(squares.mean() - expected) < 4.5 * error
    assert error < 0.02 * expected
    bias = gradients.mean(0) - np.asarray(mean)
    assert np.all(np.abs(bias) < 4.5 * gradients.std(0) / np.sqrt(DRAWS))


def test_micro_batches_stand_and_fall_together_in_one_compilation():
    draw = jax.jit(jax.vmap(sample_example_weights, (0, None, None, None)), static_argnums=1)
    keys = jax.random.split(jax.random.key(0), 200)
    with compiles(draw, 1):
        drawn = {
            micro_batches: np.asarray(draw(keys, 8, jnp.int32(micro_batches), jnp.float32(0.5)))
            for micro_batches in (1, 2, 4, 8)
        }
    for micro_batches, weights in drawn.items():
        blocks = weights.reshape(200, micro_batches, -1)
        assert np.all(blocks == blocks[:, :, :1])
        assert set(np.unique(weights)) == {0.0, 2.0}
        # And not more together than that: all micro-batch patterns are seen.
        if micro_batches == 4:
            assert len(np.unique(blocks[:, :, 0], axis=0)) == 16


def test_a_part_is_cut_as_a_whole_of_its_size_is():
    draw = jax.jit(sample_example_weights, static_argnums=1)
    for count, micro_batches in ((1, 1), (5, 2), (6, 6), (8, 3)):
        key, loss = jax.random.key(count), jnp.float32(0.5)
        part = draw(key, 8, jnp.int32(micro_batches), loss, jnp.int32(count))
        whole = draw(key, count, jnp.int32(micro_batches), loss)
        np.testing.assert_array_equal(part[:count], whole)


@pytest.mark.parametrize("loss", [0.0, 1e-7, 1 - 1e-7, np.nextafter(1, 0, dtype=np.float32), 1.0])
def test_the_edges_stay_finite(loss):
    draw = jax.vmap(lambda key: sample_example_weights(key, 8, jnp.int32(4), jnp.float32(loss)))
    weights = np.asarray(draw(jax.random.split(jax.random.key(0), 500)))
    assert np.isfinite(weights).all()
    if loss == 0.0:
        assert np.all(weights == 1.0)
    if loss == 1.0:
        assert np.all(weights == 0.0)


@functools.partial(jax.jit, static_argnums=0)
def draw_round(law, round_number):
    """Weights `[H, N, B]` of three local steps of three clusters, the last one absent."""
    keys = jax.random.split(jax.random.key(round_number), 4)
    counts, lost = jnp.array([2, 4, 8]), jnp.array([0.5, 0.3, 0.5])
    shares = jnp.array([0.4, 0.6, 0.0])
    steps = [
        cluster_example_weights(law, key, keys[3], 8, counts, lost, shares) for key in keys[:3]
    ]
    return jnp.stack(steps)


@pytest.mark.slow
def test_losses_of_a_round_come_together_when_asked():
    rounds = np.stack([draw_round(ErasureLaw(per_round=True), number) for number in range(40)])
    own = rounds[:, :1, :, :1]
    assert np.all(rounds == own)  # one draw for all steps and examples of a cluster
    assert len(np.unique(own[:, 0, :2, 0] > 0, axis=0)) == 4  # but clusters by themselves
    apart = draw_round(ErasureLaw(), 0)
    assert np.any(apart != apart[:1])


def test_a_pooled_mean_weighs_all_survivors_alike():
    for number in range(20):
        pooled = np.asarray(draw_round(ErasureLaw(pooled=True), number))
        alone = np.asarray(draw_round(ErasureLaw(), number))
        np.testing.assert_array_equal(pooled > 0, alone > 0)
        for one in pooled:
            survived = np.unique(one[one > 0])
            assert len(survived) == 1
            share = 0.4 * (one[0] > 0).mean() + 0.6 * (one[1] > 0).mean()
            np.testing.assert_allclose(survived[0], 1 / share, rtol=1e-6)


def test_nobody_survives_a_pooled_mean():
    shares = jnp.array([0.5, 0.5])
    assert not pool_survivors(jnp.zeros((2, 8)), shares).any()


@pytest.mark.slow
@pytest.mark.parametrize(("micro_batches", "loss"), [(1, 0.5), (4, 0.3), (8, 0.1)])
def test_a_transformers_gradient_is_unbiased_with_the_variance_of_its_micro_batches(
    translator, micro_batches, loss
):
    """Of a fixed mini-batch: `P / (1 - P) sum_m |G_m|^2` around the gradient without losses.

    `G_m` is micro-batch m's part of that gradient, so this is the second term of
    docs/system-model.md (17) before samples are averaged over, on all parameters at once.
    """
    gradients, examples = translator
    batch_size = examples.shape[0]
    draws = jax.vmap(sample_example_weights, (0, None, None, None))
    keys = jax.random.split(jax.random.key(2), 5000)
    weights = draws(keys, batch_size, jnp.int32(micro_batches), jnp.float32(loss))
    np.testing.assert_allclose(  # linear in the weights, so parts do for all draws
        gradients(weights[:batch_size]), weights[:batch_size] @ examples, rtol=1e-3, atol=1e-6
    )
    parts = np.asarray(examples, np.float64).reshape(micro_batches, -1, examples.shape[1]).sum(1)
    survivors = np.asarray(weights, np.float64)[:, :: batch_size // micro_batches]
    drawn, whole = survivors @ parts, parts.sum(0)
    expected = loss / (1 - loss) * np.sum(parts**2)
    squares = np.sum((drawn - whole) ** 2, axis=1)
    error = squares.std() / np.sqrt(squares.size)
    assert abs(squares.mean() - expected) < 4.5 * error + 1e-6 * expected
    assert np.sum((drawn.mean(0) - whole) ** 2) < 10 * expected / squares.size
    assert expected > 0.01 * np.sum(whole**2)


@pytest.fixture(scope="module")
def translator():
    """Gradients of a tiny Transformer's loss by example weights, and examples' parts `[B, D]`.

    The loss is the trainer's own, the gradient over embedding, encoder and decoder.
    """
    model = Translator(CONFIG)
    params = model.init(jax.random.key(0))
    rng = np.random.default_rng(3)
    source, target = (jnp.array(rng.integers(4, 12, (8, length)), jnp.int32) for length in (5, 5))
    batch = TranslationBatch(source, target.at[:, 0].set(1))

    @jax.jit
    @jax.vmap
    def gradients(weights):
        def loss(params):
            return loss_per_token(*example_losses(model, params, batch), weights)

        return ravel_pytree(jax.grad(loss)(params))[0]

    return gradients, gradients(jnp.eye(8))
