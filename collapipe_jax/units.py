"""Units: their names, and conversions. Nothing else in the package converts a unit."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

_UNITS = {  # by the suffix of a name, the longest first
    "_dbm_per_hz": "dBm/Hz",
    "_flops_per_s": "FLOP/s",
    "_joules_per_flop": "J/FLOP",
    "_w_per_hz": "W/Hz",
    "_m_per_s": "m/s",
    **{"_hz": "Hz", "_dbm": "dBm", "_db": "dB", "_w": "W", "_j": "J", "_s": "s", "_m": "m"},
    **{"_bps": "bit/s", "_flops": "FLOP", "_bits": "bit", "_bytes": "byte"},
}


def unit_of(name: str) -> str:
    """Unit that the suffix of a name says; empty if it says none."""
    return next((unit for suffix, unit in _UNITS.items() if f"_{name}".endswith(suffix)), "")


def db_to_linear(ratio_db: ArrayLike) -> Array:
    """Ratio of powers on a linear scale, from decibels. Any shape."""
    return jnp.power(10.0, jnp.asarray(ratio_db) / 10.0)


def dbm_to_w(power_dbm: ArrayLike) -> Array:
    """Watts from dBm (decibels over one milliwatt). Any shape."""
    return 1e-3 * db_to_linear(power_dbm)


_LEVELS = {
    "_dbm_per_hz": ("_w_per_hz", dbm_to_w),
    "_dbm": ("_w", dbm_to_w),
    "_db": ("", db_to_linear),
}


def to_linear(name: str, value: ArrayLike) -> tuple[str, Array]:
    """Name and value of a quantity on a linear scale; only a name in dBm or dB changes."""
    for level, (linear, convert) in _LEVELS.items():
        if name.endswith(level):
            return name.removesuffix(level) + linear, convert(value)
    return name, jnp.asarray(value)


def gib_to_bytes(size_gib: float) -> float:
    """Bytes from GiB (2^30 bytes)."""
    return size_gib * 2.0**30


def bytes_to_mib(size_bytes: ArrayLike) -> ArrayLike:
    """MiB (2^20 bytes) from bytes."""
    return size_bytes / 2**20
