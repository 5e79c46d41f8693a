"""The clusters' weighted mean where each cluster lies on devices of its own."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from collapipe_jax.federated.aggregation import present_shares, select
from collapipe_jax.pipeline.mesh import CLUSTER


def mean_over_clusters(
    clients: Any, weights: jax.Array, present: jax.Array, previous: Any, *, mesh: Mesh
) -> Any:
    """Weighted mean of the present clusters' parameters, as one sum over the mesh.

    Equal to ``aggregate`` on one device. Source: docs/system-model.md, section 1, step 5.

    Args:
      clients: tree with leaves ``[N, ...]``, one cluster's part on each row of the mesh.
        What an absent cluster holds is never read, NaN included.
      weights: ``w_n [N]``, >= 0; rescaled to sum 1 over the present clusters.
      present: ``[N]`` bool.
      previous: tree with leaves ``[...]``, returned when nobody is present or all present
        weights are 0.
      mesh: from ``make_pipeline_mesh(N, K)``.

    Returns:
      Tree with leaves ``[...]``, the same on all devices.
    """
    shares = present_shares(weights, present)

    def on_device(clients: Any, shares: jax.Array) -> Any:
        def mean(leaf: jax.Array) -> jax.Array:
            return jax.lax.psum(jnp.where(shares[0] > 0.0, shares[0] * leaf[0], 0.0), CLUSTER)

        return jax.tree.map(mean, clients)

    along = PartitionSpec(CLUSTER)
    means = jax.shard_map(
        on_device, mesh=mesh, in_specs=(along, along), out_specs=PartitionSpec(), check_vma=False
    )(clients, shares)
    return select((shares > 0.0).any(), means, previous)
