"""Terms that add to a round: bits, seconds, joules, and costs of the objective.

A term is a function of the problem and of who takes part. It looks itself whether it is on, and
adds zeros otherwise. Numbers broadcast against senders, devices and nodes. The sums of all terms
are at the end; a new term is a function and an entry there.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from collapipe_jax.core.batch_axis import sum_nodes
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.chain import at_others, chain_of
from collapipe_jax.edge.cost.computing import product_or_zero
from collapipe_jax.edge.cost.decision import Broadcast, Segments
from collapipe_jax.edge.cost.problem import EmbeddingRows, RoundProblem, SecureExchange, Workload
from collapipe_jax.edge.network.channel import d2d_sinr, narrowed_bit_time_s


class Senders(NamedTuple):
    """Who talks to the base station in a round: gateways, or devices as clients."""

    takes_part: Bool[Array, "..."]
    model_bits: Broadcast | float  # parameters that one receives
    update_bits: Broadcast | float  # the same on their way up
    nodes: Broadcast | float  # that one speaks for, itself included
    power_w: Broadcast  # that one draws while it computes
    samples: Num[Array, "..."]  # of a local step that one speaks for


class SenderAddition(NamedTuple):
    """What every sender exchanges with the base station beside its parameters."""

    upload_bits: Broadcast | float = 0.0
    shared_bits: Broadcast | float = 0.0  # that it receives, the same for all
    own_bits: Broadcast | float = 0.0  # that it receives, for it alone
    upload_s: Broadcast | float = 0.0  # time besides these bits
    node_j: Broadcast | float = 0.0  # energy besides these bits


class PartitionAddition(NamedTuple):
    """What a pipeline's partition adds inside of a cluster."""

    move_bits: Broadcast | float = 0.0  # collected from a device and distributed to it
    prepare_s: Broadcast | float = 0.0  # before blocks are distributed
    node_j: Broadcast | float = 0.0
    cost: Broadcast | float = 0.0  # in units of (P2)


# Reports and grants, docs/system-model.md, section 14.
#
# Before a round every node that takes part reports its channel and its queue, and is granted
# its blocks, shares and powers. A sender passes both on for the nodes it speaks for. They travel
# as parameters do: on the whole D2D band of a cluster, and on the sender's share of the D2E band.


def d2e_signals(problem: RoundProblem, senders: Senders) -> SenderAddition:
    """Reports and grants between senders and the base station, if they count.

    Source: docs/system-model.md (43).
    """
    signals = problem.signalling
    if signals is None:
        return SenderAddition()
    return SenderAddition(
        upload_bits=senders.nodes * signals.report_bits,
        own_bits=senders.nodes * signals.grant_bits,
    )


def d2d_signals(problem: RoundProblem, segments: Segments) -> PartitionAddition:
    """Reports and grants between the gateway and the other active nodes, if they count."""
    signals = problem.signalling
    if signals is None:
        return PartitionAddition()
    bits = jnp.stack(jnp.broadcast_arrays(signals.report_bits, signals.grant_bits))
    bits = bits.reshape(2, *[1] * (segments.ndim - bits.ndim + 1), *bits.shape[1:])
    chain = chain_of(problem, segments)
    return PartitionAddition(move_bits=jnp.where(at_others(chain.active, chain.gateway), bits, 0.0))


# Rows of the embedding that alone travel where they are read, docs/system-model.md, section 21.
#
# A party asks for the rows of its texts by their numbers, gets these with its other parameters, and
# returns their updates. What it does not read it neither gets nor sends.

ROWS = ("all", "touched")
"""Rows of the table of tokens that travel: whole tables, or those that a round reads."""
_Samples = Num[Array, "..."]
_LEAST = 1e-30  # between samples of neighbouring points, which may be the same


