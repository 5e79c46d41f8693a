"""The devices of a pipeline, on one host or several: mesh, messages, and slots of blocks."""

import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, PartitionSpec

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.layers import Params

CLUSTER, STAGE = "cluster", "stage"
EVERYWHERE, ON_CLUSTER = PartitionSpec(), PartitionSpec(CLUSTER)
ON_DEVICE = PartitionSpec(CLUSTER, STAGE)


def make_pipeline_mesh(clusters: int, stages: int) -> Mesh:
    """A mesh ``[rows, columns]`` with axes ``cluster`` and ``stage`` for N clusters of K stages.

    One host takes the largest mesh that its devices fill, with rows that divide N and columns
    that divide K; of equal ones that with more rows, which has fewer bubbles. Clusters then share
    a row, and consecutive stages a device. Several hosts need all ``N K`` devices.

    ``jax.devices()`` has one order on all hosts, so the same call builds the same mesh on each.
    The stage axis runs fastest: neighbours in a pipeline are neighbours on a host.

    Raises:
      InputError: on sizes below 1, or on several hosts with fewer devices than ``N K``.
    """
    shape, devices = (clusters, stages), jax.devices()
    if min(shape) < 1:
        raise InputError("mesh", shape, "has no stage", "Give sizes from 1 on")
    if jax.process_count() == 1:
        shape = largest_shape(clusters, stages, len(devices))
    count = math.prod(shape)
    if count > len(devices):
        problem = f"does not fit the {len(devices)} devices of {jax.process_count()} hosts"
        remedy = "Give each host more devices, or take one host, where stages share a device"
        raise InputError("mesh", shape, problem, remedy)
    return jax.make_mesh(
        shape, (CLUSTER, STAGE), axis_types=(AxisType.Auto,) * 2, devices=devices[:count]
    )


def largest_shape(clusters: int, stages: int, devices: int) -> tuple[int, int]:
    """Rows and columns of the largest mesh that the devices of one host fill."""
    rows = [count for count in range(1, clusters + 1) if clusters % count == 0]
    columns = [count for count in range(1, stages + 1) if stages % count == 0]
    shapes = [shape for shape in itertools.product(rows, columns) if math.prod(shape) <= devices]
    return max(shapes, key=lambda shape: (math.prod(shape), shape))


