"""Many small problems in one vectorised call, along the last axis of every array.

The axes of a network are short (5 devices, 4 clusters), and the solver works on many
networks at once. With the batch last, each operation is one pass over contiguous numbers,
which vector units take side by side. ``jax.vmap`` puts the batch first; :func:`batch_last`
hides the difference.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

_T = TypeVar("_T")

_CHUNK = {"cpu": 64}
"""Problems at a time: a working set that stays in a core's cache."""
_CHUNK_ELSEWHERE = 4096
_SMALL_BATCH = 8


def batch_last(solve: Callable, whole: bool = False, like: Callable | None = None) -> Callable:
    """Turn a function of batched problems into one of a single problem.

    ``solve`` takes and returns trees of arrays with a trailing batch axis. Under ``jax.vmap``,
    nested or not, all problems go through it together, a chunk of the batch at a time. It has no
    derivative: stop gradients of its arguments.

    Args:
      solve: function of batches.
      whole: whether it gets the whole batch, to use :func:`in_chunks` and
        :func:`improve_in_chunks`.
      like: function of batches that is traced for the structure, shapes and types of the results,
        by default ``solve``. JAX asks for these at every ``vmap`` and loop around the call.
        With a light one a large ``solve`` is traced once, when the program is built.
    """
    solve = solve if whole else in_chunks(solve)

    def solve_one(*arguments):
        batch_of_one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[..., None], arguments)
        leaves, structure = jax.tree.flatten(batch_of_one)
        # Scalars of a problem meet arrays with its trailing axes all the time.
        with jax.numpy_rank_promotion("allow"):
            shapes = jax.eval_shape(like or solve, *batch_of_one)
        results = _solve.bind(
            *leaves,
            solve=lambda *leaves: jax.tree.leaves(solve(*jax.tree.unflatten(structure, leaves))),
            shapes=tuple((leaf.shape[:-1], leaf.dtype) for leaf in jax.tree.leaves(shapes)),
        )
        return jax.tree.unflatten(jax.tree.structure(shapes), [leaf[..., 0] for leaf in results])

    return solve_one


_solve = Primitive("batch_last")
"""A function of batches as one operation of JAX.

It is traced when the program around it is lowered: all batch axes are known by then.
"""
_solve.multiple_results = True


@_solve.def_abstract_eval
def _(*arguments, solve, shapes):
    (batch,) = {argument.shape[-1] for argument in arguments}
    return [ShapedArray((*shape, batch), dtype) for shape, dtype in shapes]


def _run(*arguments, solve, shapes):
    """The results, which must have the shapes that were said before."""
    with jax.numpy_rank_promotion("allow"):
        results = solve(*arguments)
    batch = arguments[0].shape[-1]
    given = [(result.shape, result.dtype) for result in results]
    assert given == [((*shape, batch), dtype) for shape, dtype in shapes], (given, shapes)
    return results


def _batch(arguments, axes, **parameters):
    """One more batch is a longer batch."""
    size = next(a.shape[axis] for a, axis in zip(arguments, axes, strict=True) if axis is not None)

    def to_last(leaf, axis):
        if axis is None:
            return _join_batches(jnp.broadcast_to(leaf, (size, *leaf.shape)))
        return _join_batches(jnp.moveaxis(leaf, axis, 0))

    results = _solve.bind(*map(to_last, arguments, axes), **parameters)
    split = [leaf.reshape(*leaf.shape[:-1], size, -1) for leaf in results]
    return split, [leaf.ndim - 2 for leaf in split]


_solve.def_impl(_run)
batching.primitive_batchers[_solve] = _batch
mlir.register_lowering(_solve, mlir.lower_fun(_run, multiple_results=True))


