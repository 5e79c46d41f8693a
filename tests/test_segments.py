import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.pipeline.segments import segment_layout

layout = jax.jit(segment_layout, static_argnames="max_blocks")


@given(st.lists(st.integers(0, 6), min_size=4, max_size=4))
def test_every_block_stands_exactly_once_and_in_order(sizes):
    ids, mask = (np.asarray(a) for a in layout(np.array(sizes), max_blocks=24))
    assert ids.shape == mask.shape == (4, 24)
    assert ids[mask].tolist() == list(range(sum(sizes)))
    assert mask.sum(1).tolist() == sizes
    assert ((ids >= 0) & (ids < max(sum(sizes), 1))).all()


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_a_short_layout_keeps_the_heads_of_the_segments(sizes):
    ids, mask = (np.asarray(a) for a in layout(np.array(sizes), max_blocks=2))
    starts = np.cumsum([0, *sizes[:-1]])
    for device, size in enumerate(sizes):
        kept = list(range(starts[device], starts[device] + min(size, 2)))
        assert ids[device][mask[device]].tolist() == kept
