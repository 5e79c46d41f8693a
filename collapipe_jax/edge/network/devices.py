"""Devices: a catalogue of real ones, from which a network is drawn."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from collapipe_jax.core.quantity import Struct, gib_to_bytes, positive, quantity, same


class DeviceProfile(NamedTuple):
    """One device as its maker describes it.

    The power is the budget of the whole board in this mode, idle power and memory included. The
    model takes it as the dynamic power, which is less, so it overstates energy per operation.
    A core takes one fused multiply-add (2 FLOPs) a cycle; processor and accelerator share memory.
    """

    cores: int
    clock_hz: float
    power_w: float
    memory_bytes: float

    @property
    def peak_flops_per_s(self) -> float:
        """Peak in single precision."""
        return 2.0 * self.cores * self.clock_hz


DEVICE_PROFILES: dict[str, DeviceProfile] = {
    "jetson_nano": DeviceProfile(128, 0.9216e9, 10.0, gib_to_bytes(4)),
    "jetson_tx2": DeviceProfile(256, 1.302e9, 15.0, gib_to_bytes(8)),
    "jetson_xavier_nx": DeviceProfile(384, 1.1e9, 15.0, gib_to_bytes(8)),
    "jetson_orin_nano": DeviceProfile(1024, 0.625e9, 15.0, gib_to_bytes(8)),
}
"""Known devices by name, from NVIDIA's data sheets; one more is a row.

Clocks are those of the mode of this power. That of the TX2 alone is its largest, which no mode
caps; its mode of 15 W is 14 % slower.
"""


_SPEED: dict[str, Any] = {"plausible": ">= 1e6", "slip": "In GFLOP/s? Give FLOP/s"}


class Compute(Struct):
    """The devices of one network.

    The energy is kept per operation: ``kappa F^2`` of docs/system-model.md (16) is around
    1e-11 J, while kappa itself lies near the smallest single-precision number.
    """

    flops_per_s: Array = positive("effective speed of a node", "F", "NJ", **_SPEED)
    joules_per_flop: Array = quantity("energy of an operation", r"\kappa F^2", "NJ")
    memory_bytes: Array = quantity(
        "memory for training; 0 for an unavailable device",
        "Mem",
        "NK",
        plausible=">= 1e6",
        slip="In MB or GB? Give bytes",
    )
    control_unit_memory_bytes: Array | None = quantity(
        "memory of a control unit for training; no limit without it",
        "Mem_0",
        "N",
        default=None,
        optional=True,
        plausible=">= 1e6",
        slip="In MB or GB? Give bytes",
    )
    es_flops_per_s: Array = positive(
        "speed of the edge server, shared equally by the clusters", "F_{ES}", **_SPEED
    )
    es_memory_bytes: Array | float = quantity(
        "memory of the edge server for training; 0 is no limit",
        "Mem_{ES}",
        missing=0.0,
        default=0.0,
        plausible=">= 1e6",
        slip="In MB or GB? Give bytes",
    )
    block_overhead_s: Array = quantity("time to launch a block on a micro-batch", "o_B")
    link_overhead_s: Array = quantity("time to start a message", "o_L")
    idle_power_w: Array = quantity(
        "power that every available node draws over the whole round",
        "P_0",
        missing=0.0,
        plausible="<= 100",
        slip="In mW? Give W",
    )
    receive_power_w: Array = quantity(
        "power that a node draws while it receives",
        "P_{rx}",
        missing=0.0,
        plausible="<= 100",
        slip="In mW? Give W",
    )

    @property
    def node_power_w(self) -> Float[Array, "N J *batch"]:
        """Power of every node while it computes."""
        return self.joules_per_flop * self.flops_per_s

    @property
    def node_idle_power_w(self) -> Float[Array, "N J *batch"]:
        """Idle power of control units and devices, 0 of devices that are unavailable."""
        is_there = self.memory_bytes > 0
        is_there = jnp.concatenate([jnp.ones_like(is_there[:, :1]), is_there], axis=1)
        return jnp.where(is_there, self.idle_power_w, 0.0)


class DeviceParams(Struct):
    """Devices from which a network is drawn."""

    control_unit: str = quantity("device that every control unit is", choices=DEVICE_PROFILES)
    kinds: tuple[str, ...] = quantity(
        "devices of the catalogue (collapipe_jax/edge/network/devices.py), one drawn uniformly for "
        "every node but the control units",
        choices=DEVICE_PROFILES,
    )
    utilisation: Array = quantity(
        "share of peak speed that training reaches", bounds="> 0 and <= 1"
    )
    memory_share: Array = quantity("share of memory that training may use", bounds="> 0 and <= 1")
    es_flops_per_s: Array = same(Compute, "es_flops_per_s")
    es_memory_bytes: Array = same(Compute, "es_memory_bytes")
    block_overhead_s: Array = same(Compute, "block_overhead_s")
    link_overhead_s: Array = same(Compute, "link_overhead_s")
    idle_power_w: Array = same(Compute, "idle_power_w")
    receive_power_w: Array = same(Compute, "receive_power_w")


def sample_compute(key: PRNGKeyArray, params: DeviceParams, clusters: int, devices: int) -> Compute:
    """Draw ``N`` clusters of ``K`` devices.

    A board spends its power ``P`` at the effective speed ``F``: an operation takes ``P / F`` J.
    """
    profiles = [DEVICE_PROFILES[name] for name in (params.control_unit, *params.kinds)]
    peak = jnp.array([profile.peak_flops_per_s for profile in profiles])
    power = jnp.array([profile.power_w for profile in profiles])
    memory = jnp.array([profile.memory_bytes for profile in profiles])
    chosen = jax.random.randint(key, (clusters, devices), 1, len(profiles))
    kind = jnp.concatenate([jnp.zeros((clusters, 1), chosen.dtype), chosen], axis=1)
    flops_per_s = params.utilisation * peak[kind]
    return Compute(
        flops_per_s=flops_per_s,
        joules_per_flop=power[kind] / flops_per_s,
        memory_bytes=params.memory_share * memory[kind[:, 1:]],
        control_unit_memory_bytes=params.memory_share * memory[kind[:, 0]],
        es_flops_per_s=jnp.asarray(params.es_flops_per_s),
        es_memory_bytes=jnp.asarray(params.es_memory_bytes),
        block_overhead_s=jnp.asarray(params.block_overhead_s),
        link_overhead_s=jnp.asarray(params.link_overhead_s),
        idle_power_w=jnp.asarray(params.idle_power_w),
        receive_power_w=jnp.asarray(params.receive_power_w),
    )
