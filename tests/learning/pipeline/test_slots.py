import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compilations import compiles

from collapipe_jax.core.compilation import WITHOUT_FUSION_EMITTERS
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.block import init_encoder
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.pipeline import sharded
from collapipe_jax.learning.pipeline.execution import Execution, encode_clusters
from collapipe_jax.learning.pipeline.mesh import STAGE, gather_slots, segment_layout

layout = jax.jit(segment_layout, static_argnames="capacity")
gather = jax.jit(gather_slots, static_argnums=2)
CONFIG = EncoderConfig(width=8, heads=2, feed_forward_width=16, encoder_blocks=5)
QUICK = {"xla_backend_optimization_level": 0, **WITHOUT_FUSION_EMITTERS}


@functools.cache
def parameters():
    draw = jax.jit(lambda key: init_encoder(key, CONFIG), compiler_options=QUICK)
    return jax.tree.map(lambda leaf: leaf[None], draw(jax.random.key(0)))


@given(st.lists(st.integers(0, 6), min_size=4, max_size=4))
def test_every_block_stands_exactly_once_and_in_order(sizes):
    ids, mask = (np.asarray(a) for a in layout(np.array(sizes), capacity=24))
    assert ids.shape == mask.shape == (4, 24)
    assert ids[mask].tolist() == list(range(sum(sizes)))
    assert mask.sum(1).tolist() == sizes
    assert ((ids >= 0) & (ids < max(sum(sizes), 1))).all()


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_a_short_layout_keeps_the_heads_of_the_segments(sizes):
    ids, mask = (np.asarray(a) for a in layout(np.array(sizes), capacity=2))
    starts = np.cumsum([0, *sizes[:-1]])
    for device, size in enumerate(sizes):
        kept = list(range(starts[device], starts[device] + min(size, 2)))
        assert ids[device][mask[device]].tolist() == kept


@given(st.sampled_from([p for p in itertools.product(range(4), repeat=3) if sum(p) == 5]))
def test_slots_hold_a_devices_own_blocks_in_order(sizes):
    stack = {"a": jnp.arange(10.0).reshape(5, 2) + 1.0}
    stacks = {"a": jnp.stack([stack["a"], -stack["a"]])}
    both = gather(stacks, jnp.array([sizes, sizes]), 3)["a"]
    assert both.shape == (2, 3, 3, 2)
    assert (both[1] == -both[0]).all()
    starts = np.cumsum([0, *sizes[:-1]])
    for device, size in enumerate(sizes):
        own = stack["a"][starts[device] : starts[device] + size]
        assert (both[0, device, :size] == own).all()


@pytest.mark.parametrize("backend", [pytest.param("vmapped", marks=pytest.mark.slow), "sharded"])
def test_fifty_partitions_cost_one_compilation(backend):
    """Of five blocks over four devices, a different one in every call."""
    params = parameters()
    x, mask = jax.random.normal(jax.random.key(1), (1, 2, 2, 8)), jnp.ones((1, 2, 2), bool)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(params, segments):
        execution = Execution(backend, 2)
        return encode_clusters(params, CONFIG, x, mask, segments, execution=execution)

    partitions = [p for p in itertools.product(range(6), repeat=4) if sum(p) == 5][:50]
    assert len(partitions) == 50
    expected = jax.jit(lambda: encode_clusters(params, CONFIG, x, mask), compiler_options=QUICK)()
    with compiles(run, 1):
        for sizes in partitions:
            found = run(params, jnp.array([sizes]))
            np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5)


def test_a_device_runs_its_own_blocks_alone_and_bubbles_none(monkeypatch):
    """Passes of blocks counted while they run: M times each device's own, forward and backward."""
    params, ran = parameters(), collections.Counter()

    def counted(run, kind):
        def run_and_count(*arguments):
            stage = jax.lax.axis_index(STAGE)
            jax.debug.callback(lambda stage: ran.update([(kind, int(stage))]), stage)
            return run(*arguments)

        return run_and_count

    monkeypatch.setattr(sharded, "_block_forward", counted(sharded._block_forward, "forward"))
    monkeypatch.setattr(sharded, "_block_backward", counted(sharded._block_backward, "backward"))
    x, mask = jax.random.normal(jax.random.key(1), (1, 4, 2, 8)), jnp.ones((1, 4, 2), bool)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def gradient(params, segments):
        def loss(params):
            execution = Execution("sharded", 4)
            return encode_clusters(params, CONFIG, x, mask, segments, execution=execution).sum()

        return jax.grad(loss)(params)

    for sizes in ([1, 0, 4], [2, 2, 1]):
        ran.clear()
        jax.block_until_ready(gradient(params, jnp.array([sizes])))
        jax.effects_barrier()
        for kind in ("forward", "backward"):
            assert [ran[kind, stage] for stage in range(3)] == [4 * size for size in sizes]


@pytest.mark.parametrize("backend", ["vmapped", pytest.param("sharded", marks=pytest.mark.slow)])
def test_a_partition_that_does_not_fit_is_refused_or_gives_nan(backend):
    x, mask, params = jnp.ones((1, 2, 2, 8)), jnp.ones((1, 2, 2), bool), parameters()

    def run(sizes):
        return encode_clusters(params, CONFIG, x, mask, sizes, None, Execution(backend, 2, 3))

    for sizes, problem in (([4, 0, 1], "capacity of 3"), ([3, 0, 1], "no partition of 5")):
        with pytest.raises(InputError, match=problem):
            run(jnp.array([sizes]))
    compiled = jax.jit(run, compiler_options=QUICK)
    assert jnp.isnan(compiled(jnp.array([[4, 0, 1]]))).all()
    assert jnp.isnan(compiled(jnp.array([[3, 0, 1]]))).all()
    assert jnp.isfinite(compiled(jnp.array([[3, 0, 2]]))).all()
    assert (compiled(jnp.array([[0, 0, 0]])) == x).all()  # sits out
