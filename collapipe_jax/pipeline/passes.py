"""Forward and backward pass of one stage, with what is kept between them as plain arrays.

A schedule decides when a stage runs which pass, and so how many micro-batches are kept
at a time. Hence the two passes are functions of their own here instead of one that
``jax.grad`` would turn around as a whole.

A block keeps its input, the outputs of its matrix products, and the exponentials and
hyperbolic tangents in its softmax and activation function; norms, masks of dropout and
products with them are computed again. With ``rematerialise`` it keeps its input alone.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.models.encoder import encoder_block
from collapipe_jax.models.layers import Params, layer_keys, narrow_dtype
from collapipe_jax.pipeline.micro_batches import MicroBatches

Kept = list[jax.Array]


class Segment(NamedTuple):
    """What one device holds.

    Attributes:
      slots: parameters, every leaf ``[capacity, ...]``.
      first: number of its first block in the encoder, ``[]``.
      size: blocks it holds, ``[]``, at most the capacity.
    """

    slots: Params
    first: jax.Array
    size: jax.Array


def run_forward(
    segment: Segment,
    config: EncoderConfig,
    x: jax.Array,
    micro: MicroBatches,
    kept: Kept,
    row: jax.Array,
    busy: jax.Array,
) -> tuple[jax.Array, Kept]:
    """The stage's blocks on one micro-batch; an idle stage takes a loop of no turns.

    Args:
      segment: what the device holds.
      config: sizes.
      x: activations ``[b, S, h]`` in the type that they have between layers.
      micro: mask and keys of the micro-batch.
      kept: buffers ``[rows, capacity, ...]`` from ``empty_kept``, or none to keep nothing.
      row: where in them this micro-batch goes.
      busy: scalar bool; where False nothing is computed or written.

    Returns:
      Activations ``[b, S, h]`` and the buffers.
    """

    def run_block(slot: jax.Array, carry: tuple[jax.Array, Kept]) -> tuple[jax.Array, Kept]:
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
    cotangent: jax.Array,
    micro: MicroBatches,
    kept: Kept,
    row: jax.Array,
    busy: jax.Array,
    gradients: Params,
) -> tuple[jax.Array, Params]:
    """The stage's blocks backward on one micro-batch, last block first.

    Args:
      segment: what the device holds.
      config: sizes.
      cotangent: gradient by the stage's output ``[b, S, h]``.
      micro: mask and keys of the micro-batch.
      kept: buffers that ``run_forward`` wrote.
      row: where in them this micro-batch stands.
      busy: scalar bool; where False nothing is computed.
      gradients: sums so far, every leaf ``[capacity, ...]``.

    Returns:
      The gradient by the stage's input ``[b, S, h]``, and the sums with this micro-batch.
    """

    def run_block(turn: jax.Array, carry: tuple[jax.Array, Params]) -> tuple[jax.Array, Params]:
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
    slots: Params, config: EncoderConfig, x: jax.Array, micro: MicroBatches, rows: int, fill: float
) -> Kept:
    """Buffers for what the blocks of a stage keep of ``rows`` micro-batches.

    Args:
      slots: every leaf ``[capacity, ...]``.
      config: sizes.
      x: one micro-batch ``[b, S, h]``; its values do not matter.
      micro: its mask and keys.
      rows: most micro-batches kept at a time.
      fill: what stands in a row before it is written; never read.

    Returns:
      One buffer ``[rows, capacity, ...]`` per array that a block keeps.
    """
    capacity = jax.tree.leaves(slots)[0].shape[0]
    keys = layer_keys(micro.keys, 0)
    _, kept = jax.eval_shape(
        lambda params: _block_forward(params, config, x, micro.mask, keys), _take(slots, 0)
    )
    return [jnp.full((rows, capacity, *leaf.shape), fill, leaf.dtype) for leaf in kept]


def _take(slots: Params, slot: jax.Array | int) -> Params:
    return jax.tree.map(lambda leaf: leaf[slot], slots)


def _block_forward(
    params: Params, config: EncoderConfig, x: jax.Array, mask: jax.Array, keys: jax.Array | None
) -> tuple[jax.Array, Kept]:
    """A block's output and what it keeps: all that its backward pass needs of ``x``."""
    y, pull_back = _linearised(params, config, x, mask, keys)
    leaves = jax.tree.leaves(pull_back)
    return y, [leaves[i] for i in _places_of_kept(params, config, x, mask, keys)]


def _block_backward(
    params: Params,
    config: EncoderConfig,
    kept: Kept,
    mask: jax.Array,
    keys: jax.Array | None,
    cotangent: jax.Array,
) -> tuple[Params, jax.Array]:
    """Gradients by a block's parameters and input.

    The block is linearised once more at an input that does not matter, for what depends
    on parameters, mask and keys alone; the rest is replaced by what was kept. Of this
    second forward pass the compiler therefore drops all that depends on the input.
    """
    anywhere = jnp.zeros(cotangent.shape, cotangent.dtype)
    _, pull_back = _linearised(params, config, anywhere, mask, keys)
    leaves, structure = jax.tree.flatten(pull_back)
    places = _places_of_kept(params, config, anywhere, mask, keys)
    for place, leaf in zip(places, kept, strict=True):
        leaves[place] = leaf
    return jax.tree.unflatten(structure, leaves)(cotangent)


def _linearised(
    params: Params, config: EncoderConfig, x: jax.Array, mask: jax.Array, keys: jax.Array | None
) -> tuple[jax.Array, Any]:
    """``jax.vjp`` of a block; the leaves of the second are what it would keep."""

    def keeps(primitive: Any, *_: Any, **settings: Any) -> bool:
        """Whether the output of an operation is kept, for ``jax.checkpoint``."""
        if config.rematerialise:
            return False
        narrow = narrow_dtype(config)
        if narrow is not None and primitive.name in ("dot_general", "convert_element_type"):
            return settings.get("new_dtype") == narrow  # the product in 16 bits, not in 32
        # The linear maps are products with a gradient rule of their own.
        return primitive.name in ("custom_vjp_call", "dot_general", "exp", "tanh")

    def run(params: Params, x: jax.Array) -> jax.Array:
        return encoder_block(params, config, x, mask, keys)

    return jax.vjp(jax.checkpoint(run, prevent_cse=False, policy=keeps), params, x)


def _places_of_kept(
    params: Params, config: EncoderConfig, x: jax.Array, mask: jax.Array, keys: jax.Array | None
) -> list[int]:
    """Which leaves of a linearised block depend on its input, and each array once."""

    def leaves(x: jax.Array, rest: Any) -> list[jax.Array]:
        params, mask, keys = rest
        return jax.tree.leaves(_linearised(params, config, x, mask, keys)[1])

    program = jax.make_jaxpr(leaves)(x, (params, mask, keys)).jaxpr
    dependent = {program.invars[0]}
    for equation in program.eqns:
        arrays = [value for value in equation.invars if not isinstance(value, Literal)]
        if dependent.intersection(arrays):
            dependent.update(equation.outvars)
    outputs = program.outvars
    return [
        i
        for i, value in enumerate(outputs)
        if not isinstance(value, Literal) and value in dependent
    ]
