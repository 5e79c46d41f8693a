"""Where arrays of training lie on several devices, by the name of their leading axis.

Copies of the model and their optimisers lie by cluster or client, each on one device. Stacked
blocks of the one global model lie by block (fully sharded data parallelism); the rest is on every
device. A leading axis that the devices do not divide is on every device, too.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DEVICE = "device"
"""Axis of the mesh."""
BY_CLIENT = ("client_optimizer",)
"""Parts of a state with a leading axis of clusters or clients."""
BY_BLOCK = ("encoder",)
"""Parts of a model with a leading axis of blocks."""


def device_mesh(devices: Any, copies: int) -> Mesh:
    """As many of the devices as divide the clusters or clients, that hold a copy each."""
    count = max(size for size in range(1, len(devices) + 1) if copies % size == 0)
    return Mesh(np.asarray(devices[:count]), (DEVICE,), axis_types=(AxisType.Auto,))


def spread(tree: Any, axis: int = 0) -> Any:
    """Lay an axis of clusters or clients over the devices of the mesh in use, if there is one."""
    size = _devices_in_use()
    if size == 1:
        return tree

    def lay(leaf: jax.Array) -> jax.Array:
        spec = _spec(leaf, axis, size)
        return jax.lax.with_sharding_constraint(leaf, spec)

    return jax.tree.map(lay, tree)


def spread_state(state: Any) -> Any:
    """Lay a learner's state over the devices of the mesh in use, if there is one."""
    size = _devices_in_use()
    if size == 1:
        return state
    return jax.lax.with_sharding_constraint(state, _state_specs(state, size))


def state_shardings(state: Any, mesh: Mesh) -> Any:
    """The places in which :func:`spread_state` leaves a state."""
    specs = _state_specs(state, mesh.size)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def _state_specs(state: Any, size: int) -> Any:
    def spec(path: Any, leaf: Any) -> PartitionSpec:
        names = {str(getattr(step, "name", getattr(step, "key", ""))) for step in path}
        leading = names.intersection(BY_CLIENT + BY_BLOCK)
        return _spec(leaf, 0, size) if leading else PartitionSpec()

    return jax.tree.map_with_path(spec, state)


def _spec(leaf: Any, axis: int, size: int) -> PartitionSpec:
    if leaf.ndim <= axis or leaf.shape[axis] % size:
        return PartitionSpec()
    return PartitionSpec(*[None] * axis, DEVICE)


def _devices_in_use() -> int:
    """Number of devices of the mesh in use; 1 without."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[DEVICE] if DEVICE in mesh.axis_names else 1
