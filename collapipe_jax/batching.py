"""Many independent problems side by side, along the last axis of every array.

The solver works on short axes (devices, clusters) and on many problems at once. With the
problems last, every operation runs along them in vector units; with them first, as
``jax.vmap`` puts them, it would not. :func:`on_lanes` hides the difference: what it returns
takes one problem, and ``jax.vmap`` of it takes the fast way.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

_LANES_AT_A_TIME = {"cpu": 64}
"""A working set that stays in a core's cache; an accelerator takes thousands."""
_LANES_ELSEWHERE = 4096
_FEW_LANES = 8


def on_lanes(solve: Callable) -> Callable:
    """A function of one problem from a function of lanes of problems.

    Args:
      solve: takes and returns trees of arrays with a last axis of lanes.

    Returns:
      The same on trees without that axis. Under ``jax.vmap``, nested or not, all problems
      go through ``solve`` together, a cache's worth of lanes at a time.
    """

    @custom_vmap
    def on_all(*arguments):
        return _by_chunks(solve, arguments)

    @on_all.def_vmap
    def _(size, batched, *arguments):
        def to_last(leaf, is_batched):
            leaf = leaf if is_batched else jnp.broadcast_to(leaf, (size, *leaf.shape))
            return jnp.moveaxis(leaf, 0, -2).reshape(*leaf.shape[1:-1], -1)

        def to_first(leaf):
            return jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], size, -1), -2, 0)

        with jax.numpy_rank_promotion("allow"):
            result = on_all(*jax.tree.map(to_last, arguments, tuple(batched)))
        return jax.tree.map(to_first, result), jax.tree.map(lambda _: True, result)

    def on_one(*arguments):
        # Numbers of a problem meet arrays of its lanes all the time.
        with jax.numpy_rank_promotion("allow"):
            result = on_all(*jax.tree.map(lambda leaf: jnp.asarray(leaf)[..., None], arguments))
        return jax.tree.map(lambda leaf: leaf[..., 0], result)

    return on_one


def few_lanes(values: Array) -> bool:
    """Whether there are too few problems side by side to write their sums out for them."""
    return values.shape[-1] <= _FEW_LANES


def computed_once(tree):
    """The same numbers, which XLA does not work out anew wherever they are read.

    It writes additions into every loop that reads their result, so that a sum over all nodes
    is taken again for each number of that loop. A division is done once; here by ones that
    XLA may not look at, which changes nothing. Over few lanes sums are reductions, and done
    once anyway.

    Args:
      tree: of floating-point arrays with lanes.
    """

    def keep(values):
        if few_lanes(values):
            return values
        return values / jax.lax.optimization_barrier(jnp.ones_like(values))

    return jax.tree.map(keep, tree)


def _by_chunks(solve, arguments):
    """Solve lanes a chunk at a time; the last chunk is filled up with its last lane."""
    lanes = jax.tree.leaves(arguments)[0].shape[-1]
    chunk = _LANES_AT_A_TIME.get(jax.default_backend(), _LANES_ELSEWHERE)
    if lanes <= chunk:
        return solve(*arguments)
    chunks = -(-lanes // chunk)
    index = jnp.minimum(jnp.arange(chunks * chunk), lanes - 1).reshape(chunks, chunk)

    def solve_some(chosen):
        return solve(*jax.tree.map(lambda leaf: jnp.take(leaf, chosen, axis=-1), arguments))

    result = jax.lax.map(solve_some, index)

    def join(leaf):
        return jnp.moveaxis(leaf, 0, -2).reshape(*leaf.shape[1:-1], -1)[..., :lanes]

    return jax.tree.map(join, result)
