"""Clusters side by side on a mesh: each its own encoder, and their mean as one sum."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from support.leaves_close import assert_close

from collapipe_jax.compilation import WITHOUT_FUSION_EMITTERS
from collapipe_jax.errors import InputError
from collapipe_jax.federated.learner import aggregate, participant_shares
from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.models.encoder import encode, init_encoder
from collapipe_jax.models.layers import example_keys
from collapipe_jax.pipeline.execution import Execution, run_slots
from collapipe_jax.pipeline.mesh import make_pipeline_mesh
from collapipe_jax.pipeline.slots import gather_slots

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
        slots = gather_slots(params, segments, 3)
        return run_slots(slots, CONFIG, x, mask, segments, None, SHARDED)

    y = jax.jit(run, compiler_options=QUICK)(*problem, jnp.array([[4, 0, 0], [1, 2, 1]]))
    assert jnp.isnan(y[0]).all()
    assert jnp.isfinite(y[1]).all()
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


def test_a_mesh_takes_the_devices_in_order_and_refuses_what_they_cannot_fill():
    mesh = make_pipeline_mesh(2, 4)
    assert dict(mesh.shape) == {"cluster": 2, "stage": 4}
    assert mesh.devices.tolist() == np.reshape(jax.devices()[:8], (2, 4)).tolist()
    for shape in ((3, 3), (0, 2)):
        with pytest.raises(InputError, match="does not fit the 8 devices"):
            make_pipeline_mesh(*shape)