def rows_read(rows: EmbeddingRows, samples: _Samples) -> Float[Array, "..."]:
    """Rows that mini-batches of so many samples read in a round, on a line between points.

    Points come first, before axes of a batch. Source: docs/system-model.md (54).
    """
    total = jnp.zeros(())
    for i in range(1, rows.samples.shape[0]):
        width = jnp.maximum(rows.samples[i] - rows.samples[i - 1], _LEAST)
        part = jnp.clip((samples - rows.samples[i - 1]) / width, 0.0, 1.0)
        total = total + part * (rows.rows_read[i] - rows.rows_read[i - 1])
    return total


def reading(problem: RoundProblem, samples: _Samples) -> Workload:
    """The workload of parties whose embedding on a link has the rows of so many samples.

    It is the problem's where whole tables travel. Source: docs/system-model.md (55).
    """
    work, rows = problem.workload, problem.embedding_rows
    if rows is None:
        return work
    unread = rows.table_rows - rows_read(rows, samples)
    bits = jnp.maximum(work.embedding_param_bits - rows.row_bits * unread, 0.0)
    return work.replace(embedding_param_bits=bits)


def with_request(problem: RoundProblem, samples: _Samples, bits: Any) -> Any:
    """Bits that a party sends, and the numbers of the rows that it asks for.

    They are none where whole tables travel. Source: docs/system-model.md (56).
    """
    rows = problem.embedding_rows
    return bits if rows is None else bits + rows.number_bits * rows_read(rows, samples)


def broadcast_bits(
    problem: RoundProblem, participates: Bool[Array, " N *batch"], shared_bits: Broadcast
) -> Broadcast:
    """What a pipeline's broadcast carries, by cluster, from what each would get for itself.

    Rows that other clusters read come along.
    """
    if problem.embedding_rows is None:
        return shared_bits
    batch = problem.workload.batch
    everyone = sum_nodes(participates.astype(shared_bits.dtype)) * batch
    own, union = (reading(problem, each).embedding_param_bits for each in (batch, everyone))
    return shared_bits + jnp.where(participates, union - own, 0.0)


def row_requests(problem: RoundProblem, senders: Senders) -> SenderAddition:
    """Numbers of the rows that senders ask the base station for, if rows travel alone."""
    return SenderAddition(upload_bits=with_request(problem, senders.samples, 0.0))


# Messages and masks of secure aggregation, docs/system-model.md, section 13.
#
# They are those of ``learning/federated/secure_aggregation.py``. Keys and shares are as long as
# with X25519 and Shamir's sharing of its secrets, whatever the simulation computes with.

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


# Changing partitions from round to round, docs/system-model.md, section 5.
#
# Every round hands out parameters anyway (13). A device that takes over blocks must also make room
# and warm up; what that is worth is a cost, off by default.


def moved_encoders(
    before: Num[Array, "K *#any"], segments: Num[Array, "K *#any"], blocks: int
) -> Float[Array, "*any"]:
    """Blocks that devices take over, in whole encoders, by cluster.

    A cluster that held nothing starts anew, and every partition costs it the same: 0.
    """
    taken = jnp.sum(jnp.maximum(segments - before, 0), axis=0) / blocks
    return jnp.where(jnp.sum(before, axis=0) > 0, taken, 0.0)


def switching(problem: RoundProblem, segments: Segments) -> PartitionAddition:
    """Cost of leaving the partition of the round before, if there is one."""
    before = problem.switching
    if before is None:
        return PartitionAddition()
    moved = moved_encoders(jnp.moveaxis(before.segments, 1, 0), segments, problem.workload.blocks)
    return PartitionAddition(cost=before.switching_cost * moved)


# Optimiser state that follows its blocks to other devices, docs/system-model.md, section 12.
#
# A device that gives blocks away sends their moments to its control unit before the round: at full
# power, on the whole D2D band, on which nothing else is on air then. With the blocks' weights they
# go on to the new devices. All of this is fixed with the partition but the rate of the last way.

_ByDevice = Num[Array, "K *#any"]


