"""Forward and backward pass of one stage, with the kept arrays between them as plain arrays.

A schedule decides when a stage runs which pass, and so how many micro-batches are kept
at a time. Hence the two passes are functions of their own instead of one under ``jax.grad``.

A block keeps its input, the outputs of its matrix products, and the exponentials and
hyperbolic tangents in its softmax and activation function; norms, masks of dropout and
products with them are computed again. With ``rematerialise`` it keeps its input alone.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.models.encoder import encoder_block
from collapipe_jax.models.layers import LINEAR_OUTPUT, Params, layer_keys, narrow_dtype
from collapipe_jax.pipeline.micro_batches import MicroBatches

Kept = list[Array]


class Segment(NamedTuple):
    """The blocks of one device.

    Attributes:
      slots: parameters, every leaf ``[capacity, ...]``.
      first: number of its first block in the encoder, ``[]``.
      size: number of its blocks, ``[]``, at most the capacity.
    """

    slots: Params
    first: Array
    size: Array


def run_forward(
    segment: Segment,
    config: EncoderConfig,
    x: Array,
    micro: MicroBatches,
    kept: Kept,
    row: Array,
    busy: Array,
) -> tuple[Array, Kept]:
    """The stage's blocks on one micro-batch.

    Args:
      segment: the blocks of the device.
      config: sizes.
      x: activations ``[b, S, h]`` in their type between layers.
      micro: mask and keys of the micro-batch.
      kept: buffers ``[rows, capacity, ...]`` from ``empty_kept``, or none to keep nothing.
      row: row of this micro-batch in them.
      busy: scalar bool; where False nothing is computed or written.

    Returns:
      Activations ``[b, S, h]`` and the buffers.
    """

    def run_block(slot: Array, carry: tuple[Array, Kept]) -> tuple[Array, Kept]:
        x, kept = carry
        keys = layer_keys(micro.keys, segment.first + slot)
        y, leaves = _block_forward(_take(segment.slots, slot), config, x, micro.mask, keys)
        # Without buffers the leaves are dropped, and so is the work for them.
        kept = [rows.at[row, slot].set(new) for rows, new in zip(kept, leaves, strict=False)]
        return y, kept

    turns = jnp.where(busy, segment.size, 0)
    return jax.lax.fori_loop(0, turns, run_block, (x, kept))


def run_backward(
    segment: Segment,
    config: EncoderConfig,
    cotangent: Array,
    micro: MicroBatches,
    kept: Kept,
    row: Array,
    busy: Array,
    gradients: Params,
) -> tuple[Array, Params]:
    """The stage's blocks backward on one micro-batch, last block first.

    Args:
      segment, config, micro, row, busy: as in ``run_forward``.
      cotangent: gradient by the stage's output ``[b, S, h]``.
      kept: buffers that ``run_forward`` wrote.
      gradients: sums so far, every leaf ``[capacity, ...]``.

    Returns:
      The gradient by the stage's input ``[b, S, h]``, and the sums with this micro-batch.
    """

    def run_block(turn: Array, carry: tuple[Array, Params]) -> tuple[Array, Params]:
        cotangent, gradients = carry
        slot = segment.size - 1 - turn
        keys = layer_keys(micro.keys, segment.first + slot)
        leaves = [rows[row, slot] for rows in kept]
        block_gradient, cotangent = _block_backward(
            _take(segment.slots, slot), config, leaves, micro.mask, keys, cotangent
        )
        gradients = jax.tree.map(
            lambda total, new: total.at[slot].add(new), gradients, block_gradient
        )
        return cotangent, gradients

    turns = jnp.where(busy, segment.size, 0)
    return jax.lax.fori_loop(0, turns, run_block, (cotangent, gradients))


def empty_kept(
    slots: Params, config: EncoderConfig, x: Array, micro: MicroBatches, rows: int, fill: float
) -> Kept:
    """One buffer ``[rows, capacity, ...]`` for each array that a block keeps.

    Args:
      slots: every leaf ``[capacity, ...]``.
      config: sizes.
      x: one micro-batch ``[b, S, h]``; its values do not matter.
      micro: its mask and keys.
      rows: most micro-batches kept at a time.
      fill: content of a row before it is written.
    """
    capacity = jax.tree.leaves(slots)[0].shape[0]
    keys = layer_keys(micro.keys, 0)
    _, kept = jax.eval_shape(
        lambda params: _block_forward(params, config, x, micro.mask, keys), _take(slots, 0)
    )
    return [jnp.full((rows, capacity, *leaf.shape), fill, leaf.dtype) for leaf in kept]


def _take(slots: Params, slot: Array | int) -> Params:
    return jax.tree.map(lambda leaf: leaf[slot], slots)


def _block_forward(
    params: Params, config: EncoderConfig, x: Array, mask: Array, keys: Array | None
) -> tuple[Array, Kept]:
    """Output of a block, and the kept arrays that depend on its input."""
    y, pull_back = _linearise(params, config, x, mask, keys)
    dependent = _depends_on_input(params, config, x, mask, keys)
    return y, list(itertools.compress(jax.tree.leaves(pull_back), dependent))


def _block_backward(
    params: Params,
    config: EncoderConfig,
    kept: Kept,
    mask: Array,
    keys: Array | None,
    cotangent: Array,
) -> tuple[Params, Array]:
    """Gradients by a block's parameters and input.

    The block is linearised once more at another input, for the arrays that depend on parameters,
    mask and keys alone; the kept ones replace the rest. The compiler therefore drops all of this
    second forward pass that depends on the input.
    """
    anywhere = jnp.zeros(cotangent.shape, cotangent.dtype)
    _, pull_back = _linearise(params, config, anywhere, mask, keys)
    dependent = _depends_on_input(params, config, anywhere, mask, keys)
    leaves, structure = jax.tree.flatten(pull_back)
    rest = iter(kept)
    leaves = [next(rest) if d else leaf for leaf, d in zip(leaves, dependent, strict=True)]
    return jax.tree.unflatten(structure, leaves)(cotangent)


def _linearise(
    params: Params, config: EncoderConfig, x: Array, mask: Array, keys: Array | None
) -> tuple[Array, Any]:
    """A block's output and its ``jax.vjp``, a pytree whose leaves are the arrays it keeps."""

    def run(params: Params, x: Array) -> Array:
        return encoder_block(params, config, x, mask, keys)

    return jax.vjp(jax.checkpoint(run, prevent_cse=False, policy=_policy(config)), params, x)


