"""The weighted mean of clients' updates by secure aggregation.

A client's vector has an entry 1, one for every row of a table that is 1 where it read the row, and
its update as a share of the clip, within -1 .. 1. All are multiplied by the client's weight, so
that sums are within -1 .. 1 as well. They are rounded to multiples of ``2^(2 - b)``, which fit into
``b`` bits with one to spare for rounding. The server divides the sum by its first entry: the mean
over those that are left. So it learns the weight of all and of those that read a row. A row with a
single reader is not hidden, since the others add nothing of
their texts to it.

A party has a vector of its own: a client, or a control unit that adds up those of its devices.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, UInt32

# Secure aggregation: a server learns the sum of the clients' vectors, and no single one.
#
# A round has four exchanges. Clients send public keys (:func:`advertise`). They share their
# secrets among one another (:func:`share_secrets`). They send their vectors under masks
# (:func:`_mask`): one mask a pair of clients, which cancels in the sum, and one of its own. At
# last those that are still there answer with shares (:func:`_answer`): of the own mask of a
# client whose vector arrived, or of the key of one that dropped out, whose pairs' masks are
# left over. With enough answers the server takes both away (:func:`unmask`). It sees what
# :class:`Received` holds, and nothing else.
#
# Vectors are uint32 and wrap around. Masks are drawn by Threefry. Keys are agreed on as Diffie
# and Hellman do, in a group of 16 bits, which protects nothing: it stands for X25519. That
# shares travel through the server encrypted is assumed. Clients and server follow the protocol.
#
# Source: Bonawitz et al., "Practical secure aggregation for privacy-preserving machine
# learning" (2017), figure 4, with honest but curious parties; 1611.04482.

_Limbs = UInt32[Array, "N W"]
Vectors = UInt32[Array, "N D"]
_Flags = Bool[Array, " N"]


class Secrets(NamedTuple):
    """Secrets of every client, which leave it in shares alone."""

    key: _Limbs  # with those of others it gives the masks of pairs
    seed: _Limbs  # of the own mask


class Shares(NamedTuple):
    """Shares of the secrets, by owner and by the client that holds them."""

    key: UInt32[Array, "N N W"]
    seed: UInt32[Array, "N N W"]


class Presence(NamedTuple):
    """Clients in the order in which they leave: each of a field is in the one before."""

    participates: _Flags  # shared its secrets
    arrived: _Flags  # its masked vector arrived
    answered: _Flags  # it answered with shares


class Received(NamedTuple):
    """All that the server receives; 0 where nothing was sent, or was lost."""

    public: _Limbs
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
    masked = _mask(vectors, secrets, public, presence.participates) & ring
    return Received(
        public=public,
        masked=jnp.where(presence.arrived[:, None], masked, 0),
        answers=_answer(shares, presence),
        presence=presence,
    )


def draw_secrets(key: Key[Array, ""], clients: int) -> Secrets:
    """Fresh secrets of every client."""
    return Secrets(*random_numbers(key, (2, clients, _LIMBS)))


def advertise(secrets: Secrets) -> _Limbs:
    """Public keys."""
    return power(jnp.full_like(secrets.key, GENERATOR), secrets.key)


def share_secrets(key: Key[Array, ""], secrets: Secrets, threshold: Int[Array, ""]) -> Shares:
    """Shares of every client's secrets for all clients, itself included."""
    clients = len(secrets.key)
    return Shares(*share(key, jnp.stack(secrets), threshold, clients))


def _mask(vectors: Vectors, secrets: Secrets, public: _Limbs, participates: _Flags) -> Vectors:
    """Every client's vector under its own mask and those of its pairs, modulo ``2^32``."""

    def of_client(own: Array, vector: Array, key: Array, seed: Array) -> Array:
        def add(other: Array, masked: Array) -> Array:
            is_pair = participates[other] & (other != own)
            pair = _pair_mask(own, other, power(public[other], key), len(vector))
            return masked + jnp.where(is_pair, pair, 0)

        return jax.lax.fori_loop(0, len(vectors), add, vector + expand(seed, len(vector)))

    return jax.vmap(of_client)(jnp.arange(len(vectors)), vectors, *secrets)


def _answer(shares: Shares, presence: Presence) -> UInt32[Array, "N N W"]:
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
            pair = _pair_mask(other, client, power(public[other], secrets[client]), length)
            return total - jnp.where(arrived[other], pair, 0)

        return jax.lax.fori_loop(0, len(masked), remove, total)

    def step(client: Array, total: Array) -> Array:
        case = jnp.where(arrived[client], 1, jnp.where(participates[client], 2, 0))
        return jax.lax.switch(case, [keep, without_own, without_pairs], client, total)

    total = jax.lax.fori_loop(0, len(masked), step, masked.sum(0, dtype=jnp.uint32))
    succeeded = answered.sum() >= threshold
    return SecureSum(jnp.where(succeeded, total, 0), succeeded)


