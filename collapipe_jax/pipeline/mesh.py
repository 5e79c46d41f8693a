"""The devices of a pipeline, on one host or several: their mesh, and messages between them."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec

from collapipe_jax.errors import InputError

CLUSTER, STAGE = "cluster", "stage"
ON_CLUSTER, ON_DEVICE = PartitionSpec(CLUSTER), PartitionSpec(CLUSTER, STAGE)


def make_pipeline_mesh(clusters: int, stages: int) -> Mesh:
    """A mesh ``[N, K]`` with axes ``cluster`` and ``stage`` on the first devices of all hosts.

    ``jax.devices()`` has one order on all hosts, so the same call builds the same mesh on each.
    The stage axis runs fastest: neighbours in a pipeline are neighbours on a host.

    Raises:
      InputError: if there are fewer devices than the mesh needs.
    """
    shape, devices = (clusters, stages), jax.devices()
    count = math.prod(shape)
    if min(shape) < 1 or count > len(devices):
        problem = f"does not fit the {len(devices)} devices there are"
        remedy = "Give sizes from 1 on whose product is at most that"
        raise InputError("mesh", shape, problem, remedy)
    return jax.make_mesh(
        shape, (CLUSTER, STAGE), axis_types=(AxisType.Auto,) * 2, devices=devices[:count]
    )


def shard(function: Any, shape: tuple[int, ...], in_specs: Any, out_specs: Any) -> Any:
    """``jax.shard_map`` over clusters by stages without its checks; not differentiable."""
    mesh = make_pipeline_mesh(*shape)
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
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