def _policy(config: EncoderConfig) -> Callable[..., bool]:
    """The operations whose outputs a block keeps, as ``jax.checkpoint`` takes them."""
    if config.rematerialise:
        return jax.checkpoint_policies.nothing_saveable
    narrow = narrow_dtype(config)

    def keeps(primitive: Any, *_: Any, **settings: Any) -> bool:
        if narrow is not None and primitive in (lax.dot_general_p, lax.convert_element_type_p):
            return settings.get("new_dtype") == narrow  # the product in 16 bits, not in 32
        return primitive in (lax.dot_general_p, lax.exp_p, lax.tanh_p)

    linear_maps = jax.checkpoint_policies.save_only_these_names(LINEAR_OUTPUT)
    return jax.checkpoint_policies.save_from_both_policies(linear_maps, keeps)


def _depends_on_input(
    params: Params, config: EncoderConfig, x: Array, mask: Array, keys: Array | None
) -> list[bool]:
    """For each leaf of a linearised block, whether it depends on the block's input.

    Under a ``jax.vmap`` over the input alone, exactly these leaves are batched.
    """
    found: list[bool] = []

    @custom_vmap
    def probe(leaves: list[Array]) -> list[Array]:
        return leaves

    @probe.def_vmap
    def _(size: int, batched: list[list[bool]], leaves: list[Array]) -> tuple:
        del size
        found.extend(batched[0])
        return leaves, batched[0]

    def leaves(x: Array) -> list[Array]:
        return probe(jax.tree.leaves(_linearise(params, config, x, mask, keys)[1]))

    jax.eval_shape(jax.vmap(leaves), x[None])
    return found
