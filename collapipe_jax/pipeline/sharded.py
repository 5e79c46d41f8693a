"""The pipeline on a device per stage: ``jax.shard_map`` over clusters by stages, as GPipe.

Every device holds its own segment's slots and runs those blocks only; activations and
gradients hop to the next stage by ``ppermute``. The forward flow ends before the backward flow
starts, so a device keeps all ``M`` micro-batches (docs/system-model.md (15)).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.models.layers import Params, narrow_dtype, narrowed
from collapipe_jax.pipeline.mesh import CLUSTER, STAGE, check_mesh
from collapipe_jax.pipeline.micro_batches import (
    MicroBatches,
    check_micro_batches,
    cut,
    cut_mask_and_keys,
)
from collapipe_jax.pipeline.passes import Kept, Segment, empty_kept, run_backward, run_forward
from collapipe_jax.pipeline.slots import check_partition, holds

ON_CLUSTER, ON_DEVICE = PartitionSpec(CLUSTER), PartitionSpec(CLUSTER, STAGE)

# Where mask, example numbers, segments and dropout key lie.
REST = (ON_CLUSTER, ON_CLUSTER, ON_CLUSTER, PartitionSpec())


def forward_clusters(
    slots: Params,
    config: EncoderConfig,
    x: Array,
    mask: Array,
    segments: Array,
    dropout_key: Array | None = None,
    example_ids: Array | None = None,
    *,
    micro_batches: int = 1,
    mesh: Mesh | None = None,
    bubble: float = 0.0,
) -> Array:
    """The outputs of all clusters' encoders, each on its own row of a mesh; differentiable.

    Args:
      slots: every leaf ``[N, K, capacity, ...]``, from ``gather_clusters``.
      config: with ``rematerialise`` a block keeps its input alone.
      x: embedded tokens ``[N, B, S, h]``.
      mask: ``[N, B, S]``.
      segments: ``[N, K]``.
      dropout_key: shared by the clusters.
      example_ids: ``[N, B]``.
      micro_batches, mesh, bubble: as in ``pipeline``.

    Returns:
      Activations ``[N, B, S, h]`` of x's type; NaN for a cluster whose partition does not fit.

    Raises:
      InputError: on a partition, micro-batches or a mesh that do not fit.
    """
    capacity = jax.tree.leaves(slots)[0].shape[2]
    check_partition(segments, config.encoder_blocks, capacity)
    check_micro_batches(x.shape[1], micro_batches)
    check_mesh(mesh, *segments.shape)
    ids = jnp.arange(x.shape[1]) if example_ids is None else example_ids
    rest = mask, jnp.broadcast_to(ids, x.shape[:2]), segments, dropout_key
    static = config, mesh, micro_batches, bubble
    y = _pipeline(static, slots, narrowed(x, narrow_dtype(config)), rest).astype(x.dtype)
    fits = holds(segments, config.encoder_blocks, capacity)
    return jnp.where(fits[:, None, None, None], y, jnp.nan)


def _pipeline_value(static: tuple, slots: Params, x: Array, rest: tuple) -> Array:
    """The forward flow, which keeps nothing."""
    return _flow_forward(static, False, slots, x, rest)[0]


def _pipeline_forward(static: tuple, slots: Params, x: Array, rest: tuple) -> tuple[Array, tuple]:
    y, kept = _flow_forward(static, True, slots, x, rest)
    return y, (slots, rest, kept)


def _pipeline_backward(static: tuple, residual: tuple, cotangent: Array) -> tuple:
    slots, rest, kept = residual
    return *_flow_backward(static, slots, rest, kept, cotangent), None


_pipeline = jax.custom_vjp(_pipeline_value, nondiff_argnums=(0,))
_pipeline.defvjp(_pipeline_forward, _pipeline_backward)


def _flow_forward(
    static: tuple, keeps: bool, slots: Params, x: Array, rest: tuple
) -> tuple[Array, Kept]:
    """Activations from the first stage to the last, with the kept arrays if asked for."""
    config, mesh, count, bubble = static

    def on_device(slots: Params, x: Array, rest: tuple) -> tuple[Array, Kept]:
        segment, micro = own_part(slots, rest, count)
        inputs = cut(x[0], count)
        kept = []
        if keeps:
            kept = empty_kept(segment.slots, config, inputs[0], micro.at(0), count, bubble)

        def run(x: Array, number: Array, busy: Array, kept: Kept) -> tuple[Array, Kept]:
            return run_forward(segment, config, x, micro.at(number), kept, number, busy)

        outputs, kept = _flow(run, inputs, kept, 1, bubble)
        return outputs.reshape(x.shape), jax.tree.map(lambda leaf: leaf[None, None], kept)

    specs = (ON_DEVICE, ON_CLUSTER, REST)
    return shard(on_device, mesh, specs, (ON_CLUSTER, ON_DEVICE))(slots, x, rest)


def _flow_backward(
    static: tuple, slots: Params, rest: tuple, kept: Kept, cotangent: Array
) -> tuple[Params, Array]:
    """Gradients from the last stage to the first."""
    config, mesh, count, bubble = static

    def on_device(slots: Params, rest: tuple, kept: Kept, cotangent: Array) -> tuple[Params, Array]:
        segment, micro = own_part(slots, rest, count)
        kept = [rows[0, 0] for rows in kept]

        def run(x: Array, number: Array, busy: Array, sums: Params) -> tuple[Array, Params]:
            return run_backward(segment, config, x, micro.at(number), kept, number, busy, sums)

        zeros = jax.tree.map(jnp.zeros_like, segment.slots)
        outputs, gradients = _flow(run, cut(cotangent[0], count), zeros, -1, bubble)
        gradients = jax.tree.map(lambda leaf: leaf[None, None], gradients)
        return gradients, outputs.reshape(cotangent.shape)

    specs = (ON_DEVICE, REST, ON_DEVICE, ON_CLUSTER)
    return shard(on_device, mesh, specs, (ON_DEVICE, ON_CLUSTER))(slots, rest, kept, cotangent)


def _flow(
    run: Callable[..., tuple[Array, Any]], inputs: Array, state: Any, direction: int, bubble: float
) -> tuple[Array, Any]:
    """Inside ``shard``: micro-batches through all stages, one hop a tick.

    Args:
      run: function of activations ``[b, S, h]``, the number of the micro-batch, whether there is
        one, and the stage's state; it returns activations and state.
      inputs: of the stage that begins, ``[M, b, S, h]``.
      state: of the stage before its first micro-batch.
      direction: 1 from the first stage to the last, -1 from the last to the first.
      bubble: as in ``pipeline``.

    Returns:
      Outputs of the stage that ends, on all stages, and the stage's state.
    """
    stages, stage = jax.lax.axis_size(STAGE), jax.lax.axis_index(STAGE)
    behind, end = (stage, stages - 1) if direction == 1 else (stages - 1 - stage, 0)
    count, blank = inputs.shape[0], jnp.full_like(inputs[0], bubble)

    def tick(carry: tuple, time: Array) -> tuple[tuple, None]:
        arrived, outputs, state = carry
        number, busy = _turn(time - behind, count)
        y, state = run(jnp.where(behind == 0, inputs[number], arrived), number, busy, state)
        outputs = outputs.at[number].set(jnp.where(busy, y, outputs[number]))
        return (hop(jnp.where(busy, y, blank), direction), outputs, state), None

    start = blank, jnp.full_like(inputs, bubble), state
    (_, outputs, state), _ = jax.lax.scan(tick, start, jnp.arange(count + stages - 1))
    return from_stage(end, outputs), state


def shard(function: Any, mesh: Mesh, in_specs: Any, out_specs: Any) -> Any:
    """``jax.shard_map`` without its checks; its result is not differentiable."""
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def own_part(slots: Params, rest: tuple, count: int) -> tuple[Segment, MicroBatches]:
    """Inside ``shard``: the segment of a device, and its cluster's micro-batches.

    Args:
      slots: of the device, every leaf ``[1, 1, capacity, ...]``.
      rest: its cluster's mask ``[1, B, S]``, example numbers ``[1, B]``, segments ``[1, K]`` and
        the dropout key.
      count: ``M`` (static).
    """
    mask, ids, segments, dropout_key = rest
    sizes, stage = segments[0], jax.lax.axis_index(STAGE)
    own = jax.tree.map(lambda leaf: leaf[0, 0], slots)
    size = jnp.minimum(sizes[stage], jax.tree.leaves(own)[0].shape[0])
    segment = Segment(own, (jnp.cumsum(sizes) - sizes)[stage], size)
    return segment, cut_mask_and_keys(mask[0], dropout_key, ids[0], count)


def hop(message: Any, direction: int) -> Any:
    """Inside ``shard``: pass a message to the next stage (1) or the one before (-1), in a ring."""
    stages = jax.lax.axis_size(STAGE)
    ring = [(stage, (stage + direction) % stages) for stage in range(stages)]
    return jax.lax.ppermute(message, STAGE, ring)


def from_stage(stage: int, value: Any) -> Any:
    """Inside ``shard``: the value of one stage (static), on all stages of its cluster."""
    mine = jax.lax.axis_index(STAGE) == stage
    only = jax.tree.map(lambda leaf: jnp.where(mine, leaf, jnp.zeros_like(leaf)), value)
    return jax.lax.psum(only, STAGE)


def _turn(number: Array, count: int) -> tuple[Array, Array]:
    """Micro-batch of a tick as a valid index, and whether there is one."""
    return jnp.clip(number, 0, count - 1), (number >= 0) & (number < count)
