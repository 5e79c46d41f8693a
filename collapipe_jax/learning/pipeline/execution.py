"""Execution of the encoder: one scan, or a pipeline with the same values and gradients.

The gradient of a synchronous pipeline does not depend on the partition, so training
may use ``sequential``; ``vmapped`` and ``sharded`` run the partition as a pipeline, on one
device and on a mesh of them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.adapters import NO_BASE, join
from collapipe_jax.learning.models.block import encode, encoder_block
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import Params, layer_keys, narrowed, rematerialised
from collapipe_jax.learning.pipeline.mesh import (
    STAGE,
    check_micro_batches,
    check_partition,
    cut,
    fold_stages,
    gather_slots,
    holds,
    make_pipeline_mesh,
    segment_layout,
)
from collapipe_jax.learning.pipeline.sharded import forward_sharded

BACKENDS = ("sequential", "vmapped", "sharded")


class Execution(NamedTuple):
    """How the encoder is executed; it changes neither values nor gradients. Static."""

    # ``sequential``, one scan over the stack; ``vmapped``, all stages at once under ``jax.vmap``;
    # or ``sharded``, on a mesh of devices
    backend: str = "sequential"
    # Number of micro-batches of a pipeline, a divisor of ``B``; where it is decided, the most
    # that it may be
    micro_batches: int = 1
    capacity: int = 0  # most blocks of a device of a pipeline, for which it has room; 0: all
    # ``1f1b`` for gradients by ``schedules.one_f_one_b``; backends run ``gpipe``
    schedule: str = "gpipe"
    # Whether ``sharded`` runs the number of micro-batches that is decided for every cluster
    decided: bool = False


SEQUENTIAL = Execution()
"""One scan over the whole encoder: the fast way to the gradient of every partition."""


def encode_clusters(
    encoder_params: Params,
    config: EncoderConfig,
    x: Array,
    mask: Array,
    segments: Array | None = None,
    keys: Array | None = None,
    execution: Execution = SEQUENTIAL,
    micro_batches: Array | None = None,
    base: Params = NO_BASE["encoder"],
) -> Array:
    """The outputs of all clusters' encoders.

    Args:
      encoder_params: of the clusters' own, every leaf ``[N, L, ...]``.
      config: sizes.
      x: embedded tokens ``[N, B, S, h]``.
      mask: ``[N, B, S]``.
      segments: ``[N, K]``; ``sequential`` does not read them.
      keys: ``[N, B]``.
      execution: ``sharded`` runs on the mesh of ``mesh.make_pipeline_mesh``.
      micro_batches: ``M_n [N]``, divisors of that of the execution, which reads them where they
        are decided. Another number gives the same values at another time.
      base: the other parameters, which all clusters share, every leaf ``[L, ...]``. There is no
        gradient by them.

    Returns:
      Activations ``[N, B, S, h]`` of x's type. Under ``jax.jit`` a partition that does not fit
      gives NaN.

    Raises:
      InputError: on an unknown backend; for a pipeline, on a partition that is missing or
        does not fit, micro-batches that do not divide B, or too few devices of several hosts.
    """
    if execution.backend == "sequential":
        # One batched product for all clusters instead of a loop over them.
        run = jax.vmap(lambda own, *rest: encode(join(own, base), config, *rest))
        return run(encoder_params, x, mask, keys)
    slots, base_slots, stages = stage_slots(encoder_params, config, segments, execution, base)
    rest = x, mask, stages, keys, execution, micro_batches, base_slots
    return run_slots(slots, config, *rest)


def stage_slots(
    encoder_params: Params,
    config: EncoderConfig,
    segments: Array | None,
    execution: Execution,
    base: Params = NO_BASE["encoder"],
) -> tuple[Params, Params, Array]:
    """Slots of the stages that execute a partition, and the blocks of each.

    The arguments are those of ``encode_clusters``. A stage is a device of the network, or several
    that share one of the mesh.

    Returns:
      Leaves ``[N, stages, capacity, ...]`` of the clusters' own parameters, the same of the base,
      and ``[N, stages]``.

    Raises:
      InputError: on a partition that is missing or does not fit.
    """
    if segments is None:
        raise InputError("segments", None, "is missing", "Give the blocks of every device")
    blocks = config.encoder_blocks
    capacity = min(execution.capacity or blocks, blocks)
    check_partition(segments, blocks, capacity)
    if execution.backend == "sharded":
        columns = make_pipeline_mesh(*segments.shape).shape[STAGE]
        segments, capacity = fold_stages(segments, blocks, capacity, columns)
    own = gather_slots(encoder_params, segments, capacity)
    return own, gather_slots(base, segments, capacity, shared=True), segments


def run_slots(
    slots: Params,
    config: EncoderConfig,
    x: Array,
    mask: Array,
    segments: Array,
    keys: Array | None,
    execution: Execution,
    micro_batches: Array | None = None,
    base_slots: Params = NO_BASE["encoder"],
) -> Array:
    """``encode_clusters`` as a pipeline, from slots ``[N, K, capacity, ...]`` already gathered.

    ``sharded`` needs a mesh with a column for every stage.
    """
    fits = check_pipeline(slots, config, x, segments, execution.micro_batches)
    most = execution.micro_batches
    inputs = slots, base_slots, x, mask, segments, keys
    if execution.backend == "sharded":
        lag = None
        if execution.decided and micro_batches is not None:
            lag = -(-most // micro_batches)
        y = forward_sharded(config, most, *inputs, lag)
    elif execution.backend == "vmapped":
        y = jax.vmap(lambda *own: _forward_vmapped(config, most, *own))(*inputs)
    else:
        remedy = f"Choose one of {', '.join(BACKENDS[1:])}"
        raise InputError("pipeline.backend", execution.backend, "is no pipeline", remedy)
    return jnp.where(fits[:, None, None, None], y, jnp.nan)


def _forward_vmapped(
    config: EncoderConfig,
    micro_batches: int,
    slots: Params,
    base_slots: Params,
    x: Array,
    mask: Array,
    segments: Array,
    keys: Array | None,
) -> Array:
    """``run_slots`` for one cluster: all stages at once on one device, by ``jax.vmap``.

    In tick ``t`` stage ``k`` runs micro-batch ``t - k``; then all activations move by one stage. A
    stage without a micro-batch (a bubble) and a slot without a block compute like the others, and
    their results are not read.
    """
    slots = join(slots, base_slots)
    stages, capacity = jax.tree.leaves(slots)[0].shape[:2]
    inputs, masks, all_keys = cut((narrowed(x, config), mask, keys), micro_batches)  # [M, b, ...]
    block_ids, filled = segment_layout(segments, capacity)

    def run_stage(slots: Params, block_ids: Array, filled: Array, x: Array, number: Array) -> Array:
        mask, keys = jax.tree.map(lambda leaf: leaf[number], (masks, all_keys))

        def slot(x: Array, place: tuple[Params, Array, Array]) -> tuple[Array, None]:
            params, block_id, is_filled = place
            y = encoder_block(params, config, x, mask, layer_keys(keys, block_id))
            return jnp.where(is_filled, y, x), None

        return jax.lax.scan(rematerialised(slot, config), x, (slots, block_ids, filled))[0]

    def tick(hops: Array, time: Array) -> tuple[Array, Array]:
        numbers = time - jnp.arange(stages)
        busy = ((numbers >= 0) & (numbers < micro_batches))[:, None, None, None]
        numbers = jnp.clip(numbers, 0, micro_batches - 1)
        arrived = jnp.roll(hops, 1, axis=0).at[0].set(inputs[numbers[0]])
        # Idle stages get real activations: 0 times the gradient of a NaN would be NaN.
        x = jnp.where(busy, arrived, inputs[:1])
        hops = jnp.where(busy, jax.vmap(run_stage)(slots, block_ids, filled, x, numbers), jnp.nan)
        return hops, hops[-1]

    hops = jnp.full((stages, *inputs.shape[1:]), jnp.nan, inputs.dtype)
    _, left = jax.lax.scan(tick, hops, jnp.arange(micro_batches + stages - 1))
    return left[stages - 1 :].reshape(x.shape).astype(x.dtype)


def check_pipeline(
    slots: Params, config: EncoderConfig, x: Array, segments: Array, micro_batches: int
) -> Array:
    """Whether each cluster's partition fits, ``[N]`` bool; for use under ``jax.jit``.

    Raises:
      InputError: on micro-batches, or a partition of known values, that do not fit.
    """
    capacity = jax.tree.leaves(slots)[0].shape[2]
    check_partition(segments, config.encoder_blocks, capacity)
    check_micro_batches(x.shape[1], micro_batches)
    return jnp.asarray(holds(segments, config.encoder_blocks, capacity))
