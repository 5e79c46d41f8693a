"""Units: their names, and conversions. Nothing else in the package converts a unit."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

_UNITS = {  # by the suffix of a name, the longest first
    "_dbm_per_hz": "dBm/Hz",
    "_flops_per_s": "FLOP/s",
    "_bytes_per_s": "byte/s",
    "_joules_per_flop": "J/FLOP",
    "_w_per_hz": "W/Hz",
    "_m_per_s": "m/s",
    **{"_hz": "Hz", "_dbm": "dBm", "_db": "dB", "_w": "W", "_j": "J", "_s": "s", "_m": "m"},
    **{"_bps": "bit/s", "_flops": "FLOP", "_bits": "bit", "_bytes": "byte"},
}


def unit_of(name: str) -> str:
    """Unit that the suffix of a name says; empty if it says none."""
    return next((unit for suffix, unit in _UNITS.items() if f"_{name}".endswith(suffix)), "")


def without_unit(name: str) -> str:
    """The name without the suffix that says its unit."""
    return next((name.removesuffix(suffix) for suffix in _UNITS if name.endswith(suffix)), name)


def db_to_linear(ratio_db: ArrayLike) -> Array:
    """Ratio of powers on a linear scale, from decibels. Any shape."""
    return jnp.power(10.0, jnp.asarray(ratio_db) / 10.0)


_LINEAR = {"_dbm_per_hz": "_w_per_hz", "_dbm": "_w", "_db": ""}


def linear_name(name: str) -> str:
    """Name of a quantity on a linear scale; only a name in dBm or dB changes."""
    return next((name.removesuffix(x) + _LINEAR[x] for x in _LINEAR if name.endswith(x)), name)


def to_linear(name: str, value: ArrayLike) -> Array:
    """Value of a named quantity on a linear scale; watts from dBm, decibels over a milliwatt."""
    unit = unit_of(name)
    if unit.startswith("dBm"):
        return 1e-3 * db_to_linear(value)
    return db_to_linear(value) if unit == "dB" else jnp.asarray(value)


def gib_to_bytes(size_gib: float) -> float:
    """Bytes from GiB (2^30 bytes)."""
    return size_gib * 2.0**30


def bytes_to_mib(size_bytes: ArrayLike) -> ArrayLike:
    """MiB (2^20 bytes) from bytes."""
    return size_bytes / 2**20