def shard(function: Any, shape: tuple[int, ...], in_specs: Any, out_specs: Any) -> Any:
    """A function of one stage of one cluster, run by ``jax.shard_map`` on the mesh of a pipeline.

    Clusters that share a row of the mesh run one after the other. There are no checks of
    ``jax.shard_map``, and the result is not differentiable.

    Args:
      function: its arguments and results have no axes of clusters and stages.
      shape: ``N`` and the columns of the mesh.
      in_specs: of every argument: ``ON_DEVICE`` with axes ``[N, columns]``, ``ON_CLUSTER`` with
        ``[N]``, or ``EVERYWHERE``.
      out_specs: of the results, ``ON_DEVICE`` or ``ON_CLUSTER``.

    Raises:
      InputError: if the mesh has fewer columns.
    """
    mesh = make_pipeline_mesh(*shape)
    if mesh.shape[STAGE] != shape[1]:
        problem = f"has more stages than the mesh of {len(jax.devices())} devices has columns"
        raise InputError("mesh", shape, problem, "Fold the segments first (slots.fold_stages)")

    # One stage of one cluster sees no axes of either.
    def pick(spec: PartitionSpec, tree: Any, cluster: Array) -> Any:
        if spec == EVERYWHERE:
            return tree
        place = (cluster, 0) if spec == ON_DEVICE else cluster
        return jax.tree.map(lambda leaf: leaf[place], tree)

    def put(spec: PartitionSpec, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[None], tree) if spec == ON_DEVICE else tree

    def run_cluster(arguments: tuple, cluster: Array) -> Any:
        own = jax.tree.map(partial(pick, cluster=cluster), in_specs, arguments)
        return jax.tree.map(put, out_specs, function(*own))

    def on_device(*arguments: Any) -> Any:
        clusters = jnp.arange(shape[0] // mesh.shape[CLUSTER])
        return jax.lax.map(partial(run_cluster, arguments), clusters)

    return jax.shard_map(
        on_device, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


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


# The work of a mini-batch cut up: blocks in slots of devices, examples in micro-batches.


def segment_layout(segments: Array, capacity: int) -> tuple[Array, Array]:
    """Blocks of each device, in a shape that does not depend on the partition.

    Devices take consecutive blocks in index order. Source: docs/system-model.md, section 5.

    Returns:
      ``(block_ids, mask)``, both ``[K, capacity]``: numbers of the blocks, and True where a slot
      holds one. Empty slots have number 0; blocks beyond the capacity are left out.
    """
    slots = jnp.arange(capacity)[None, :]
    starts = (jnp.cumsum(segments) - segments)[:, None]
    mask = slots < segments[:, None]
    return jnp.where(mask, starts + slots, 0), mask


def gather_slots(
    encoder_params: Params, segments: Array, capacity: int, *, shared: bool = False
) -> Params:
    """Slots ``[N, K, capacity, ...]`` of stacks ``[N, L, ...]``; empty ones repeat block 0.

    A stack ``[L, ...]`` may be ``shared`` by all clusters. The transpose is a scatter, so
    gradients by the slots flow back into the stacks.
    """

    def gather(stack: Params, sizes: Array) -> Params:
        block_ids, _ = segment_layout(sizes, capacity)
        return jax.tree.map(lambda leaf: leaf[block_ids], stack)

    return jax.vmap(gather, in_axes=(None if shared else 0, 0))(encoder_params, segments)


def holds(segments: Array | np.ndarray, blocks: int, capacity: int) -> Array | np.ndarray:
    """Whether the devices can run a partition, ``[...]`` bool.

    No device holds more than the capacity, and the sizes ``[..., K]`` sum to L or 0.
    """
    total = segments.sum(-1)
    sizes_fit = ((segments >= 0) & (segments <= capacity)).all(-1)
    return sizes_fit & ((total == blocks) | (total == 0))


def fold_stages(segments: Array, blocks: int, capacity: int, stages: int) -> tuple[Array, int]:
    """Consecutive devices as one stage each.

    Args:
      segments: ``[N, K]``.
      blocks: ``L``.
      capacity: most blocks of one of the devices.
      stages: a divisor of ``K`` (static).

    Returns:
      Blocks of the stages ``[N, stages]``, -1 throughout where the devices do not hold them, and
      the most blocks of a stage.
    """
    clusters, devices = segments.shape
    folded = segments.reshape(clusters, stages, devices // stages).sum(-1)
    fits = jnp.asarray(holds(segments, blocks, capacity))[:, None]
    return jnp.where(fits, folded, -1), min(capacity * (devices // stages), blocks)


def check_partition(segments: Array, blocks: int, capacity: int) -> None:
    """Refuse a partition that the devices cannot run, where its values are known.

    Under ``jax.jit`` the sizes are tracers and nothing is checked; the result of a partition that
    does not fit (see ``holds``) is NaN.

    Raises:
      InputError: on sizes below 0, above the capacity, or of another sum than L.
    """
    if isinstance(segments, Tracer):
        return
    sizes = np.asarray(segments)
    if not (sizes <= capacity).all():
        problem = f"exceeds the capacity of {capacity} blocks a device"
        remedy = "Give devices fewer blocks or raise the capacity"
        raise InputError("segments", sizes.tolist(), problem, remedy)
    if not holds(sizes, blocks, capacity).all():
        problem = f"is no partition of {blocks} blocks"
        remedy = "Give sizes from 0 on that sum to the encoder's blocks, or to 0 for no part"
        raise InputError("segments", sizes.tolist(), problem, remedy)


def cut(tree: Any, count: int) -> Any:
    """Leaves ``[B, ...]`` to ``[count, B / count, ...]``, examples in order."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), tree
    )


def check_micro_batches(batch: int, count: int) -> None:
    """Refuse, by an ``InputError``, a number of micro-batches that does not divide B."""
    if count < 1 or batch % count:
        problem = f"does not divide the {batch} examples of a mini-batch"
        raise InputError("micro_batches", count, problem, "Choose a divisor of training.batch")