def in_chunks(solve: Callable, times: int = 1) -> Callable:
    """A function of batches that takes any batch in chunks; the last is padded with its end.

    Chunks are so many ``times`` larger for a function that works on less for each problem.
    """

    def solve_in_chunks(*arguments):
        batch, chunk = _sizes(arguments, times)
        if batch <= chunk:
            return solve(*arguments)
        chunks = -(-batch // chunk)
        index = jnp.minimum(jnp.arange(chunks * chunk), batch - 1).reshape(chunks, chunk)
        result = jax.lax.map(lambda chosen: solve(*_take(arguments, chosen)), index)
        return jax.tree.map(lambda leaf: _join_batches(leaf)[..., :batch], result)

    return solve_in_chunks


def improve_in_chunks(improve: Callable, needed: Array, problem, answer):
    """Better answers to the problems that need one, chunks of these at a time.

    Args:
      improve: from a problem and its answer to another answer; with batch axes.
      needed: booleans ``[R]``.
      problem: trees of arrays ``[..., R]``.
      answer: likewise.

    Returns:
      The answers, those to the other problems as they were.
    """
    batch, chunk = _sizes(answer)
    order = jnp.argsort(~needed, stable=True)
    chunks = (jnp.sum(needed) + chunk - 1) // chunk

    def improve_chunk(number, answer):
        chosen = order[jnp.minimum(number * chunk + jnp.arange(chunk), batch - 1)]
        before = _take(answer, chosen)
        after = improve(_take(problem, chosen), before)
        after = select(needed[chosen], after, before)
        return jax.tree.map(lambda leaf, new: leaf.at[..., chosen].set(new), answer, after)

    return jax.lax.fori_loop(0, chunks, improve_chunk, answer)


def _sizes(batched, times: int = 1) -> tuple[int, int]:
    """Problems in all, and in a chunk."""
    batch = jax.tree.leaves(batched)[0].shape[-1]
    return batch, min(batch, times * _CHUNK.get(jax.default_backend(), _CHUNK_ELSEWHERE))


def _take(batched, chosen: Array):
    return jax.tree.map(lambda leaf: jnp.take(leaf, chosen, axis=-1), batched)


def _join_batches(leaf):
    """Make one trailing batch axis of the first and the last axis."""
    return jnp.moveaxis(leaf, 0, -2).reshape(*leaf.shape[1:-1], -1)


def is_small_batch(values: Array) -> bool:
    """Whether the batch is too small for sums that are written out to pay off."""
    return values.ndim == 0 or values.shape[-1] <= _SMALL_BATCH


def sum_nodes(values: Array) -> Array:
    """Sum over the first axis.

    Written out, a large batch takes one pass; a reduction is compiled sooner.
    """
    if is_small_batch(values):
        return jnp.sum(values, axis=0)
    return fusion_barrier(sum(values[i] for i in range(values.shape[0])))


def max_nodes(values: Array) -> Array:
    """Maximum over the first axis, written out as in :func:`sum_nodes`."""
    if is_small_batch(values):
        return jnp.max(values, axis=0)
    rows = [values[i] for i in range(values.shape[0])]
    return fusion_barrier(functools.reduce(jnp.maximum, rows))


def fusion_barrier(tree):
    """The same numbers, which XLA does not recompute wherever they are read.

    XLA fuses additions into every loop that reads their result, so a sum over all nodes is
    taken again for each number of that loop. It does not duplicate divisions. So the numbers,
    floating-point with a trailing batch axis, are divided by ones that XLA may not look at.
    """

    def keep(values):
        if is_small_batch(values):
            return values
        return values / jax.lax.optimization_barrier(jnp.ones_like(values))

    return jax.tree.map(keep, tree)


def select(condition: Array, chosen: _T, other: _T) -> _T:
    """Leaves of one tree where a condition holds, else of another."""
    return jax.tree.map(lambda one, two: jnp.where(condition, one, two), chosen, other)


def stack(trees: Sequence[Any]) -> Any:
    """Trees of one structure as one, every leaf with a leading axis, on the host."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def pick(tree: Any, index: Any) -> Any:
    """The entries of an index, of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
