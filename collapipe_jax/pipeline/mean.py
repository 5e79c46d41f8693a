"""The clusters' weighted mean where each cluster lies on devices of its own."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from collapipe_jax.pipeline.mesh import CLUSTER


def mean_over_clusters(
    clients: Any, weights: jax.Array, present: jax.Array, previous: Any, *, mesh: Mesh
) -> Any:
    """Weighted mean of the present clusters' parameters, as one sum over the mesh.

    Equal to `aggregate` on one device. Source: docs/system-model.md, section 1, step 5.

    Args:
      clients: Tree with leaves `[N, ...]`, one cluster's part on each row of the mesh.
        What an absent cluster holds is never read, NaN included.
      weights: `w_n [N]`, >= 0; rescaled to sum 1 over the present clusters.
      present: `[N]` bool.
      previous: Tree with leaves `[...]`, returned when nobody is present or all present
        weights are 0.
      mesh: From `make_pipeline_mesh(N, K)`.

    Returns:
      Tree with leaves `[...]`, the same on all devices.
    """

    def on_device(clients: Any, weights: jax.Array, present: jax.Array, previous: Any) -> Any:
        weight = jnp.where(present[0], weights[0], 0.0)
        total = jax.lax.psum(weight, CLUSTER)
        share = weight / jnp.where(total > 0.0, total, 1.0)

        def mean(leaf: jax.Array, old: jax.Array) -> jax.Array:
            part = jnp.where(share > 0.0, share * leaf[0], 0.0)
            return jnp.where(total > 0.0, jax.lax.psum(part, CLUSTER), old)

        return jax.tree.map(mean, clients, previous)

    along, everywhere = PartitionSpec(CLUSTER), PartitionSpec()
    sharded = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(along, along, along, everywhere),
        out_specs=everywhere,
        check_vma=False,
    )
    return sharded(clients, weights, present, previous)
