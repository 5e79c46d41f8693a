"""Messages and masks of secure aggregation, docs/system-model.md, section 13.

They are those of ``learning/federated/secure_aggregation.py``. Keys and shares are as long as with
X25519 and Shamir's sharing of its secrets, whatever the simulation computes with.
"""

from typing import NamedTuple

from jaxtyping import Array, Float

from collapipe_jax.core.quantity import Struct, positive, quantity

_EXTRA_MESSAGES = 6
"""Public keys, shares and answers up; public keys, shares and the list of who arrived down."""
_Broadcast = Float[Array, "..."]


class SecureExchange(Struct):
    """What secure aggregation adds to the parameters of a round."""

    number_ratio: Array = positive("bits of a masked entry over those of a parameter", "r")
    count_bits: Array = quantity(
        "entries of a masked vector beside the parameters: a weight, and one for every row of the "
        "embedding's tables that is averaged over its readers",
        "D_C",
    )
    secret_bits: Array = positive("a public key, and a share of a secret", "a")
    dropout_probability: Array = quantity(
        "probability that a party drops out before its upload, and again before its answer",
        "d",
        bounds=">= 0 and < 1",
    )
    party_mask_bytes_per_s: Array = positive("speed at which a node draws masks", "v_C")
    server_mask_bytes_per_s: Array = positive("speed at which the edge server does", "v_{ES}")


class SecureMessages(NamedTuple):
    """Secure aggregation of a round for a party; shapes broadcast."""

    upload_bits: _Broadcast  # all that it sends
    public_key_bits: _Broadcast  # of the others, the same for all
    share_bits: _Broadcast  # encrypted for it alone
    mask_s: _Broadcast  # in which it draws its masks
    unmask_s: _Broadcast  # in which the edge server draws those to take off

    @property
    def received_bits(self) -> _Broadcast:
        """All that it receives beside the parameters."""
        return self.public_key_bits + self.share_bits


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


def exchange_s(secure: SecureMessages, link_overhead_s: _Broadcast) -> _Broadcast:
    """Time of secure aggregation besides its bits. Source: docs/system-model.md (41)."""
    return _EXTRA_MESSAGES * link_overhead_s + secure.mask_s + secure.unmask_s


def mask_energy_j(secure: SecureMessages, power_w: _Broadcast) -> _Broadcast:
    """Energy of a party's masks at its power while it computes.

    Source: docs/system-model.md (42).
    """
    return power_w * secure.mask_s
