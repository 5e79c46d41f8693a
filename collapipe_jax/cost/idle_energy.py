"""Idle energy: what nodes draw over a round whether they work or wait.

It grows with the latency of the round, so :func:`.objective.unit_costs` charges it by the second.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from collapipe_jax.network.devices import Compute


def idle_energy_j(compute: Compute, latency_s: Float[Array, ""]) -> Float[Array, "N J"]:
    """Idle energy of every node in a round, 0 of devices that are unavailable.

    Source: docs/system-model.md (28).
    """
    idle_w = compute.node_idle_power_w
    # A broken round lasts forever, and costs nothing more where nobody draws power.
    return jnp.where(idle_w > 0, idle_w * latency_s, 0.0)
