import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.tiny_transformer import CONFIG

from collapipe_jax.learning.federated import optimizers
from collapipe_jax.learning.federated.learner import apply_gradient
from collapipe_jax.learning.federated.optimizers import OPTIMIZERS
from collapipe_jax.learning.models.bert import BertWithHead
from collapipe_jax.learning.models.config import BertConfig
from collapipe_jax.learning.models.transformer import Translator

SIZES = {"width": 8, "heads": 2, "feed_forward_width": 16, "encoder_blocks": 2}
BERT = BertWithHead(sizes=BertConfig(vocabulary_size=12, **SIZES), labels=3, pools=True)


def make_optimizer(*given, **options):
    return optimizers.make_optimizer(*given, **options).transformation


def moves(tx, steps, gradient=1.0):
    """Sizes of the first steps under a constant gradient."""
    params, sizes = jnp.zeros(()), []
    state = tx.init(params)
    for number in range(steps):
        moved, state = apply_gradient(tx, jnp.float32(gradient), (params, state), jnp.int32(number))
        sizes.append(-float(moved))
    return np.array(sizes)


@pytest.mark.parametrize(
    ("name", "expected"), [("sgd", 8), ("momentum", 12), ("adam", 16), ("adamw", 16)]
)
def test_bytes_are_those_of_the_real_state(name, expected):
    params = {"w": jnp.zeros(1000)}
    state = make_optimizer(name, 0.1).init(params)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.size > 1)
    assert OPTIMIZERS[name] == expected
    assert (held + 2 * params["w"].nbytes) // 1000 == expected


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1]),
        ("inverse_sqrt", [0.25, 0.5, 0.75, 1, *(4 / (4 + np.arange(5))) ** 0.5]),
        ("cosine", [0.25, 0.5, 0.75, 1, *(0.5 + 0.5 * np.cos(np.pi * np.arange(5) / 4))]),
    ],
)
def test_schedules_warm_up_then_decay(schedule, expected):
    tx = make_optimizer("sgd", 2.0, schedule=schedule, warmup_steps=4, total_steps=8)
    np.testing.assert_allclose(moves(tx, 9), 2 * np.array(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_an_optimiser_is_optax_own_with_the_schedule_of_its_steps(name):
    """Where no step is missed, and optax counts them itself."""
    tx = make_optimizer(name, 2.0, schedule="cosine", warmup_steps=3, total_steps=8)
    warmup, after = optax.linear_schedule(2 / 3, 2.0, 2), optax.cosine_decay_schedule(2.0, 5)
    rate = optax.join_schedules([warmup, after], [3])
    counting = {
        "sgd": optax.sgd(rate),
        "momentum": optax.sgd(rate, momentum=0.9),
        "adam": optax.adam(rate, b1=0.9, b2=0.98, eps=1e-9),
    }[name]
    np.testing.assert_allclose(moves(tx, 8, 0.7), moves(counting, 8, 0.7), rtol=1e-5)


def test_without_warm_up_the_first_step_is_at_the_peak():
    for schedule in ("constant", "inverse_sqrt", "cosine"):
        tx = make_optimizer("sgd", 2.0, schedule=schedule, total_steps=8)
        np.testing.assert_allclose(moves(tx, 1), [2.0], rtol=1e-6)


def test_each_name_is_its_rule():
    np.testing.assert_allclose(moves(make_optimizer("momentum", 1.0), 3), [1, 1.9, 2.71], rtol=1e-5)
    np.testing.assert_allclose(moves(make_optimizer("adam", 0.1), 3, 50.0), 0.1, rtol=1e-4)


def test_clipping_bounds_the_whole_gradient():
    params = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
    gradient = jax.tree.map(lambda p: jnp.full_like(p, 10.0), params)
    for clip_norm, expected in ((0.5, 0.5), (0.0, 10 * 5**0.5)):
        tx = make_optimizer("sgd", 1.0, clip_norm=clip_norm)
        update, _ = tx.update(gradient, tx.init(params), params, step=0)
        norm = np.linalg.norm(np.concatenate(jax.tree.leaves(update)))
        np.testing.assert_allclose(norm, expected, rtol=1e-5)


def test_adamw_is_optax_own_with_the_schedule_of_its_steps():
    """Its decay is beside Adam's step, so no moment knows of it."""
    params = {"kernel": jnp.full((2, 2), 3.0), "bias": jnp.full(2, 3.0)}
    slope = jax.tree.map(lambda leaf: 0.3 * leaf, params)
    ours = make_optimizer("adamw", 0.1, weight_decay=0.5)
    theirs = optax.adamw(0.1, 0.9, 0.98, 1e-9, weight_decay=0.5, mask=optimizers.decayed)
    found, expected = params, params
    states = ours.init(params), theirs.init(params)
    for step in range(3):
        found, state = apply_gradient(ours, slope, (found, states[0]), step)
        update, other = theirs.update(slope, states[1], expected)
        expected, states = optax.apply_updates(expected, update), (state, other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    adam = make_optimizer("adam", 0.1)
    plain, _ = apply_gradient(adam, slope, (params, adam.init(params)), 0)
    once, _ = apply_gradient(ours, slope, (params, ours.init(params)), 0)
    np.testing.assert_array_equal(once["bias"], plain["bias"])
    np.testing.assert_allclose(plain["kernel"] - once["kernel"], 0.1 * 0.5 * 3.0, rtol=1e-5)


@pytest.mark.parametrize("model", [Translator(CONFIG), BERT])
def test_what_has_one_axis_in_a_block_does_not_decay(model):
    params = jax.eval_shape(model.init, jax.random.key(0))
    decays = optimizers.decayed(params)
    for (path, leaf), decay in zip(
        jax.tree.leaves_with_path(params), jax.tree.leaves(decays), strict=True
    ):
        is_stacked = {"encoder", "blocks"} & {step.key for step in path}
        assert decay == (leaf.ndim - bool(is_stacked) > 1)