def _pair_mask(
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
        return (_times(found, place) + coefficient[..., None, :]) % PRIME, None

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
    ratio = _times(ahead, inverse((ahead + PRIME - own) % PRIME))
    factor = jnp.where(held, product(jnp.where(others, ratio, 1)), 0)
    terms = _times(shares, factor.reshape(*[1] * (shares.ndim - 2), -1, 1))
    return terms.sum(-2, dtype=jnp.uint32) % PRIME


def _places(holders: int) -> UInt32[Array, " H"]:
    """Where the holders' shares lie; the secret lies at 0."""
    return jnp.arange(1, holders + 1, dtype=jnp.uint32)


PRIME = 65521
"""The largest prime below ``2^16``."""
GENERATOR = 17
"""A primitive root of the prime: its powers are all numbers but 0."""
_LIMBS = 4
"""_Limbs of a secret: four of 16 bits are a seed of JAX's generator."""

_Numbers = UInt32[Array, "..."]


def random_numbers(key: Key[Array, ""], shape: tuple[int, ...]) -> _Numbers:
    """Independent numbers, uniform in the field."""
    return jax.random.randint(key, shape, 0, PRIME).astype(jnp.uint32)


def _times(left: _Numbers, right: _Numbers) -> _Numbers:
    """Products. Shapes broadcast."""
    return left * right % PRIME


def power(base: _Numbers, exponent: _Numbers) -> _Numbers:
    """Powers by repeated squaring; exponents are below ``2^16``. Shapes broadcast."""

    def square(bit: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        found, base = carry
        is_set = (exponent >> bit.astype(jnp.uint32)) & 1
        return jnp.where(is_set == 1, _times(found, base), found), _times(base, base)

    base = jnp.broadcast_to(base, jnp.broadcast_shapes(base.shape, exponent.shape))
    return jax.lax.fori_loop(0, 16, square, (jnp.ones_like(base), base))[0]


def inverse(number: _Numbers) -> _Numbers:
    """Inverses, by Fermat's little theorem; 0 of 0."""
    return power(number, jnp.full_like(number, PRIME - 2))


def product(numbers: _Numbers) -> _Numbers:
    """Product over the first axis."""
    start = jnp.ones_like(numbers[0])
    return jax.lax.scan(lambda found, row: (_times(found, row), None), start, numbers)[0]


LEAST_ANSWERS = 2
"""A sum of a single party would be its update."""


@struct.dataclass(kw_only=True)
class SecureAggregation:
    """Secure aggregation of a run; numbers are array values."""

    ring_bits: Any  # ``b``, bits of an entry of a masked vector, 16 to 32
    clip: Any  # largest change of a parameter in a round
    threshold: Any  # share of the parties that has to answer
    dropout_probability: Any  # of a party before its upload, and again before its answer
    # Clients that a party adds up: those of a cluster whose control unit averages
    clients: int = struct.field(pytree_node=False, default=1)


class SecureReport(NamedTuple):
    """What a round of secure aggregation did, all ``[]``."""

    failed: Array  # 1 where too few parties answered, else 0
    dropped: Array  # share of the parties that took part whose vector did not arrive
    clipped: Array  # share of the entries of updates, sent or not, that were beyond the clip


class SecureMean(NamedTuple):
    """What the server learns, and a report that only a simulation has."""

    update: PyTree[Array]  # weighted mean of the updates, leaves ``[...]``; 0 after a failure
    row_shares: Mapping[str, Array]  # weight of the clients that read a row ``[V]``, by table
    arrived: Bool[Array, " N"]  # clients whose updates are in the mean
    report: SecureReport


def secure_mean(
    rule: SecureAggregation,
    updates: PyTree[Float[Array, "N ..."]],
    shares: Float[Array, " N"],
    met: Mapping[str, Bool[Array, "N V"]],
    key: Key[Array, ""],
) -> SecureMean:
    """Mean of the participants' updates, but for those that drop out.

    An update that is not finite has no entry in the ring, so its party drops out.

    Args:
      rule: how.
      updates: changes of the parameters; those of share 0 are never read.
      shares: as in ``federated``.
      met: rows of tables that every client read.
      key: of the round; drop-outs, secrets and masks follow from it.
    """
    drop_key, sum_key = jax.random.split(key)
    entries, unravel = _entries(rule, updates, met)
    counted = shares > 0.0
    clipped = jnp.clip(entries, -1.0, 1.0)
    weighted = jnp.where(counted[:, None], shares[:, None] * clipped, 0.0)
    # The mean of a cluster leaves it as one vector.
    weighted = weighted.reshape(-1, rule.clients, weighted.shape[1]).sum(1)
    participates = counted.reshape(-1, rule.clients).any(1)
    # Before clipping, which makes a number of what is infinite.
    is_finite = (jnp.isfinite(entries).all(1) | ~counted).reshape(-1, rule.clients).all(1)
    presence = _presence(rule, drop_key, participates, is_finite)
    vectors = quantise(jnp.clip(weighted, -1.0, 1.0), rule.ring_bits)
    threshold, ring = least_answers(rule, participates), ring_mask(rule.ring_bits)
    total, succeeded = secure_sum(sum_key, vectors, presence, threshold, ring)
    found = unravel(dequantise(total, rule.ring_bits))
    weight = jnp.where(found["weight"] > 0.0, found["weight"], 1.0)
    return SecureMean(
        update=jax.tree.map(lambda leaf: rule.clip * leaf / weight, found["update"]),
        row_shares={name: rows / weight for name, rows in found["rows"].items()},
        arrived=jnp.repeat(presence.arrived, rule.clients) & counted,
        report=SecureReport(
            failed=1.0 - succeeded.astype(jnp.float32),
            dropped=(participates & ~presence.arrived).sum() / jnp.maximum(participates.sum(), 1),
            clipped=_share_beyond(updates, entries, counted),
        ),
    )


def quantise(entries: Float[Array, "N D"], ring_bits: Any) -> UInt32[Array, "N D"]:
    """Numbers within -1 .. 1 as whole numbers modulo ``2^32``."""
    return jnp.round(entries * _levels(ring_bits)).astype(jnp.int32).astype(jnp.uint32)


def dequantise(total: UInt32[Array, " D"], ring_bits: Any) -> Float[Array, " D"]:
    """Sums of :func:`quantise`, given modulo ``2^b``."""
    unused = (32 - jnp.asarray(ring_bits)).astype(jnp.int32)
    signed = (total.astype(jnp.int32) << unused) >> unused
    return signed.astype(jnp.float32) / _levels(ring_bits)


def ring_mask(ring_bits: Any) -> UInt32[Array, ""]:
    """``2^b - 1``, the largest number of the ring."""
    return jnp.uint32(2**32 - 1) >> (32 - jnp.asarray(ring_bits)).astype(jnp.uint32)


def least_answers(rule: SecureAggregation, participates: Bool[Array, " N"]) -> Int[Array, ""]:
    """Answers without which a round fails: the threshold's share of the parties, rounded up."""
    wanted = jnp.ceil(rule.threshold * participates.sum() - 1e-4)
    return jnp.maximum(wanted, LEAST_ANSWERS).astype(jnp.int32)


def _levels(ring_bits: Any) -> Float[Array, ""]:
    """Steps of the quantiser from 0 to 1: a quarter of the ring."""
    return (jnp.uint32(1) << (jnp.asarray(ring_bits) - 2).astype(jnp.uint32)).astype(jnp.float32)


def _entries(rule: SecureAggregation, updates: PyTree, met: Mapping[str, Array]) -> tuple:
    """Vectors ``[N, D]`` of all clients before clip and weight, and how to read one."""
    tree = {
        "weight": jnp.ones(len(jax.tree.leaves(updates)[0])),
        "rows": {name: rows.astype(jnp.float32) for name, rows in met.items()},
        "update": jax.tree.map(lambda leaf: leaf / rule.clip, updates),
    }
    one = jax.tree.map(lambda leaf: leaf[0], tree)
    return jax.vmap(lambda own: ravel_pytree(own)[0])(tree), ravel_pytree(one)[1]


def _presence(
    rule: SecureAggregation, key: Array, participates: Array, is_finite: Array
) -> Presence:
    """Who is left after the upload and after the answers."""
    drawn = jax.random.uniform(key, (2, len(participates))) >= rule.dropout_probability
    arrived = participates & drawn[0] & is_finite
    return Presence(participates, arrived, arrived & drawn[1])


def _share_beyond(updates: PyTree, entries: Array, counted: Array) -> Array:
    """Share of the entries of the participants' updates beyond the clip; others never are."""
    size = sum(leaf[0].size for leaf in jax.tree.leaves(updates))
    beyond = jnp.where(counted, (jnp.abs(entries) > 1.0).sum(1), 0).sum()
    return beyond / (size * jnp.maximum(counted.sum(), 1))
