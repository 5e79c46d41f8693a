"""Positions of the nodes of a network."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from collapipe_jax.quantity import Struct, positive, quantity

Positions = Float[Array, "N J 2"]
"""Of all nodes; node 0 of a cluster is its control unit."""

ORDERS = ("drawn", "tour")
"""How devices of a cluster may be numbered."""


class TopologyParams(Struct):
    """Geometry of a cell with the base station at the origin."""

    clusters: int = positive("number of clusters", "N", whole=True, static=True)
    devices: int = positive(
        "devices of a cluster, besides its control unit", "K", whole=True, static=True
    )
    order: str = quantity(
        "order in which blocks go through the devices of a cluster: as `drawn`, or a `tour` from "
        "the control unit on always to the nearest device left",
        choices=ORDERS,
        default="drawn",
    )
    cell_radius_m: Array = positive("radius of the disc of the control units")
    cluster_radius_m: Array = positive("radius of the disc of a cluster's devices")
    d2e_min_distance_m: Array = positive("least distance of a node to the base station")
    d2d_min_distance_m: Array = positive("least distance between two nodes")


def sample_topology(key: PRNGKeyArray, params: TopologyParams) -> Positions:
    """Positions of all nodes.

    Nodes keep the least distances to the base station and to their control unit.
    """
    clusters, devices = params.clusters, params.devices
    centre_key, device_key = jax.random.split(key)
    centre = _sample_disc(
        centre_key, (clusters, 1), params.d2e_min_distance_m, params.cell_radius_m
    )
    offset = _sample_disc(
        device_key, (clusters, devices), params.d2d_min_distance_m, params.cluster_radius_m
    )
    if params.order == "tour":
        offset = jax.vmap(_nearest_first)(offset)
    return jnp.concatenate([centre, centre + offset], axis=1)


def _nearest_first(offset_m):
    """Devices ``[K, 2]`` in the order of a walk to the nearest one left, from the origin."""

    def walk(state, _):
        here, left = state
        distance = jnp.where(left, jnp.linalg.norm(offset_m - here[None], axis=1), jnp.inf)
        nearest = jnp.argmin(distance)
        return (offset_m[nearest], left.at[nearest].set(False)), offset_m[nearest]

    start = jnp.zeros(2), jnp.ones(len(offset_m), bool)
    return jax.lax.scan(walk, start, length=len(offset_m))[1]


def _sample_disc(key, shape, inner_radius_m, outer_radius_m):
    """Points ``[*shape, 2]``, uniform over the area between two radii."""
    radius_key, angle_key = jax.random.split(key)
    area = jax.random.uniform(radius_key, shape)
    radius = jnp.sqrt(inner_radius_m**2 + area * (outer_radius_m**2 - inner_radius_m**2))
    angle = 2 * jnp.pi * jax.random.uniform(angle_key, shape)
    return radius[..., None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)


def d2e_distance_m(position_m: Positions, params: TopologyParams) -> Float[Array, "N J"]:
    """Distance of every node to the base station, with its lower limit."""
    return jnp.maximum(jnp.linalg.norm(position_m, axis=-1), params.d2e_min_distance_m)


def node_distance_m(position_m: Positions, params: TopologyParams) -> Float[Array, "N*J N*J"]:
    """Distance between every two nodes in row-major order, with its lower limit.

    The diagonal has it too: no message goes from a node to itself.
    """
    flat = position_m.reshape(-1, 2)
    difference = flat[:, None, :] - flat[None, :, :]
    # The square root has no derivative at zero, so the floor is applied to the square.
    square = jnp.maximum(jnp.sum(difference**2, axis=-1), params.d2d_min_distance_m**2)
    return jnp.sqrt(square)
