"""Shamir's secret sharing: some shares of a secret give it back, fewer say nothing about it.

A secret is the value at 0 of a random polynomial, and a share its value at another place.

Source: Shamir, "How to share a secret", Communications of the ACM 22 (1979).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, UInt32

from collapipe_jax.learning.federated.prime_field import (
    PRIME,
    inverse,
    product,
    random_numbers,
    times,
)


def share(
    key: Key[Array, ""],
    secrets: UInt32[Array, "*any W"],
    threshold: Int[Array, ""] | int,
    holders: int,
) -> UInt32[Array, "*any H W"]:
    """Shares of secrets for H holders, any ``threshold`` of which give a secret back.

    Args:
      key: of the polynomials' other coefficients.
      secrets: numbers of the field.
      threshold: from 1 to H, an array value.
      holders: their number, below the prime (static).
    """
    degrees = jnp.arange(1, holders)
    drawn = random_numbers(key, (holders - 1, *secrets.shape))
    used = (degrees < threshold).reshape(-1, *[1] * secrets.ndim)
    coefficients = jnp.concatenate([secrets[None], jnp.where(used, drawn, 0)])
    place = _places(holders).reshape(*[1] * (secrets.ndim - 1), -1, 1)

    def horner(found: Array, coefficient: Array) -> tuple[Array, None]:
        return (times(found, place) + coefficient[..., None, :]) % PRIME, None

    start = jnp.zeros((*secrets.shape[:-1], holders, secrets.shape[-1]), jnp.uint32)
    return jax.lax.scan(horner, start, coefficients, reverse=True)[0]


def reconstruct(
    shares: UInt32[Array, "*any H W"], held: Bool[Array, " H"]
) -> UInt32[Array, "*any W"]:
    """Secrets from the shares that are held; others are not read.

    It is the value at 0 of Lagrange's polynomial through them. Where fewer than the threshold are
    held it has nothing to do with the secret.
    """
    place = _places(len(held))
    others = held[:, None] & ~jnp.eye(len(held), dtype=bool)
    ahead, own = place[:, None], place[None]
    ratio = times(ahead, inverse((ahead + PRIME - own) % PRIME))
    factor = jnp.where(held, product(jnp.where(others, ratio, 1)), 0)
    terms = times(shares, factor.reshape(*[1] * (shares.ndim - 2), -1, 1))
    return terms.sum(-2, dtype=jnp.uint32) % PRIME


def _places(holders: int) -> UInt32[Array, " H"]:
    """Where the holders' shares lie; the secret lies at 0."""
    return jnp.arange(1, holders + 1, dtype=jnp.uint32)
