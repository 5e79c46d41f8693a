"""Secure aggregation: a server learns the sum of the clients' vectors, and no single one.

A round has four exchanges. Clients send public keys (:func:`advertise`). They share their secrets
among one another (:func:`share_secrets`). They send their vectors under masks (:func:`mask`):
one mask a pair of clients, which cancels in the sum, and one of its own. At last those that are
still there answer with shares (:func:`answer`): of the own mask of a client whose vector arrived,
or of the key of one that dropped out, whose pairs' masks are left over. With enough answers the
server takes both away (:func:`unmask`). It sees what :class:`Received` holds, and nothing else.

Vectors are uint32 and wrap around. Masks are drawn by Threefry. Keys are agreed on as Diffie and
Hellman do, in a group of 16 bits, which protects nothing: it stands for X25519. That shares travel
through the server encrypted is assumed. Clients and server follow the protocol.

Source: Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning"
(2017), figure 4, with honest but curious parties; 1611.04482.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, UInt32

Limbs = UInt32[Array, "N W"]
Vectors = UInt32[Array, "N D"]
Flags = Bool[Array, " N"]


class Secrets(NamedTuple):
    """Secrets of every client, which leave it in shares alone."""

    key: Limbs  # with those of others it gives the masks of pairs
    seed: Limbs  # of the own mask


class Shares(NamedTuple):
    """Shares of the secrets, by owner and by the client that holds them."""

    key: UInt32[Array, "N N W"]
    seed: UInt32[Array, "N N W"]


class Presence(NamedTuple):
    """Clients in the order in which they leave: each of a field is in the one before."""

    participates: Flags  # shared its secrets
    arrived: Flags  # its masked vector arrived
    answered: Flags  # it answered with shares


class Received(NamedTuple):
    """All that the server receives; 0 where nothing was sent, or was lost."""

    public: Limbs
    masked: Vectors
    answers: UInt32[Array, "N N W"]  # one share of every owner from every holder
    presence: Presence


class SecureSum(NamedTuple):
    """Result at the server."""

    total: UInt32[Array, " D"]  # of the vectors that arrived, modulo the ring; 0 without success
    succeeded: Bool[Array, ""]  # whether as many as the threshold answered


def secure_sum(
    key: Key[Array, ""],
    vectors: Vectors,
    presence: Presence,
    threshold: Int[Array, ""],
    ring: UInt32[Array, ""],
) -> SecureSum:
    """All exchanges of a round.

    Args:
      key: all secrets and shares of the round follow from it.
      vectors: those of clients that do not participate are not read.
      presence: who takes part in which exchange.
      threshold: answers that the server needs, at least 2.
      ring: ``2^b - 1``: entries travel modulo ``2^b``.
    """
    received = run_clients(key, vectors, presence, threshold, ring)
    return unmask(received, threshold)


def run_clients(
    key: Key[Array, ""],
    vectors: Vectors,
    presence: Presence,
    threshold: Int[Array, ""],
    ring: UInt32[Array, ""],
) -> Received:
    """What the clients of :func:`secure_sum` send to the server."""
    secret_key, share_key = jax.random.split(key)
    secrets = draw_secrets(secret_key, len(vectors))
    public = jnp.where(presence.participates[:, None], advertise(secrets), 0)
    shares = share_secrets(share_key, secrets, threshold)
    masked = mask(vectors, secrets, public, presence.participates) & ring
    return Received(
        public=public,
        masked=jnp.where(presence.arrived[:, None], masked, 0),
        answers=answer(shares, presence),
        presence=presence,
    )


def draw_secrets(key: Key[Array, ""], clients: int) -> Secrets:
    """Fresh secrets of every client."""
    return Secrets(*random_numbers(key, (2, clients, LIMBS)))


def advertise(secrets: Secrets) -> Limbs:
    """Public keys."""
    return power(jnp.full_like(secrets.key, GENERATOR), secrets.key)


def share_secrets(key: Key[Array, ""], secrets: Secrets, threshold: Int[Array, ""]) -> Shares:
    """Shares of every client's secrets for all clients, itself included."""
    clients = len(secrets.key)
    return Shares(*share(key, jnp.stack(secrets), threshold, clients))


def mask(vectors: Vectors, secrets: Secrets, public: Limbs, participates: Flags) -> Vectors:
    """Every client's vector under its own mask and those of its pairs, modulo ``2^32``."""

    def of_client(own: Array, vector: Array, key: Array, seed: Array) -> Array:
        def add(other: Array, masked: Array) -> Array:
            is_pair = participates[other] & (other != own)
            pair = pair_mask(own, other, power(public[other], key), len(vector))
            return masked + jnp.where(is_pair, pair, 0)

        return jax.lax.fori_loop(0, len(vectors), add, vector + expand(seed, len(vector)))

    return jax.vmap(of_client)(jnp.arange(len(vectors)), vectors, *secrets)


def answer(shares: Shares, presence: Presence) -> UInt32[Array, "N N W"]:
    """One share of every owner from every client that is still there: never both of an owner.

    A client that arrived is added up, and its own mask has to go. The pairs' masks of one that
    did not are left over.
    """
    of_owner = jnp.where(presence.arrived[:, None, None], shares.seed, shares.key)
    sent = presence.participates[:, None] & presence.answered[None]
    return jnp.where(sent[..., None], of_owner, 0)


def unmask(received: Received, threshold: Int[Array, ""]) -> SecureSum:
    """The sum of the vectors that arrived, from what the server receives."""
    public, masked, answers, (participates, arrived, answered) = received
    secrets, length = reconstruct(answers, answered), masked.shape[1]

    def keep(_, total: Array) -> Array:
        return total

    def without_own(client: Array, total: Array) -> Array:
        return total - expand(secrets[client], length)

    def without_pairs(client: Array, total: Array) -> Array:
        def remove(other: Array, total: Array) -> Array:
            pair = pair_mask(other, client, power(public[other], secrets[client]), length)
            return total - jnp.where(arrived[other], pair, 0)

        return jax.lax.fori_loop(0, len(masked), remove, total)

    def step(client: Array, total: Array) -> Array:
        case = jnp.where(arrived[client], 1, jnp.where(participates[client], 2, 0))
        return jax.lax.switch(case, [keep, without_own, without_pairs], client, total)

    total = jax.lax.fori_loop(0, len(masked), step, masked.sum(0, dtype=jnp.uint32))
    succeeded = answered.sum() >= threshold
    return SecureSum(jnp.where(succeeded, total, 0), succeeded)


def pair_mask(
    own: Array, other: Array, agreed: UInt32[Array, " W"], length: int
) -> UInt32[Array, " D"]:
    """The mask of a pair as one of both adds it; the other one adds its negative."""
    drawn = expand(agreed, length)
    return jnp.where(own < other, drawn, -drawn)


def expand(seed: UInt32[Array, " W"], length: int) -> UInt32[Array, " D"]:
    """A seed's pseudorandom numbers."""
    data = (seed[::2] << 16) | seed[1::2]
    key = jax.random.wrap_key_data(data, impl="threefry2x32")
    return jax.random.bits(key, (length,), jnp.uint32)


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
