"""The executed 1F1B step against `jax.grad` of one scan, and its ticks against the schedule."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.compilations import compilations
from support.leaves_close import assert_close

from collapipe_jax.core.compilation import WITHOUT_FUSION_EMITTERS
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.one_f_one_b import tick_of, ticks
from collapipe_jax.learning.models.block import encode, init_encoder
from collapipe_jax.learning.models.config import BertConfig, EncoderConfig
from collapipe_jax.learning.models.layers import example_keys
from collapipe_jax.learning.pipeline.mesh import gather_slots
from collapipe_jax.learning.pipeline.schedules import SCHEDULES, Step, one_f_one_b

SIZES = {"width": 8, "heads": 2, "feed_forward_width": 16, "encoder_blocks": 3, "dropout_rate": 0.2}
CONFIGS = {
    "pre-norm": EncoderConfig(**SIZES),
    "bert": BertConfig(vocabulary_size=11, **SIZES),
    "bfloat16": EncoderConfig(**SIZES, compute_dtype="bfloat16", rematerialise=True),
}
CLUSTERS, DEVICES, BATCH, LENGTH = 2, 3, 4, 5
QUICK = {"xla_backend_optimization_level": 0, **WITHOUT_FUSION_EMITTERS}
PARTITIONS = [p for p in itertools.product(range(4), repeat=DEVICES) if sum(p) == 3]
KEYS = example_keys(jax.random.key(5), jnp.arange(CLUSTERS * BATCH)).reshape(CLUSTERS, BATCH)


def head_loss(head, encoded, weights):
    """Weighted sum over examples, and the sum of their weights."""
    return (weights * jnp.sin(encoded @ head["w"]).sum((1, 2))).sum(), weights.sum()


@functools.partial(
    jax.jit, static_argnames=("name", "schedule", "micro_batches"), compiler_options=QUICK
)
def by_schedule(params, head, x, mask, weights, segments, name, schedule, micro_batches):
    def slots_of(params):
        return gather_slots(params, segments, SIZES["encoder_blocks"])

    slots, put_back = jax.vjp(slots_of, params)
    inputs = x, mask, segments, weights, micro_batches, KEYS
    losses, gradients = SCHEDULES[schedule](Step(slots, head, CONFIGS[name], head_loss, *inputs))
    return losses, (put_back(gradients.slots)[0], gradients.head, gradients.x)


@functools.partial(jax.jit, static_argnames="name", compiler_options=QUICK)
def by_grad(params, head, x, mask, weights, name):
    def one(params, head, x, mask, weights, keys):
        return head_loss(head, encode(params, CONFIGS[name], x, mask, keys), weights)

    by_all = jax.value_and_grad(one, argnums=(0, 1, 2), has_aux=True)
    each = jax.vmap(by_all, in_axes=(0, None, 0, 0, 0, 0))
    return each(params, head, x, mask, weights, KEYS)


@functools.cache
def parameters(name):
    def draw(key):
        keys = jax.random.split(key, CLUSTERS)
        head = {"w": jax.random.normal(key, (8, 3))}
        return jax.vmap(lambda key: init_encoder(key, CONFIGS[name]))(keys), head

    return jax.jit(draw, compiler_options=QUICK)(jax.random.key(0))


@st.composite
def batches(draw):
    """Activations, padding masks, weights of examples (erased ones 0), and partitions."""
    x = jax.random.normal(
        jax.random.key(draw(st.integers(0, 2**31 - 1))), (CLUSTERS, BATCH, LENGTH, 8)
    )
    count = CLUSTERS * BATCH
    lengths = jnp.array(draw(st.lists(st.integers(1, LENGTH), min_size=count, max_size=count)))
    weights = draw(st.lists(st.sampled_from([0.0, 1.0, 1.5]), min_size=count, max_size=count))
    mask = jnp.arange(LENGTH)[None, None] < lengths.reshape(CLUSTERS, BATCH, 1)
    sizes = [draw(st.sampled_from(PARTITIONS)) for _ in range(CLUSTERS)]
    weights = jnp.array(weights).reshape(CLUSTERS, BATCH)
    return x, mask, weights, jnp.array(sizes)


def assert_equal_up_to(tolerance, name, batch, schedule, micro_batches):
    *inputs, segments = batch
    rest = segments, name, schedule, micro_batches
    losses, gradients = by_schedule(*parameters(name), *inputs, *rest)
    expected_losses, expected = by_grad(*parameters(name), *inputs, name)
    for found, sums in zip(losses, expected_losses, strict=True):
        np.testing.assert_allclose(found, sums, rtol=tolerance, atol=10 * tolerance)
    assert_close(gradients, expected, tolerance)


@pytest.mark.parametrize(
    ("name", "schedule", "micro_batches"),  # fewer than the stages, and more
    [
        pytest.param("pre-norm", "1f1b", 2, marks=pytest.mark.slow),
        ("pre-norm", "1f1b", 4),
        pytest.param("bert", "1f1b", 2, marks=pytest.mark.slow),
        pytest.param("bert", "1f1b", 4, marks=pytest.mark.slow),
        pytest.param("pre-norm", "gpipe", 2, marks=pytest.mark.slow),
        pytest.param("pre-norm", "gpipe", 4, marks=pytest.mark.slow),
    ],
)
@settings(max_examples=10)
@given(batches())
def test_loss_and_gradients_are_those_of_one_scan(name, schedule, micro_batches, batch):
    """NaN in every bubble; dropout, padding, erased examples, idle devices, two clusters."""
    assert_equal_up_to(1e-5, name, batch, schedule, micro_batches)
    assert compilations(by_schedule) <= 6  # whatever the partition


@pytest.mark.slow
@settings(max_examples=3)
@given(batches(), st.sampled_from([2, 4]))
def test_a_rematerialised_step_in_16_bits_is_that_of_one_scan_up_to_rounding(batch, number):
    assert_equal_up_to(3e-2, "bfloat16", batch, "1f1b", number)


@jax.jit
def all_ticks(stages, micro_batches):
    """Of 7 stages at most in more ticks than any step takes, leaves `[40, 7]`."""
    stage, time = jnp.meshgrid(jnp.arange(7), jnp.arange(40))
    return tick_of(time, stage, stages, micro_batches)


@given(st.integers(1, 7), st.integers(1, 9))
def test_ticks_follow_the_schedule(stages, micro_batches):
    """Warm-up of min(M, K - k), then one backward and one forward pass in turn."""
    does = jax.tree.map(np.asarray, all_ticks(stages, micro_batches))
    end = ticks(stages, micro_batches)
    assert does.backward[end - 1, 0]
    assert not (does.forward[end:, :stages] | does.backward[end:, :stages]).any()
    assert not (does.forward & does.backward).any()
    for stage in range(stages):
        order = [
            ("forward", does.forward_number[time, stage])
            if does.forward[time, stage]
            else ("backward", does.backward_number[time, stage])
            for time in range(end)
            if does.forward[time, stage] or does.backward[time, stage]
        ]
        assert order == one_f_one_b_order(stages - stage, micro_batches)
        in_flight = np.cumsum(does.forward[:, stage].astype(int) - does.backward[:, stage])
        assert in_flight.max() == min(micro_batches, stages - stage)
    for kind, number, step in (
        (does.forward, does.forward_number, 1),
        (does.backward, does.backward_number, -1),
    ):
        when = {
            (stage, number[time, stage]): time
            for time, stage in zip(*np.nonzero(kind[:, :stages]), strict=True)
        }
        for (stage, micro), time in when.items():
            assert when.get((stage + step, micro), time + 1) == time + 1  # consumed on arrival


@given(st.integers(1, 7), st.integers(1, 9))
def test_a_step_has_no_more_ticks_than_the_schedule_needs(stages, micro_batches):
    """Passes of one tick each, as early as their stage and their neighbour let them start."""

    @functools.cache
    def end(stage, place):
        order = one_f_one_b_order(stages - stage, micro_batches)
        kind, m = order[place]
        neighbour = stage - 1 if kind == "forward" else stage + 1
        waits_for = [end(stage, place - 1)] if place else []
        if 0 <= neighbour < stages:
            there = one_f_one_b_order(stages - neighbour, micro_batches).index((kind, m))
            waits_for.append(end(neighbour, there))
        return 1 + max(waits_for, default=0)

    last = 2 * micro_batches - 1
    assert max(end(stage, last) for stage in range(stages)) == ticks(stages, micro_batches)


def one_f_one_b_order(behind, micro_batches):
    """A stage's passes: `behind` stages from it on, itself included."""
    warm = min(micro_batches, behind)
    order = [("forward", m) for m in range(warm)]
    for m in range(micro_batches):
        order.append(("backward", m))
        if warm + m < micro_batches:
            order.append(("forward", warm + m))
    return order


@pytest.mark.slow
def test_a_partition_that_does_not_fit_is_refused_or_gives_nan():
    config = EncoderConfig(**(SIZES | {"encoder_blocks": 2}))
    shapes = jax.eval_shape(lambda key: init_encoder(key, config), jax.random.key(5))
    params = jax.tree.map(lambda leaf: np.full((1, *leaf.shape), 0.1, np.float32), shapes)
    x, mask, weights = jnp.ones((1, 2, 2, 8)), jnp.ones((1, 2, 2), bool), jnp.ones((1, 2))
    slots = jax.tree.map(lambda leaf: leaf[:, :, None], params)  # a block on each device

    def run(segments):
        head, inputs = {"w": jnp.ones((8, 1))}, (x, mask, segments, weights, 2)
        return one_f_one_b(Step(slots, head, config, head_loss, *inputs))

    with pytest.raises(InputError, match="capacity of 1"):
        run(jnp.array([[2, 0]]))
    compiled = jax.jit(run, compiler_options=QUICK)
    found = compiled(jnp.array([[2, 0]]))
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(found))
    found = compiled(jnp.array([[1, 1]]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
