"""What the nodes compute with: a catalogue of real devices."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from collapipe_jax.errors import InputError
from collapipe_jax.units import gib_to_bytes


class DeviceProfile(NamedTuple):
    """One device as its maker describes it.

    Attributes:
      cores: arithmetic units, each one fused multiply-add (2 FLOPs) a cycle.
      clock_hz: their clock.
      power_w: power under load.
      memory_bytes: memory shared by processor and accelerator.
      source: where the figures come from.
    """

    cores: int
    clock_hz: float
    power_w: float
    memory_bytes: float
    source: str

    @property
    def peak_flops_per_s(self) -> float:
        """Single-precision peak: two FLOPs a core and cycle."""
        return 2.0 * self.cores * self.clock_hz


DEVICE_PROFILES: dict[str, DeviceProfile] = {
    "jetson_nano": DeviceProfile(
        128, 0.9216e9, 10.0, gib_to_bytes(4), "NVIDIA Jetson Nano data sheet, 10 W mode"
    ),
    "jetson_tx2": DeviceProfile(
        256, 1.302e9, 15.0, gib_to_bytes(8), "NVIDIA Jetson TX2 data sheet, 15 W mode"
    ),
    "jetson_xavier_nx": DeviceProfile(
        384, 1.1e9, 15.0, gib_to_bytes(8), "NVIDIA Jetson Xavier NX data sheet, 15 W mode"
    ),
    "jetson_orin_nano": DeviceProfile(
        1024, 0.625e9, 15.0, gib_to_bytes(8), "NVIDIA Jetson Orin Nano data sheet, 15 W mode"
    ),
}
"""Known devices by name; add one by adding a row."""


@struct.dataclass(kw_only=True)
class Compute:
    """What every node of one network computes with.

    The energy is kept per operation: ``kappa F^2`` of docs/system-model.md (16) is around
    1e-11 J, while kappa itself lies near the smallest single-precision number.

    Attributes:
      flops_per_s: effective speed of every node, ``[N, K + 1]``.
      joules_per_flop: ``kappa F^2``, ``[N, K + 1]``.
      memory_bytes: memory for training on every device, ``[N, K]``; 0 where it is away.
      es_flops_per_s: speed of the edge server, shared equally by the clusters.
      block_overhead_s: time to launch one block on one micro-batch.
      link_overhead_s: time to start one message.
    """

    flops_per_s: Array
    joules_per_flop: Array
    memory_bytes: Array
    es_flops_per_s: Array
    block_overhead_s: Array
    link_overhead_s: Array


@struct.dataclass(kw_only=True)
class DeviceParams:
    """Which devices a network is drawn from.

    Attributes:
      control_unit: profile name of every control unit.
      devices: profile names the devices are drawn from, uniformly.
      utilisation: share of its peak that training reaches on a device.
      memory_share: share of a device's memory that training may use.
      es_flops_per_s, block_overhead_s, link_overhead_s: as in :class:`Compute`.
    """

    control_unit: str = struct.field(pytree_node=False)
    devices: tuple[str, ...] = struct.field(pytree_node=False)
    utilisation: Array
    memory_share: Array
    es_flops_per_s: Array
    block_overhead_s: Array
    link_overhead_s: Array


def check_profiles(key: str, names: Sequence[str]) -> None:
    """Check that device names are in the catalogue.

    Raises:
      InputError: if a name is unknown, or there is none.
    """
    known = ", ".join(DEVICE_PROFILES)
    if not names:
        raise InputError(key, names, "no device is named", f"Name some of: {known}")
    for name in names:
        if name not in DEVICE_PROFILES:
            raise InputError(key, name, "unknown device", f"Choose among: {known}")


def sample_compute(key: Array, params: DeviceParams, clusters: int, devices: int) -> Compute:
    """Draw the devices of a network.

    Args:
      key: random key.
      params: what to draw from.
      clusters: ``N``.
      devices: ``K``.

    Returns:
      A :class:`Compute`; the dynamic power is spent at the effective speed, so an
      operation costs ``P / F`` joules.
    """
    profiles = [DEVICE_PROFILES[name] for name in (params.control_unit, *params.devices)]
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
        es_flops_per_s=jnp.asarray(params.es_flops_per_s),
        block_overhead_s=jnp.asarray(params.block_overhead_s),
        link_overhead_s=jnp.asarray(params.link_overhead_s),
    )
