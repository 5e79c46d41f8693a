"""Messages and masks of secure aggregation, docs/system-model.md, section 13.

They are those of ``learning/federated/secure_aggregation.py``. Keys and shares are as long as with
X25519 and Shamir's sharing of its secrets, whatever the simulation computes with.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from collapipe_jax.edge.cost.problem import RoundProblem, SecureExchange
from collapipe_jax.edge.cost.terms.addition import SenderAddition, Senders

_EXTRA_MESSAGES = 6
"""Public keys, shares and answers up; public keys, shares and the list of who arrived down."""
_Broadcast = Float[Array, "..."]


class SecureMessages(NamedTuple):
    """Secure aggregation of a round for a party; shapes broadcast."""

    upload_bits: _Broadcast  # all that it sends
    public_key_bits: _Broadcast  # of the others, the same for all
    share_bits: _Broadcast  # encrypted for it alone
    mask_s: _Broadcast  # in which it draws its masks
    unmask_s: _Broadcast  # in which the edge server draws those to take off


def secure_messages(
    secure: SecureExchange, model_bits: _Broadcast | float, parties: _Broadcast
) -> SecureMessages:
    """Messages and masks of each of some parties that send a model of these bits in the clear.

    Source: docs/system-model.md (38), (39), (40).
    """
    masked_bits = secure.number_ratio * model_bits + secure.count_bits
    others, stays = parties - 1.0, 1.0 - secure.dropout_probability
    # Own masks of those that arrive, and masks between them and those that do not.
    left_over = parties * stays * (1.0 + others * secure.dropout_probability)
    return SecureMessages(
        upload_bits=masked_bits + 3.0 * parties * secure.secret_bits,
        public_key_bits=2.0 * others * secure.secret_bits,
        share_bits=2.0 * others * secure.secret_bits,
        mask_s=parties * masked_bits / (8.0 * secure.party_mask_bytes_per_s),
        unmask_s=left_over * masked_bits / (8.0 * secure.server_mask_bytes_per_s),
    )


def secure_exchange(problem: RoundProblem, senders: Senders) -> SenderAddition:
    """Secure aggregation among all senders of a round, if it is on.

    Masked parameters take the place of those in the clear. Public keys are the same for all.
    Source: docs/system-model.md (41), (42).
    """
    exchange, power_w = problem.secure_aggregation, senders.power_w
    if exchange is None:
        return SenderAddition()
    # Parties are along the first axes, before those of a batch.
    axes = tuple(range(jnp.ndim(senders.takes_part) - jnp.ndim(exchange.secret_bits)))
    parties = jnp.sum(senders.takes_part, axis=axes, dtype=power_w.dtype)
    messages = secure_messages(exchange, senders.model_bits, parties)
    overhead_s = _EXTRA_MESSAGES * problem.compute.link_overhead_s
    return SenderAddition(
        upload_bits=messages.upload_bits - senders.update_bits,
        shared_bits=messages.public_key_bits,
        own_bits=messages.share_bits,
        upload_s=overhead_s + messages.mask_s + messages.unmask_s,
        node_j=power_w * messages.mask_s,
    )
