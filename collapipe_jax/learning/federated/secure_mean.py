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

from collapipe_jax.learning.federated.secure_sum import Presence, secure_sum

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
