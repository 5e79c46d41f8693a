"""Clusters side by side on a mesh: each its own encoder, and their mean as one sum."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from support.compilations import compiles
from support.leaves_close import assert_close

from collapipe_jax.core.compilation import WITHOUT_FUSION_EMITTERS
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.federated.aggregation import aggregate, participant_shares
from collapipe_jax.learning.models.block import encode, init_encoder
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import example_keys
from collapipe_jax.learning.pipeline import sharded
from collapipe_jax.learning.pipeline.execution import Execution, encode_clusters, run_slots
from collapipe_jax.learning.pipeline.mesh import gather_slots, largest_shape, make_pipeline_mesh

CONFIG = EncoderConfig(
    width=8, heads=2, feed_forward_width=16, encoder_blocks=4, dropout_rate=0.2, rematerialise=True
)
QUICK = {"xla_backend_optimization_level": 0, **WITHOUT_FUSION_EMITTERS}
KEY = jax.random.key(3)
SEGMENTS = jnp.array([[1, 0, 3], [2, 2, 0]])
KEYS = example_keys(KEY, jnp.arange(8)).reshape(2, 4)
SHARDED = Execution("sharded", 2)


@pytest.fixture(scope="module")
def problem():
    """Two clusters' parameters, activations and masks; nobody's are another's."""

    def draw(key):
        params = jax.vmap(lambda key: init_encoder(key, CONFIG))(jax.random.split(key, 2))
        return params, jax.random.normal(key, (2, 4, 5, 8))

    params, x = jax.jit(draw, compiler_options=QUICK)(KEY)
    lengths = jnp.array([[5, 2, 4, 1], [3, 5, 5, 2]])
    return params, x, jnp.arange(5)[None, None] < lengths[..., None]


@pytest.mark.slow
def test_clusters_with_encoders_of_their_own_run_side_by_side(problem):
    """Gradients by the stacks, through slots, equal those of one scan in each cluster."""

    @functools.partial(jax.jit, compiler_options=QUICK)
    def by_pipeline(params, x, mask):
        def loss(params, x):
            slots = gather_slots(params, SEGMENTS, 3)
            y = run_slots(slots, CONFIG, x, mask, SEGMENTS, KEYS, SHARDED)
            return jnp.sin(3.0 * y).sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(params, x)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def by_scan(params, x, mask):
        def loss(params, x):
            run = jax.vmap(lambda params, *rest: encode(params, CONFIG, *rest))
            return jnp.sin(3.0 * run(params, x, mask, KEYS)).sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(params, x)

    (loss, gradient), (expected_loss, expected) = by_pipeline(*problem), by_scan(*problem)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    assert_close(gradient, expected, 1e-5)


def test_a_device_holds_its_own_segment_alone(problem):
    mesh = make_pipeline_mesh(2, 3)
    spec = NamedSharding(mesh, PartitionSpec("cluster", "stage"))
    gather = jax.jit(lambda params: gather_slots(params, SEGMENTS, 3), out_shardings=spec)
    for leaf in jax.tree.leaves(gather(problem[0])):
        assert leaf.shape[:3] == (2, 3, 3)
        assert {shard.data.shape for shard in leaf.addressable_shards} == {(1, 1, *leaf.shape[2:])}


def test_a_cluster_whose_partition_does_not_fit_spoils_no_other(problem):
    def run(params, x, mask, segments):
        return encode_clusters(params, CONFIG, x, mask, segments, None, Execution("sharded", 2, 3))

    y = jax.jit(run, compiler_options=QUICK)(*problem, jnp.array([[4, 0, 0], [1, 2, 1]]))
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1]).all()
    with pytest.raises(InputError, match="capacity of 3"):
        run(*problem, jnp.array([[4, 0, 0], [1, 2, 1]]))


BY_CLUSTER = NamedSharding(make_pipeline_mesh(4, 2), PartitionSpec("cluster"))


@functools.partial(jax.jit, compiler_options=QUICK)
def both_means(clients, weights, present):
    shares = participant_shares(weights, present)
    on_mesh = jax.lax.with_sharding_constraint(clients, BY_CLUSTER)
    return aggregate(on_mesh, shares), aggregate(clients, shares)


@settings(max_examples=20)
@given(
    st.lists(st.floats(0.0, 4.0, width=32), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_the_mean_over_a_mesh_is_that_of_the_aggregation(weights, present):
    """Absent clusters hold NaN; when nobody counts, the mean is 0."""
    weights, present = np.array(weights, np.float32), np.array(present)
    held = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    held[~present] = np.nan
    sharded, expected = both_means({"a": held}, weights, present)
    np.testing.assert_allclose(sharded["a"], expected["a"], rtol=1e-6, atol=1e-6)


def test_a_mesh_takes_the_devices_in_order():
    mesh = make_pipeline_mesh(2, 4)
    assert dict(mesh.shape) == {"cluster": 2, "stage": 4}
    assert mesh.devices.tolist() == np.reshape(jax.devices()[:8], (2, 4)).tolist()
    with pytest.raises(InputError, match="from 1 on"):
        make_pipeline_mesh(0, 2)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 16))
