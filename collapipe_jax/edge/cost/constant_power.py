"""Energy of what draws a constant power: idle nodes, and receivers while they receive."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from collapipe_jax.edge.network.devices import Compute


def drawn_j(power_w: Float[Array, "..."], time_s: Float[Array, "..."]) -> Float[Array, "..."]:
    """Energy of a power over a time; without power 0, even over the endless time of a dead link."""
    return jnp.where(power_w > 0, power_w * time_s, 0.0)


def idle_energy_j(compute: Compute, latency_s: Float[Array, ""]) -> Float[Array, "N J"]:
    """Idle energy of every node in a round, 0 of devices that are unavailable.

    A node draws it whether it works or waits. It grows with the latency of the round, so
    :func:`.objective.unit_costs` charges it by the second.
    Source: docs/system-model.md (28).
    """
    return drawn_j(compute.node_idle_power_w, latency_s)
