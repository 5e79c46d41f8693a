"""Where arrays of training lie on several devices, by the names of their leading axes.

Copies of the model and their optimisers lie by cluster or client. Where there are more devices,
several share the examples of each (data parallelism) and the blocks of its copy. Stacked blocks
of the one global model lie on all devices (fully sharded data parallelism); the rest is on every
device. On the mesh of a pipeline the copies' blocks lie by stage as well, and so do the examples
of a cluster outside of its encoder. An axis that the devices do not divide is on all of them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from collapipe_jax.learning.pipeline.mesh import CLUSTER, STAGE, largest_shape

DEVICE, DATA = "device", "data"
"""Axes of the mesh without a pipeline."""
COPY, BLOCK, EXAMPLE = "copy", "block", "example"
"""Axes of arrays: clusters or clients, stacked encoder blocks, and examples of a copy."""
RULES: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {COPY: (DEVICE,), BLOCK: (DEVICE, DATA), EXAMPLE: (DATA,)},
    {COPY: (CLUSTER,), BLOCK: (STAGE,), EXAMPLE: (STAGE,)},
)
"""Axes of a mesh by those of arrays, without a pipeline and with one."""
BY_COPY = {"client_optimizer", "client_variates"}
"""Parts of a state with a leading axis of clusters or clients."""
BY_BLOCK = "encoder"
"""Part of a model with an axis of blocks, after that of the copies."""


def device_mesh(devices: Sequence[Any], copies: int, examples: int) -> Mesh:
    """The largest mesh that the devices fill, of axes ``device`` and ``data``.

    Rows divide the clusters or clients, which hold a copy each, and columns their examples. Of
    equal meshes that with more rows is taken, which has fewer messages.
    """
    shape = largest_shape(copies, examples, len(devices))
    chosen = np.asarray(devices[: math.prod(shape)]).reshape(shape)
    return Mesh(chosen, (DEVICE, DATA), axis_types=(AxisType.Auto,) * 2)


def spread(tree: Any, axes: Sequence[str | None] = (COPY,)) -> Any:
    """Lay leaves with these leading axes over the mesh in use, if there is one.

    Blocks of an encoder follow on the last of the axes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return tree

    def spec(path: Any, leaf: Any) -> PartitionSpec:
        return _spec(leaf, (*axes, *([BLOCK] if BY_BLOCK in _names(path) else [])), mesh.shape)

    return jax.lax.with_sharding_constraint(tree, jax.tree.map_with_path(spec, tree))


def spread_state(state: Any) -> Any:
    """Lay a learner's state over the mesh in use, if there is one."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return state
    return jax.lax.with_sharding_constraint(state, _state_specs(state, mesh.shape))


def state_shardings(state: Any, mesh: Mesh) -> Any:
    """The places in which :func:`spread_state` leaves a state."""
    specs = _state_specs(state, mesh.shape)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def _state_specs(state: Any, sizes: Mapping[str, int]) -> Any:
    def spec(path: Any, leaf: Any) -> PartitionSpec:
        names = _names(path)
        return _spec(leaf, [COPY] * bool(BY_COPY & names) + [BLOCK] * (BY_BLOCK in names), sizes)

    return jax.tree.map_with_path(spec, state)


def _names(path: Any) -> set[str]:
    return {str(getattr(step, "name", getattr(step, "key", ""))) for step in path}


def _spec(leaf: Any, axes: Sequence[str | None], sizes: Mapping[str, int]) -> PartitionSpec:
    """Axes of a mesh of these sizes on a leaf's axes, each once and where it divides the leaf."""
    (rule,) = (rule for rule in RULES if rule[COPY][0] in sizes)
    used: list[str] = []
    names: list[tuple[str, ...] | None] = []
    for length, axis in zip(leaf.shape, axes, strict=False):
        chosen: tuple[str, ...] = ()
        for name in rule.get(axis, ()) if axis else ():
            part = math.prod(sizes[one] for one in (*chosen, name))
            if name not in used and length % part == 0:
                chosen = (*chosen, name)
        used += chosen
        names.append(chosen or None)
    return PartitionSpec(*names)
