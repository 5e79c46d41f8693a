"""The pipeline on a mesh of devices: ``jax.shard_map`` over clusters by stages, as GPipe.

Every device holds its own stage's slots and runs those blocks only; activations and
gradients hop to the next stage by ``ppermute``. The forward flow ends before the backward flow
starts, so a device keeps all ``M`` micro-batches (docs/system-model.md (15)).

A micro-batch is one granule or several, equal parts of a mini-batch that are computed at a time.
Granules have static shapes, so that ``M`` may be an array value.
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
from collapipe_jax.learning.models.layers import PRODUCT, Params, layer_keys, narrowed
from collapipe_jax.learning.pipeline.mesh import (
    CLUSTER,
    ON_CLUSTER,
    ON_DEVICE,
    STAGE,
    cut,
    from_stage,
    hop,
    shard,
)

# Forward and backward pass of one stage, with the kept arrays between them as plain arrays.
#
# A schedule decides when a stage runs which pass, and so how many micro-batches are kept at a
# time. Hence the two passes are functions of their own instead of one under ``jax.grad``.
#
# A block keeps its input, the outputs of its matrix products, and the exponentials and
# hyperbolic tangents in its softmax and activation function; norms, masks of dropout and
# products with them are computed again. With ``rematerialise`` it keeps its input alone.

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


def forward_sharded(
    config: EncoderConfig,
    granules: int,
    slots: Params,
    base_slots: Params,
    x: Array,
    mask: Array,
    segments: Array,
    keys: Array | None,
    lag: Array | None,
) -> Array:
    """The outputs of all clusters' encoders, each on a row of a mesh; differentiable.

    Args and result are those of ``execution.run_slots``, but for ``granules``, the static number
    of equal parts of a mini-batch, and ``lag``, those of a micro-batch ``[N]``; None is 1.
    """
    static, rest = (config, granules), (mask, segments, keys, lag)
    return _pipeline(static, slots, narrowed(x, config), base_slots, rest).astype(x.dtype)


def _pipeline_value(static: tuple, slots: Params, x: Array, base: Params, rest: tuple) -> Array:
    """The forward flow, which keeps nothing."""
    return _flow_forward(static, False, slots, x, base, rest)[0]


def _pipeline_forward(
    static: tuple, slots: Params, x: Array, base: Params, rest: tuple
) -> tuple[Array, tuple]:
    y, kept = _flow_forward(static, True, slots, x, base, rest)
    return y, (slots, base, rest, kept)


def _pipeline_backward(static: tuple, residual: tuple, cotangent: Array) -> tuple:
    """Gradients from the last stage to the first; the base has none."""
    slots, base, rest, kept = residual

    def on_stage(
        slots: Params, base: Params, rest: tuple, kept: Kept, cotangent: Array
    ) -> tuple[Params, Array]:
        stage = own_stage(static, slots, base, rest)

        def run(x: Array, number: Array, busy: Array, sums: Params) -> tuple[Array, Params]:
            return stage.backward(x, number, busy, kept, sums)

        sums = jax.tree.map(jnp.zeros_like, slots)
        outputs, gradients = _flow(run, cut(cotangent, static[1]), sums, -1, rest[3])
        return gradients, outputs.reshape(cotangent.shape)

    specs = ON_DEVICE, ON_DEVICE, ON_CLUSTER, ON_DEVICE, ON_CLUSTER
    run = shard(on_stage, rest[1].shape, specs, (ON_DEVICE, ON_CLUSTER))
    return *run(slots, base, rest, kept, cotangent), None, None


_pipeline = jax.custom_vjp(_pipeline_value, nondiff_argnums=(0,))
_pipeline.defvjp(_pipeline_forward, _pipeline_backward)


def _flow_forward(
    static: tuple, keeps: bool, slots: Params, x: Array, base: Params, rest: tuple
) -> tuple[Array, Kept]:
    """Activations from the first stage to the last, with the kept arrays if asked for."""

    def on_stage(slots: Params, base: Params, x: Array, rest: tuple) -> tuple[Array, Kept]:
        stage, inputs = own_stage(static, slots, base, rest), cut(x, static[1])
        kept = stage.empty_kept(inputs[0], len(inputs)) if keeps else []
        outputs, kept = _flow(stage.forward, inputs, kept, 1, rest[3])
        return outputs.reshape(x.shape), kept

    specs = ON_DEVICE, ON_DEVICE, ON_CLUSTER, ON_CLUSTER
    return shard(on_stage, rest[1].shape, specs, (ON_CLUSTER, ON_DEVICE))(slots, base, x, rest)


def own_stage(static: tuple[EncoderConfig, int], slots: Params, base: Params, rest: tuple) -> Stage:
    """Inside ``shard``: the stage of a device.

    Args:
      static: sizes, and number of granules.
      slots, base: parameters of the stage, every leaf ``[capacity, ...]``.
      rest: its cluster's mask ``[B, S]``, segments ``[K]`` and keys ``[B]`` or None, and more.
    """
    (config, count), index = static, jax.lax.axis_index(STAGE)
    mask, sizes, keys, *_ = rest
    size = jnp.minimum(sizes[index], len(jax.tree.leaves(slots)[0]))
    first = (jnp.cumsum(sizes) - sizes)[index]
    mask, keys = cut((mask, keys), count)
    return Stage(config, slots, first, size, mask, keys, base)


def _flow(
    run: Callable[..., tuple[Array, Any]],
    inputs: Array,
    state: Any,
    direction: int,
    lag: Array | None,
) -> tuple[Array, Any]:
    """Inside ``shard``: granules through all stages, one a turn with a hop after it.

    A stage starts ``lag`` turns after the one before, when that has run a whole micro-batch.
    What an idle turn carries is NaN and never read.

    Args:
      run: function of activations ``[b, S, h]``, the number of the granule, whether there is
        one, and the stage's state; it returns activations and state.
      inputs: of the stage that begins, ``[G, b, S, h]``.
      state: of the stage before its first granule.
      direction: 1 from the first stage to the last, -1 from the last to the first.
      lag: granules of a micro-batch ``[]``; None is 1.

    Returns:
      Outputs of the stage that ends, on all stages, and the stage's state.
    """
    stages, stage = jax.lax.axis_size(STAGE), jax.lax.axis_index(STAGE)
    behind, begin = (stage, 0) if direction == 1 else (stages - 1 - stage, stages - 1)
    # All devices run as many turns as the slowest of the clusters that run at a time.
    turns, most = (1, 1) if lag is None else (lag, jax.lax.pmax(lag, CLUSTER))
    count = len(inputs)

    def granule(turn: Array, behind: Array) -> tuple[Array, Array]:
        number = turn - behind * turns
        return jnp.clip(number, 0, count - 1), (number >= 0) & (number < count)

    def run_turn(turn: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        rows, state = carry
        number, busy = granule(turn, behind)
        y, state = run(rows[number], number, busy, state)
        came = hop(jnp.where(busy, y, jnp.nan), direction)
        # Outputs of the last stage come round to the first, which has run that granule.
        number, busy = granule(turn, (behind - 1) % stages)
        return rows.at[number].set(jnp.where(busy, came, rows[number])), state

    rows = jnp.where(behind == 0, inputs, jnp.nan)
    rows, state = jax.lax.fori_loop(0, count + (stages - 1) * most, run_turn, (rows, state))
    return from_stage(begin, rows), state