def test_a_folded_mesh_is_the_largest_that_divides_and_folds_no_further(clusters, stages, devices):
    rows, columns = largest_shape(clusters, stages, devices)
    assert clusters % rows == stages % columns == 0
    for other in itertools.product(range(1, clusters + 1), range(1, stages + 1)):
        divides = clusters % other[0] == stages % other[1] == 0
        assert not divides or np.prod(other) > devices or np.prod(other) <= rows * columns
    assert largest_shape(clusters, columns, devices) == (rows, columns)


def test_several_hosts_need_a_device_for_every_stage(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert make_pipeline_mesh(2, 4).size == 8
    with pytest.raises(InputError, match="fit the 8 devices of 2 hosts"):
        make_pipeline_mesh(3, 3)


def run_on(devices, monkeypatch, function, *arguments):
    """What a function gives whose pipelines have so many devices."""
    first = jax.devices()[:devices]
    with monkeypatch.context() as patch:
        patch.setattr(jax, "devices", lambda: first)
        return jax.device_get(jax.jit(function, compiler_options=QUICK)(*arguments))


def encoded(params, x, mask, segments):
    return encode_clusters(params, CONFIG, x, mask, segments, KEYS, Execution("sharded", 2, 2))


def gradient(params, x, mask, segments):
    """Gradients by parameters and activations, and outputs."""

    def loss(params, x):
        y = encoded(params, x, mask, segments)
        return jnp.sin(3.0 * y).sum(), y

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)


@pytest.mark.parametrize(
    "devices", [pytest.param(count, marks=pytest.mark.slow) for count in (4, 2, 1)]
)
def test_fewer_devices_give_the_same(problem, monkeypatch, devices):
    """Two clusters of four stages on meshes 2 x 4, 2 x 2, 2 x 1 and 1 x 1."""
    segments = jnp.array([[1, 0, 2, 1], [2, 2, 0, 0]])
    expected, found = (
        run_on(count, monkeypatch, gradient, *problem, segments) for count in (8, devices)
    )
    np.testing.assert_array_equal(found[1], expected[1])
    # The compiler fuses what a pass back through a block adds up in its own way on every mesh.
    assert_close(found[0], expected[0], 1e-5)


DECIDED = ([1, 1], [4, 1], [2, 4], [4, 4])


@pytest.mark.parametrize("devices", [8, pytest.param(3, marks=pytest.mark.slow)])
def test_decided_micro_batches_change_no_bit_and_cost_one_compilation(
    problem, monkeypatch, devices
):
    """Each cluster has a number of its own, on rows of their own and on one row."""
    first = jax.devices()[:devices]
    monkeypatch.setattr(jax, "devices", lambda: first)
    params, x, mask = problem
    rest, decided = (SEGMENTS, KEYS), Execution("sharded", 4, decided=True)

    @functools.partial(jax.jit, compiler_options=QUICK, static_argnames="execution")
    def gradient(params, x, micro_batches, execution):
        def loss(params, x):
            y = encode_clusters(params, CONFIG, x, mask, *rest, execution, micro_batches)
            return jnp.sin(3.0 * y).sum(), y

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)

    expected, outputs = gradient(params, x, None, Execution("sharded", 4))
    with compiles(gradient, 1):
        for counts in DECIDED:
            found = gradient(params, x, jnp.array(counts), decided)
            np.testing.assert_array_equal(found[1], outputs)
            assert_close(found[0], expected, 1e-5)


def test_a_pipeline_takes_the_turns_of_its_micro_batches(problem, monkeypatch):
    """A hop a turn: ``(M + K - 1) G / M`` of them, for the slowest of the clusters."""
    turns, hop = collections.Counter(), sharded.hop

    def count_hop(message, direction):
        place = jax.lax.axis_index("cluster"), jax.lax.axis_index("stage")
        jax.debug.callback(lambda *place: turns.update([tuple(map(int, place))]), *place)
        return hop(message, direction)

    monkeypatch.setattr(sharded, "hop", count_hop)
    execution = Execution("sharded", 4, decided=True)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(params, x, mask, counts):
        return encode_clusters(params, CONFIG, x, mask, SEGMENTS, None, execution, counts)

    for counts in DECIDED:
        turns.clear()
        jax.block_until_ready(run(*problem, jnp.array(counts)))
        jax.effects_barrier()
        slowest = max((count + 3 - 1) * 4 // count for count in counts)
        assert turns == {(row, column): slowest for row in range(2) for column in range(3)}


def test_a_device_of_two_stages_refuses_what_one_of_them_does_not_hold(problem, monkeypatch):
    segments = jnp.array([[3, 0, 1, 0], [2, 2, 0, 0]])
    found = run_on(1, monkeypatch, encoded, *problem, segments)
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1]).all()


def test_slots_of_more_stages_than_columns_are_refused(problem):
    segments = jnp.array([[1, 1, 0, 1, 1, 0, 0, 0, 0]] * 2)
    slots = gather_slots(problem[0], segments, 1)
    with pytest.raises(InputError, match="Fold the segments"):
        run_slots(slots, CONFIG, *problem[1:], segments, None, SHARDED)