def changed_blocks(before: _ByDevice, segments: _ByDevice) -> tuple[_ByDevice, _ByDevice]:
    """Blocks that every device takes over from others, and blocks that it gives away.

    Blocks lie on the devices in the order of their index. A cluster that held nothing, or sits
    out, changes nothing. Source: docs/system-model.md (36).
    """
    old_end, end = jnp.cumsum(before, axis=0), jnp.cumsum(segments, axis=0)
    first = jnp.maximum(old_end - before, end - segments)
    kept = jnp.maximum(jnp.minimum(old_end, end) - first, 0)
    changes = jnp.any(before > 0, axis=0) & jnp.any(segments > 0, axis=0)
    return jnp.where(changes, segments - kept, 0.0), jnp.where(changes, before - kept, 0.0)


def moving_moments(problem: RoundProblem, segments: Segments) -> PartitionAddition:
    """Optimiser state that segments move, if it counts.

    What is behind a dead link is lost, and costs nothing. Source: docs/system-model.md (37).

    Raises:
      InputError: if the round has gateways.
    """
    switching, radio = problem.switching, problem.radio
    if switching is None or switching.block_moment_bits is None:
        return PartitionAddition()
    if problem.routes is not None:
        remedy = "Set it to False, or choose a policy without gateways"
        raise InputError("control.moments_move", True, "moments know no gateways", remedy)
    before = jnp.moveaxis(switching.segments, 1, 0)
    taken, given = changed_blocks(before, segments)
    nodes = problem.by_node
    power_w = nodes.d2d_power_max_w[1:]
    sinr = d2d_sinr(radio, power_w, nodes.d2d_gain[1:, 0], 1.0, 0.0)
    sending_s = given * switching.block_moment_bits
    sending_s = sending_s * narrowed_bit_time_s(radio, radio.d2d_bandwidth_hz, sinr)
    sending_s = jnp.where(jnp.isfinite(sending_s), sending_s, 0.0)
    return_s = sum_nodes(sending_s)
    received_j = product_or_zero(problem.compute.receive_power_w, return_s)
    sent_j = power_w / radio.amplifier_efficiency * sending_s
    # A device sends in the time before, and gets what it takes over with its blocks.
    taken_bits = taken * switching.block_moment_bits
    return PartitionAddition(
        move_bits=jnp.stack([jnp.zeros_like(taken_bits), taken_bits]),
        prepare_s=return_s,
        node_j=jnp.concatenate([received_j[None], sent_j]),
    )


# All terms, and their sums.

_Addition = TypeVar("_Addition", SenderAddition, PartitionAddition)

SENDER_TERMS: tuple[Callable[[RoundProblem, Senders], SenderAddition], ...] = (
    secure_exchange,
    d2e_signals,
    row_requests,
)
"""Terms of all rounds, by who talks to the base station."""

PartitionTerm = Callable[[RoundProblem, Segments], PartitionAddition]
PARTITION_TERMS: tuple[PartitionTerm, ...] = (moving_moments, switching, d2d_signals)
"""Terms of pipelines, by the segments of their devices."""


def sender_additions(problem: RoundProblem, senders: Senders) -> SenderAddition:
    """What all terms add to every sender, 0 to one that does not take part."""
    total = _add([term(problem, senders) for term in SENDER_TERMS])
    return jax.tree.map(lambda number: jnp.where(senders.takes_part, number, 0.0), total)


def partition_additions(
    problem: RoundProblem, segments: Segments, terms: Sequence[PartitionTerm] = PARTITION_TERMS
) -> PartitionAddition:
    """What terms add to a partition; of none, nothing."""
    return _add([PartitionAddition(), *(term(problem, segments) for term in terms)])


def _add(additions: Sequence[_Addition]) -> _Addition:
    """Sum of additions of one kind."""
    return functools.reduce(lambda *two: jax.tree.map(operator.add, *two), additions)
