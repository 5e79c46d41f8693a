"""Updates in few bits: rounded at random to a grid, with what is left added to the next ones.

A party's update is its copy after a round less the global parameters before it. Numbers of a
group share a scale. A group is of one block, of the embedding or of the decoder, since each may
lie on a node of its own.

Rounding is unbiased, so descent converges without residuals, too. Errors of rounds then add up as
a random walk does. With residuals, all that a party sent differs from all of its updates by
the last residual alone. This has a bound from 3 levels on: no entry is above the largest of any
update over ``levels - 1``.

Source: Alistarh et al. 1610.02132 (QSGD, here with the largest magnitude as scale); Seide et al.
2014 and Karimireddy et al. 1901.09847 (error feedback).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Key

from collapipe_jax.learning.federated.aggregation import Participation, aggregate
from collapipe_jax.learning.models.layers import Params

GROUP = 256
"""Numbers that share a scale."""
_SCALE_BITS = 32


@struct.dataclass(kw_only=True)
class UpdateQuantiser:
    """How updates are rounded."""

    levels: Any  # of the grid on each side of zero, an array value
    # Whether a party adds what rounding leaves to its next update
    feedback: bool = struct.field(pytree_node=False, default=True)
    # Clients of a control unit that sends their mean, rounded once more; 1 where all send theirs
    clients: int = struct.field(pytree_node=False, default=1)


class Residuals(NamedTuple):
    """Parts of updates that are not sent yet; one that sits out keeps its own."""

    clients: Params  # leaves ``[N, ...]``
    control_units: Params | None  # of those that send means; None where there are none


def quantiser_of(
    number_bits: int, clients: int = 1, feedback: bool = True
) -> UpdateQuantiser | None:
    """Grid of numbers of so many bits; None where they are 0, which rounds nothing."""
    if not number_bits:
        return None
    levels = 2.0 ** (number_bits - 1) - 1.0
    return UpdateQuantiser(levels=levels, feedback=feedback, clients=clients)


def update_ratio(update_number_bits: int, parameter_number_bits: int, numbers: int) -> float:
    """Bits of a parameter on its way up over those on its way down.

    Source: docs/system-model.md (47).

    Args:
      update_number_bits: of a rounded number without its scale; 0 rounds nothing.
      parameter_number_bits: of any other number.
      numbers: that travel for a parameter; only its own is rounded.
    """
    rounded_bits = parameter_number_bits
    if update_number_bits:
        rounded_bits = update_number_bits + _SCALE_BITS / GROUP
    return 1.0 + (rounded_bits / parameter_number_bits - 1.0) / numbers


def rounding_variance(levels: float, group: int = GROUP) -> float:
    """Largest variance of a rounded group over its squared norm, docs/theory.md (T28)."""
    return 0.5 * (math.sqrt(1.0 + (group - 1) / levels**2) - 1.0)


def round_numbers(
    numbers: Float[Array, " P"], levels: Float[Array, ""] | float, key: Key[Array, ""]
) -> Float[Array, " P"]:
    """Numbers rounded at random to the grids of their groups, each right in the mean.

    Source: docs/system-model.md (48).
    """
    groups = jnp.pad(numbers, (0, -numbers.size % GROUP)).reshape(-1, GROUP)
    scale = jnp.abs(groups).max(axis=1, keepdims=True)
    scale = jnp.where(scale > 0.0, scale, 1.0)
    place = groups / scale * levels
    below = jnp.floor(place)
    above = jax.random.uniform(key, place.shape, place.dtype) < place - below
    return ((below + above) / levels * scale).reshape(-1)[: numbers.size]


def round_update(update: Params, levels: Float[Array, ""] | float, key: Key[Array, ""]) -> Params:
    """A party's update, or what it makes of it, on the grids of its groups."""

    def rounded(part: Params, key: Array) -> Params:
        numbers, restore = ravel_pytree(part)
        return restore(round_numbers(numbers, levels, key))

    keys = dict(zip(update, jax.random.split(key, len(update)), strict=True))
    found = {name: rounded(part, keys[name]) for name, part in update.items() if name != "encoder"}
    if "encoder" in update:
        blocks = len(jax.tree.leaves(update["encoder"])[0])
        of_blocks = jax.random.split(keys["encoder"], blocks)
        found["encoder"] = jax.vmap(rounded)(update["encoder"], of_blocks)
    return found


def empty_residuals(
    quantiser: UpdateQuantiser | None, params: Params, clients: int
) -> Residuals | None:
    """Residuals before the first round; None where nothing is rounded, or nothing fed back."""
    if quantiser is None or not quantiser.feedback:
        return None

    def zeros(parties: int) -> Params:
        return jax.tree.map(lambda leaf: jnp.zeros((parties, *leaf.shape), leaf.dtype), params)

    sends_means = quantiser.clients > 1
    return Residuals(zeros(clients), zeros(clients // quantiser.clients) if sends_means else None)


def send_updates(
    updates: Params,
    residuals: Params | None,
    participates: Bool[Array, " N"],
    sent: Params | None,
    levels: Float[Array, ""] | float,
    key: Key[Array, ""],
) -> tuple[Params, Params | None]:
    """What arrives of updates ``[N, ...]``, and the residuals after it, if there are any.

    Source: docs/system-model.md (49).

    Args:
      updates, residuals: leaves ``[N, ...]``.
      participates: residuals of the others stay, and what arrives of them is not to be read.
      sent: as in ``Participation``; the others arrive as they are.
      levels: as in :class:`UpdateQuantiser`.
      key: of the round.
    """
    whole = updates if residuals is None else jax.tree.map(jnp.add, updates, residuals)
    keys = jax.random.split(key, participates.size)
    rounded = jax.vmap(round_update, in_axes=(0, None, 0))(whole, levels, keys)

    def by_party(new: Array, old: Array) -> Array:
        return jnp.where(participates.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    def by_number(is_sent: Array, new: Array, old: Array) -> Array:
        return jnp.where(is_sent[None], new, old)

    def chosen(new: Params, old: Params) -> Params:
        found = jax.tree.map(by_party, new, old)
        return found if sent is None else jax.tree.map(by_number, sent, found, old)

    if residuals is None:
        return chosen(rounded, updates), None
    left = jax.tree.map(jnp.subtract, whole, rounded)
    return chosen(rounded, updates), chosen(left, residuals)


def quantised_mean(
    quantiser: UpdateQuantiser,
    residuals: Residuals | None,
    updates: Params,
    clients: Participation,
    key: Key[Array, ""],
) -> tuple[Params, Residuals | None]:
    """Weighted mean of what arrives of updates ``[N, ...]`` at the server, and the residuals.

    Control units that average updates of their clients round the mean, with residuals of their own.
    """
    shares, levels = clients.shares, quantiser.levels
    key, mean_key = jax.random.split(key)
    before, means_before = (None, None) if residuals is None else residuals
    arrived, own = send_updates(updates, before, shares > 0.0, clients.sent, levels, key)
    if quantiser.clients == 1:
        return aggregate(arrived, shares), None if own is None else Residuals(own, None)
    part = shares.reshape(-1, quantiser.clients)
    total = part.sum(1)
    part = part / jnp.where(total > 0.0, total, 1.0)[:, None]
    arrived = jax.tree.map(lambda leaf: leaf.reshape(*part.shape, *leaf.shape[1:]), arrived)
    means, left = send_updates(
        jax.vmap(aggregate)(arrived, part),
        means_before,
        total > 0.0,
        clients.sent,
        levels,
        mean_key,
    )
    return aggregate(means, total), None if own is None else Residuals(own, left)
