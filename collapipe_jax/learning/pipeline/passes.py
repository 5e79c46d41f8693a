"""Forward and backward pass of one stage, with the kept arrays between them as plain arrays.

A schedule decides when a stage runs which pass, and so how many micro-batches are kept
at a time. Hence the two passes are functions of their own instead of one under ``jax.grad``.

A block keeps its input, the outputs of its matrix products, and the exponentials and
hyperbolic tangents in its softmax and activation function; norms, masks of dropout and
products with them are computed again. With ``rematerialise`` it keeps its input alone.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from collapipe_jax.learning.models.adapters import join
from collapipe_jax.learning.models.block import encoder_block
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import PRODUCT, Params, layer_keys

Kept = list[Array]


class Stage(NamedTuple):
    """The blocks of one device, and the micro-batches of its cluster."""

    config: EncoderConfig
    slots: Params  # every leaf [capacity, ...]
    first: Array  # number of its first block in the encoder, []
    size: Array  # number of its blocks, [], at most the capacity
    mask: Array  # [M, b, S]
    keys: Array | None  # [M, b]
    base: Params  # the blocks' other parameters, which get no gradient, every leaf [capacity, ...]

    def forward(self, x: Array, number: Array, busy: Array, kept: Kept) -> tuple[Array, Kept]:
        """The stage's blocks on one micro-batch.

        Args:
          x: activations ``[b, S, h]`` in their type between layers.
          number: of the micro-batch.
          busy: scalar bool; where False nothing is computed or written.
          kept: buffers from ``empty_kept``, or none to keep nothing.

        Returns:
          Activations ``[b, S, h]`` and the buffers.
        """

        def run_block(slot: Array, carry: tuple[Array, Kept]) -> tuple[Array, Kept]:
            x, kept = carry
            y, leaves = _block_forward(self.config, x, *self._block(slot, number))
            # Without buffers the leaves are dropped, and so is the work for them.
            pairs = zip(kept, leaves, strict=False)
            return y, [rows.at[number % len(rows), slot].set(new) for rows, new in pairs]

        return jax.lax.fori_loop(0, jnp.where(busy, self.size, 0), run_block, (x, kept))

    def backward(
        self, cotangent: Array, number: Array, busy: Array, kept: Kept, sums: Params
    ) -> tuple[Array, Params]:
        """The stage's blocks backward on one micro-batch, last block first.

        Args:
          cotangent: gradient by the stage's output ``[b, S, h]``.
          number, busy: as in ``forward``.
          kept: buffers that ``forward`` wrote.
          sums: of gradients so far, every leaf ``[capacity, ...]``.

        Returns:
          The gradient by the stage's input ``[b, S, h]``, and the sums with this micro-batch.
        """

        def run_block(turn: Array, carry: tuple[Array, Params]) -> tuple[Array, Params]:
            cotangent, sums = carry
            slot = self.size - 1 - turn
            leaves = [rows[number % len(rows), slot] for rows in kept]
            block = self._block(slot, number)
            cotangent, gradient = _block_backward(self.config, cotangent, leaves, *block)
            return cotangent, jax.tree.map(lambda s, new: s.at[slot].add(new), sums, gradient)

        return jax.lax.fori_loop(0, jnp.where(busy, self.size, 0), run_block, (cotangent, sums))

    def empty_kept(self, x: Array, rows: int) -> Kept:
        """One buffer ``[rows, capacity, ...]`` of NaN for each array that a block keeps.

        Args:
          x: one micro-batch ``[b, S, h]``; its values do not matter.
          rows: most micro-batches kept at a time; micro-batch m takes row ``m % rows``.
        """
        run = functools.partial(_block_forward, self.config)
        kept = jax.eval_shape(run, x, *self._block(0, 0))[1]
        shape = rows, len(jax.tree.leaves(self.slots)[0])
        return [jnp.full((*shape, *leaf.shape), jnp.nan, leaf.dtype) for leaf in kept]

    def _block(self, slot: Array | int, number: Array | int) -> tuple:
        """Parameters and base of a block, mask and keys of a micro-batch."""
        params, base = jax.tree.map(lambda leaf: leaf[slot], (self.slots, self.base))
        keys = None if self.keys is None else self.keys[number]
        return params, base, self.mask[number], layer_keys(keys, self.first + slot)


def _block_forward(config: EncoderConfig, x: Array, *rest: Any) -> tuple[Array, Kept]:
    """Output of a block, and the kept arrays: all that depend on its input."""
    y, pull_back = _linearise(config, x, *rest)
    return y, [pull_back.args_res[0], *pull_back.opaque_residuals]


def _block_backward(
    config: EncoderConfig, cotangent: Array, kept: Kept, *rest: Any
) -> tuple[Array, Params]:
    """Gradients by a block's input and parameters."""
    _, pull_back = jax.eval_shape(functools.partial(_linearise, config), cotangent, *rest)
    pull_back.args_res = [kept[0], *jax.tree.leaves(rest)]
    pull_back.opaque_residuals = kept[1:]
    return pull_back(cotangent)[:2]


def _linearise(
    config: EncoderConfig, x: Array, params: Params, base: Params, mask: Array, keys: Array | None
) -> tuple[Array, Any]:
    """A block's output and its ``jax.vjp``, a pytree of arguments and other kept arrays.

    See https://docs.jax.dev/en/latest/301/vjp-objects.html.
    """

    def run(x: Array, params: Params, base: Params, mask: Array, keys: Array | None) -> Array:
        # The base is an argument, so that it is none of the arrays that are kept.
        params = join(params, jax.lax.stop_gradient(base))
        return encoder_block(params, config, x, mask, keys)

    run = jax.checkpoint(run, prevent_cse=False, policy=_policy(config))
    return jax.vjp(run, x, params, base, mask, keys)


def _policy(config: EncoderConfig) -> Callable[..., bool]:
    """The operations whose outputs a block keeps, as ``jax.checkpoint`` takes them."""
    if config.rematerialise:
        return jax.checkpoint_policies.nothing_saveable

    def is_costly(primitive: Any, *_: Any, **options: Any) -> bool:
        # JAX 0.12 wraps the exponential of erf's derivative in a function with its own rule.
        steps = options["call_jaxpr"].eqns if "call_jaxpr" in options else ()
        primitives = {primitive, *(step.primitive for step in steps)}
        return not primitives.isdisjoint((lax.exp_p, lax.tanh_p))

    products = jax.checkpoint_policies.save_only_these_names(PRODUCT)
    return jax.checkpoint_policies.save_from_both_policies(products, is_costly)
