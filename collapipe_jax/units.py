"""Conversions of units. Nothing else in the package converts a unit."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def db_to_linear(ratio_db: ArrayLike) -> Array:
    """Ratio of powers on a linear scale, from decibels. Any shape."""
    return jnp.power(10.0, jnp.asarray(ratio_db) / 10.0)


def dbm_to_w(power_dbm: ArrayLike) -> Array:
    """Watts from dBm (decibels over one milliwatt). Any shape."""
    return 1e-3 * db_to_linear(power_dbm)


def gib_to_bytes(size_gib: float) -> float:
    """Bytes from GiB (2^30 bytes)."""
    return size_gib * 2.0**30


def bytes_to_mib(size_bytes: ArrayLike) -> ArrayLike:
    """MiB (2^20 bytes) from bytes."""
    return size_bytes / 2**20
