"""Arithmetic modulo a prime below ``2^16``, whose products fit into 32 bits.

Secrets are rows of such numbers, "limbs". Arrays are uint32, with entries below the prime.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, UInt32

PRIME = 65521
"""The largest prime below ``2^16``."""
GENERATOR = 17
"""A primitive root of the prime: its powers are all numbers but 0."""
LIMBS = 4
"""Limbs of a secret: four of 16 bits are a seed of JAX's generator."""

_Numbers = UInt32[Array, "..."]


def random_numbers(key: Key[Array, ""], shape: tuple[int, ...]) -> _Numbers:
    """Independent numbers, uniform in the field."""
    return jax.random.randint(key, shape, 0, PRIME).astype(jnp.uint32)


def times(left: _Numbers, right: _Numbers) -> _Numbers:
    """Products. Shapes broadcast."""
    return left * right % PRIME


def power(base: _Numbers, exponent: _Numbers) -> _Numbers:
    """Powers by repeated squaring; exponents are below ``2^16``. Shapes broadcast."""

    def square(bit: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        found, base = carry
        is_set = (exponent >> bit.astype(jnp.uint32)) & 1
        return jnp.where(is_set == 1, times(found, base), found), times(base, base)

    base = jnp.broadcast_to(base, jnp.broadcast_shapes(base.shape, exponent.shape))
    return jax.lax.fori_loop(0, 16, square, (jnp.ones_like(base), base))[0]


def inverse(number: _Numbers) -> _Numbers:
    """Inverses, by Fermat's little theorem; 0 of 0."""
    return power(number, jnp.full_like(number, PRIME - 2))


def product(numbers: _Numbers) -> _Numbers:
    """Product over the first axis."""
    start = jnp.ones_like(numbers[0])
    return jax.lax.scan(lambda found, row: (times(found, row), None), start, numbers)[0]
