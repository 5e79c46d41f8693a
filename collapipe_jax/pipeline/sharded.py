"""The pipeline on real devices: ``jax.shard_map`` over a mesh of clusters by stages, as GPipe.

Every device holds its own segment's slots and runs those blocks only; activations and
gradients hop to the next stage by ``ppermute``. The forward flow is flushed before the
backward flow starts, so a device keeps all ``M`` micro-batches (docs/system-model.md (15)).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.models.layers import Params, narrow_dtype, narrowed
from collapipe_jax.pipeline.mesh import CLUSTER, STAGE
from collapipe_jax.pipeline.micro_batches import MicroBatches, cut, cut_mask_and_keys
from collapipe_jax.pipeline.passes import Kept, Segment, empty_kept, run_backward, run_forward

ON_CLUSTER, ON_DEVICE = PartitionSpec(CLUSTER), PartitionSpec(CLUSTER, STAGE)

# Where mask, example numbers, segments and dropout key lie.
REST = (ON_CLUSTER, ON_CLUSTER, ON_CLUSTER, PartitionSpec())


def forward_sharded(
    slots: Params,
    config: EncoderConfig,
    x: jax.Array,
    mask: jax.Array,
    segments: jax.Array,
    dropout_key: jax.Array | None = None,
    example_ids: jax.Array | None = None,
    *,
    mesh: Mesh,
    micro_batches: int = 1,
    bubble: float = 0.0,
) -> jax.Array:
    """The encoders of all clusters as pipelines on the devices of a mesh, differentiable.

    Args:
      slots: each cluster's parameters, every leaf ``[N, K, capacity, ...]``, one device's
        part on each device of the mesh.
      config: sizes; with ``rematerialise`` a block keeps its input alone.
      x: embedded tokens ``[N, B, S, h]``.
      mask: ``[N, B, S]``, True on real tokens.
      segments: blocks per device ``[N, K]``, zeros included, at most the capacity.
      dropout_key: scalar key, or None for a deterministic pass.
      example_ids: ``[N, B]`` numbers of the examples; ``0 .. B - 1`` in each cluster when None.
      mesh: from ``make_pipeline_mesh(N, K)``.
      micro_batches: ``M``, a divisor of B (static).
      bubble: what hops and buffers hold while they hold no micro-batch; changes nothing.

    Returns:
      Activations ``[N, B, S, h]`` of x's type, the same on all stages.
    """
    ids = jnp.arange(x.shape[1]) if example_ids is None else example_ids
    rest = mask, jnp.broadcast_to(ids, x.shape[:2]), segments, dropout_key
    inputs = narrowed(x, narrow_dtype(config))
    static = config, mesh, micro_batches, bubble
    return _pipeline(static, slots, inputs, rest).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _pipeline(static: tuple, slots: Params, x: jax.Array, rest: tuple) -> jax.Array:
    """Forward flow alone, which keeps nothing."""
    return _flow_forward(static, False, slots, x, rest)[0]


def _pipeline_forward(
    static: tuple, slots: Params, x: jax.Array, rest: tuple
) -> tuple[jax.Array, tuple]:
    y, kept = _flow_forward(static, True, slots, x, rest)
    return y, (slots, rest, kept)


def _pipeline_backward(static: tuple, kept: tuple, cotangent: jax.Array) -> tuple:
    slots, rest, kept = kept
    return *_flow_backward(static, slots, rest, kept, cotangent), None


_pipeline.defvjp(_pipeline_forward, _pipeline_backward)


def _flow_forward(
    static: tuple, keeps: bool, slots: Params, x: jax.Array, rest: tuple
) -> tuple[jax.Array, Kept]:
    """Micro-batches from the first stage to the last, one hop a tick."""
    config, mesh, count, bubble = static

    def on_device(slots: Params, x: jax.Array, rest: tuple) -> tuple[jax.Array, Kept]:
        segment, micro = own_part(slots, rest, count)
        stage, inputs = jax.lax.axis_index(STAGE), cut(x[0], count)
        stages = jax.lax.axis_size(STAGE)
        blank = jnp.full_like(inputs[0], bubble)
        kept = (
            empty_kept(segment.slots, config, inputs[0], micro.at(0), count, bubble)
            if keeps
            else []
        )

        def tick(carry: tuple, time: jax.Array) -> tuple[tuple, None]:
            arrived, outputs, kept = carry
            number, busy = _turn(time - stage, count)
            start = jnp.where(stage == 0, inputs[number], arrived)
            y, kept = run_forward(segment, config, start, micro.at(number), kept, number, busy)
            outputs = outputs.at[number].set(jnp.where(busy, y, outputs[number]))
            return (hop(jnp.where(busy, y, blank), 1), outputs, kept), None

        start = blank, jnp.full_like(inputs, bubble), kept
        (_, outputs, kept), _ = jax.lax.scan(tick, start, jnp.arange(count + stages - 1))
        y = from_stage(stages - 1, outputs).reshape(x.shape)
        return y, jax.tree.map(lambda leaf: leaf[None, None], kept)

    return shard(on_device, mesh, (ON_DEVICE, ON_CLUSTER, REST), (ON_CLUSTER, ON_DEVICE))(
        slots, x, rest
    )


def _flow_backward(
    static: tuple, slots: Params, rest: tuple, kept: Kept, cotangent: jax.Array
) -> tuple[Params, jax.Array]:
    """Gradients from the last stage to the first, one hop a tick."""
    config, mesh, count, bubble = static

    def on_device(
        slots: Params, rest: tuple, kept: Kept, cotangent: jax.Array
    ) -> tuple[Params, jax.Array]:
        segment, micro = own_part(slots, rest, count)
        kept = [rows[0, 0] for rows in kept]
        stages, arriving = jax.lax.axis_size(STAGE), cut(cotangent[0], count)
        behind = stages - 1 - jax.lax.axis_index(STAGE)
        blank = jnp.full_like(arriving[0], bubble)

        def tick(carry: tuple, time: jax.Array) -> tuple[tuple, None]:
            arrived, outputs, gradients = carry
            number, busy = _turn(time - behind, count)
            start = jnp.where(behind == 0, arriving[number], arrived)
            back, gradients = run_backward(
                segment, config, start, micro.at(number), kept, number, busy, gradients
            )
            outputs = outputs.at[number].set(jnp.where(busy, back, outputs[number]))
            return (hop(jnp.where(busy, back, blank), -1), outputs, gradients), None

        zeros = jax.tree.map(jnp.zeros_like, segment.slots)
        start = blank, jnp.full_like(arriving, bubble), zeros
        (_, outputs, gradients), _ = jax.lax.scan(tick, start, jnp.arange(count + stages - 1))
        gradients = jax.tree.map(lambda leaf: leaf[None, None], gradients)
        return gradients, from_stage(0, outputs).reshape(cotangent.shape)

    specs = (ON_DEVICE, REST, ON_DEVICE, ON_CLUSTER)
    return shard(on_device, mesh, specs, (ON_DEVICE, ON_CLUSTER))(slots, rest, kept, cotangent)


def shard(function: Any, mesh: Mesh, in_specs: Any, out_specs: Any) -> Any:
    """A function of what one device holds as a function of the whole, not differentiable.

    Args:
      function: what every device of the mesh runs on its parts.
      mesh: from ``make_pipeline_mesh``.
      in_specs: partition specs of its arguments.
      out_specs: partition specs of its results.

    Returns:
      A function of whole arrays.
    """
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def own_part(slots: Params, rest: tuple, count: int) -> tuple[Segment, MicroBatches]:
    """Inside ``shard``: what a device runs, and on what.

    Args:
      slots: its parameters, every leaf ``[1, 1, capacity, ...]``.
      rest: its cluster's mask ``[1, B, S]``, example numbers ``[1, B]``, segments ``[1, K]`` and
        the dropout key.
      count: ``M`` (static).

    Returns:
      Its segment, and its cluster's micro-batches.
    """
    mask, ids, segments, dropout_key = rest
    sizes, stage = segments[0], jax.lax.axis_index(STAGE)
    own = jax.tree.map(lambda leaf: leaf[0, 0], slots)
    size = jnp.minimum(sizes[stage], jax.tree.leaves(own)[0].shape[0])
    segment = Segment(own, (jnp.cumsum(sizes) - sizes)[stage], size)
    return segment, cut_mask_and_keys(mask[0], dropout_key, ids[0], count)


def hop(message: Any, direction: int) -> Any:
    """Inside ``shard``: pass a message on to a neighbour, in a ring.

    Args:
      message: arrays of any shapes.
      direction: 1 to the next stage, -1 to the one before (static).

    Returns:
      What the neighbour on the other side passed on.
    """
    stages = jax.lax.axis_size(STAGE)
    ring = [(stage, (stage + direction) % stages) for stage in range(stages)]
    return jax.lax.ppermute(message, STAGE, ring)


def from_stage(stage: int, value: Any) -> Any:
    """Inside ``shard``: what one stage holds, given to all stages of its cluster.

    Args:
      stage: which (static).
      value: arrays of any shapes; what other stages hold does not matter.

    Returns:
      That stage's value, on every stage.
    """
    mine = jax.lax.axis_index(STAGE) == stage
    only = jax.tree.map(lambda leaf: jnp.where(mine, leaf, jnp.zeros_like(leaf)), value)
    return jax.lax.psum(only, STAGE)


def _turn(number: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The micro-batch of a tick as a valid index, and whether there is one."""
    return jnp.clip(number, 0, count - 1), (number >= 0) & (number < count)
