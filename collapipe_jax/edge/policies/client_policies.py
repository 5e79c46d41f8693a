"""Policies of data-parallel learning: every client trains a copy of the model.

All send at full power. Only those that select clients look at energy, and whole models exceed
memory where not even one sample fits. Source: docs/system-model.md, section 6.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.client_round import (
    client_latency_s,
    client_memory_bytes,
    client_times,
    model_ends,
    sends,
    total_s,
)
from collapipe_jax.edge.cost.computing import block_capacity
from collapipe_jax.edge.cost.decision import ClientDecision
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import client_limit_bytes, server_load
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.round_cost import ClientTimes
from collapipe_jax.edge.policies.client_shares import (
    SHARES,
    SPLITS,
    equal_shares,
    even_parts,
    fastest_shares,
    min_max_parts,
    min_max_shares,
    reliable_shares,
)
from collapipe_jax.edge.policies.sit_out import in_time

_Build = Callable[[Bool[Array, "N C"]], ClientDecision]
_POSITIVE = range(1, 2**31)
_CUTS = ("half", "best")
"""Rules for the cut of a split model."""
_ROUGH_HALVINGS = 14
"""To rank cuts and micro-batches: times to under a percent, in a quarter of the work."""
BEST = "best"
"""The fewest pieces that fit memory; the number of clients, or of micro-batches, or the cut that
keeps limits and ends first."""


class ClientOptions(NamedTuple):
    """Keys of data-parallel policies. Source: docs/system-model.md, section 6."""

    shares: str = "min_max"  # of the D2E band, by :data:`SHARES`
    split: str = "min_max"  # of a mini-batch, by :data:`SPLITS`
    accumulation: int | str = BEST  # pieces of a part, of whole models
    broadcast: bool = True  # parameters come down to all clients in one transmission
    deadline: float = 0.0  # of a client, in reference latencies; 0 is off


def vanilla_fl(problem: RoundProblem, **options: Any) -> ClientDecision:
    """Federated averaging (McMahan et al. 1602.05629): every device trains the whole model.

    The decision may exceed memory and budgets. Options are those of :class:`ClientOptions`.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    return _whole_models(problem, "devices", ClientOptions(**options))


def selected_fl(problem: RoundProblem, clients: int | str = BEST, **options: Any) -> ClientDecision:
    """Federated averaging over selected devices (FedCS, Nishio and Yonetani 1804.08333).

    In every cluster those devices train that keep memory and budgets and would end first. Where too
    few keep them, those follow that exceed them least. Number and split are taken with
    which the round keeps all limits and ends first.

    Args:
      problem: of the round.
      clients: of a cluster, or ``best``.
      **options: those of :class:`ClientOptions`.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    own = ClientOptions(**options)
    build = _builder(problem, "devices", own)
    there = in_time(problem, build, _available(problem, "devices"), own.deadline)

    def decide(number: Array) -> ClientDecision:
        return _splits(problem, build(_best_clients(problem, build, there, number, own)), own)

    number = find_count("policy.clients", clients, range(1, problem.devices + 1))
    numbers = jnp.arange(1, problem.devices + 1) if number == BEST else jnp.array([number])
    decisions = jax.tree.map(jnp.concatenate, jax.vmap(decide)(numbers))
    load, latency_s = jax.vmap(lambda each: _load_and_latency(problem, each))(decisions)
    best = _by_limits(jnp.max(load, axis=(1, 2)), jnp.max(latency_s, axis=(1, 2)))[0]
    return jax.tree.map(lambda leaf: leaf[best], decisions)


def control_unit_fl(problem: RoundProblem, **options: Any) -> ClientDecision:
    """Federated averaging over control units: devices do nothing.

    The decision may exceed memory and budgets. Options are those of :class:`ClientOptions`.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    return _whole_models(problem, "control_units", ClientOptions(**options))


def hierarchical_fl(problem: RoundProblem, **options: Any) -> ClientDecision:
    """Hierarchical federated averaging (HierFAVG, Liu et al. 1905.06641).

    Devices train whole models, and their control unit uploads the mean. The decision may
    exceed memory and budgets. Options are those of :class:`ClientOptions`.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder.
    """
    return _whole_models(problem, "hierarchical", ClientOptions(**options))


def splitfed(
    problem: RoundProblem,
    cut: str = "half",
    client_micro_batches: int | str = BEST,
    tier: str = "devices",
    **options: Any,
) -> ClientDecision:
    """Split federated learning (Thapa et al. 2004.12088): the first blocks on every client.

    They are at most as many as fit the smallest participating client. Where none fits,
    clients train the embedding alone. The decision may exceed budgets, and memory where not
    even the embedding fits.

    Args:
      problem: of the round.
      cut: blocks on a client; ``half`` of them; or ``best``, with the least latency of all that
        the edge server has room for.
      client_micro_batches: most micro-batches of a client's part, pipelined as by Liu et al.
        2511.23167; or ``best``, as of the cut.
      tier: who the clients are, ``devices`` or ``control_units``.
      **options: those of :class:`ClientOptions`; clients of split models do not accumulate.

    Raises:
      InputError: if the workload lacks the sizes of embedding and decoder, or there is no
        such cut or number.
    """
    own = ClientOptions(**options)._replace(accumulation=1)
    work, there = problem.workload, _available(problem, tier)

    def build_at(cut: Array, count: Array, available: Bool[Array, "N K"]) -> ClientDecision:
        decision = _at_full_power(
            problem,
            samples=even_parts(work.batch, available),
            client_blocks=cut,
            micro_batches=count,
            whole_model=False,
            tier=tier,
            broadcast=own.broadcast,
        )
        return decision.replace(client_blocks=jnp.minimum(cut, _client_capacity(problem, decision)))

    def load_and_latency(cut: Array, count: Array) -> tuple[Array, Array]:
        halvings = _ROUGH_HALVINGS if number == BEST else None
        decision = _finish(problem, build_at(cut, count, there), own, halvings)
        latency_s = jnp.max(client_latency_s(problem, decision))
        return server_load(problem, decision), latency_s

    wanted, counts = find_cut(cut, work.blocks), work.micro_batch_choices
    number = find_count("policy.client_micro_batches", client_micro_batches, _POSITIVE)
    cuts = jnp.arange(work.blocks + 1) if wanted == BEST else jnp.array([wanted])
    counts = counts if number == BEST else jnp.array([number])
    cuts, counts = (each.ravel() for each in jnp.meshgrid(cuts, counts, indexing="ij"))
    if len(cuts) > 1:
        # A cut above what memory holds is that one again, and the first of equals is taken.
        best = _by_limits(*jax.vmap(load_and_latency)(cuts, counts))[0]
        cuts, counts = cuts[best], counts[best]
    build = functools.partial(build_at, cuts.reshape(()), counts.reshape(()))
    return _finish(problem, build(in_time(problem, build, there, own.deadline)), own)


def _available(problem: RoundProblem, tier: str) -> Bool[Array, "N C"]:
    """Clients that are there: devices with memory, or all control units."""
    there = problem.compute.memory_bytes > 0
    return jnp.ones_like(there[:, :1]) if tier == "control_units" else there


def _whole_models(problem: RoundProblem, tier: str, options: ClientOptions) -> ClientDecision:
    """Clients with whole models in a tier of :class:`.ClientDecision`."""
    build = _builder(problem, tier, options)
    takes_part = in_time(problem, build, _available(problem, tier), options.deadline)
    return _finish(problem, build(takes_part), options)


def _builder(problem: RoundProblem, tier: str, options: ClientOptions) -> _Build:
    """Decision of whole models from who takes part: even parts, equal shares, full power."""
    model_ends(problem.workload)  # or an error

    def build(takes_part: Bool[Array, "N C"]) -> ClientDecision:
        decision = _at_full_power(
            problem,
            samples=even_parts(problem.workload.batch, takes_part),
            client_blocks=jnp.int32(problem.workload.blocks),
            whole_model=True,
            tier=tier,
            broadcast=options.broadcast,
        )
        return _in_pieces(problem, decision, options)

    return build


def _in_pieces(
    problem: RoundProblem, decision: ClientDecision, options: ClientOptions
) -> ClientDecision:
    """The decision with pieces by the key; the least that fit memory, or of one sample."""
    pieces = find_count("policy.accumulation", options.accumulation, _POSITIVE)
    if pieces != BEST:
        pieces = jnp.int32(pieces)
        return decision.replace(accumulation=jnp.broadcast_to(pieces, decision.samples.shape))
    limit_bytes = client_limit_bytes(problem, decision)
    held = decision.replace(accumulation=jnp.maximum(decision.samples, 1))
    one, two = (
        client_memory_bytes(problem.workload, held.replace(samples=number * held.samples))
        for number in (1, 2)
    )
    piece = jnp.maximum(1.0 + jnp.floor((limit_bytes - one) / jnp.maximum(two - one, 1.0)), 1.0)
    pieces = jnp.ceil(decision.samples / jnp.minimum(piece, problem.workload.batch))
    return decision.replace(accumulation=jnp.maximum(pieces, 1).astype(jnp.int32))


def _finish(
    problem: RoundProblem,
    decision: ClientDecision,
    options: ClientOptions,
    halvings: int | None = None,
) -> ClientDecision:
    """The split whose slowest client is fastest; ``halvings`` as of :func:`min_max_shares`."""
    decisions = _splits(problem, decision, options, halvings)
    slowest_s = jax.vmap(lambda each: jnp.max(client_latency_s(problem, each)))(decisions)
    return jax.tree.map(lambda leaf: leaf[jnp.argmin(slowest_s)], decisions)


def _splits(
    problem: RoundProblem,
    decision: ClientDecision,
    options: ClientOptions,
    halvings: int | None = None,
) -> ClientDecision:
    """The decision with parts and shares by their keys, along a first axis.

    The first split is even. With ``min_max`` two follow: by computing alone, and by latency at
    equal shares.
    """
    for key, value, known in (
        ("policy.shares", options.shares, SHARES),
        ("policy.split", options.split, SPLITS),
    ):
        if value not in known:
            raise InputError(key, value, "unknown", f"Choose among: {', '.join(known)}")

    def with_parts(samples: Int[Array, "N C"]) -> ClientDecision:
        return _in_pieces(problem, decision.replace(samples=samples), options)

    def parts_by(part_of: Callable[[ClientTimes], Array]) -> Int[Array, "N C"]:
        def latency_s(samples: Int[Array, "N C"]) -> Float[Array, "N C"]:
            changed = with_parts(samples)
            own_s = part_of(client_times(problem, changed))
            if changed.whole_model:
                return own_s
            # A split model cannot take its part in pieces.
            memory_bytes = client_memory_bytes(problem.workload, changed)
            fits = memory_bytes <= client_limit_bytes(problem, changed)
            return jnp.where(fits, own_s, jnp.inf)

        return min_max_parts(latency_s, problem.workload.batch, decision.samples > 0)

    def finished(samples: Int[Array, "N C"]) -> ClientDecision:
        return _with_shares(problem, with_parts(samples), options, halvings)

    splits = [decision.samples]
    if options.split != "even":
        splits += [parts_by(lambda times: times.computing_s), parts_by(total_s)]
    return jax.vmap(finished)(jnp.stack(splits))


def _with_shares(
    problem: RoundProblem,
    decision: ClientDecision,
    options: ClientOptions,
    halvings: int | None,
) -> ClientDecision:
    """The decision with shares of the D2E band by their key."""
    used = sends(decision)
    decision = decision.replace(d2e_share=equal_shares(used))
    if options.shares == "equal":
        return decision

    def latency_s(share: Array) -> Array:
        own_s = client_latency_s(problem, decision.replace(d2e_share=share))
        return jnp.max(own_s, axis=1, keepdims=True) if decision.tier == "hierarchical" else own_s

    if problem.radio.retransmissions == "reliable":
        most = fastest_shares(latency_s, decision.d2e_share)
    elif decision.whole_model:
        most = 1.0
    else:
        most = reliable_shares(problem, decision)
    return decision.replace(d2e_share=min_max_shares(latency_s, used, most, halvings))


# Selection of clients.


def _best_clients(
    problem: RoundProblem,
    build: _Build,
    there: Bool[Array, "N K"],
    number: Array,
    options: ClientOptions,
) -> Bool[Array, "N K"]:
    """The best clients of every cluster, each with an even part of its batch."""
    part = jnp.ceil(problem.workload.batch / number).astype(jnp.int32)
    decision = build(there)
    share = 1.0 / (number * problem.clusters)
    decision = decision.replace(
        samples=jnp.where(there, part, 0), d2e_share=jnp.where(there, share, 0.0)
    )
    load, latency_s = _load_and_latency(problem, _in_pieces(problem, decision, options))
    order = _by_limits(jnp.where(there, load, jnp.inf), latency_s)
    return there & (jnp.argsort(order, axis=1) < number)


def _load_and_latency(
    problem: RoundProblem, decision: ClientDecision
) -> tuple[Float[Array, "N K"], Float[Array, "N K"]]:
    """Largest part of memory and budget that each device takes, and its latency."""
    cost, control = evaluate(problem, decision), problem.control
    memory = cost.memory_bytes / jnp.maximum(problem.compute.memory_bytes, 1.0)
    energy = (cost.energy_j / control.energy_budget_j)[:, 1:]
    load = jnp.where(decision.samples > 0, jnp.maximum(memory, energy), 0.0)
    return load, client_latency_s(problem, decision)


def _by_limits(load: Float[Array, "*any"], latency_s: Float[Array, "*any"]) -> Int[Array, "*any"]:
    """Indices along the last axis: by latency where limits are kept, then by what exceeds them."""
    exceeds = ~(load <= 1.0)
    return jnp.lexsort((jnp.where(exceeds, load, latency_s), exceeds))


def find_cut(cut: str, blocks: int) -> int | str:
    """Blocks on a client, or ``best``.

    Raises:
      InputError: if it is neither a rule nor a number up to the blocks.
    """
    found = find_count("policy.cut", cut, range(blocks + 1), _CUTS)
    return blocks // 2 if found == "half" else found


def find_count(
    key: str, value: int | str, counts: range, rules: Sequence[str] = (BEST,)
) -> int | str:
    """The value of a key that is a number, perhaps as text, or the name of a rule.

    Raises:
      InputError: if it is neither.
    """
    if value in rules:
        return value
    digits = str(value)
    # Longer ones are out of range, and Python refuses to read thousands.
    if digits.isdecimal() and len(digits) <= len(str(counts[-1])) and int(digits) in counts:
        return int(digits)
    remedy = f"Give a number from {counts[0]} to {counts[-1]}, or one of: {', '.join(rules)}"
    raise InputError(key, value, "no such rule", remedy)


def _client_capacity(problem: RoundProblem, decision: ClientDecision) -> Int[Array, ""]:
    """Most blocks of a split model that fit every client with a sample, up to all of them."""
    work, samples = problem.workload, decision.samples
    largest = jnp.maximum(jnp.max(samples, axis=1, keepdims=True), 1)
    at_once = -(-largest // jnp.minimum(decision.micro_batches, largest))
    limit_bytes = client_limit_bytes(problem, decision)
    room_bytes = limit_bytes - model_ends(work).embedding_static_bytes
    own = work.replace(batch=largest, capacity=None, server_blocks=0, schedule="gpipe")
    fits = block_capacity(own, room_bytes, largest / at_once, 1)
    return jnp.min(fits, where=samples > 0, initial=work.blocks)


def _at_full_power(problem: RoundProblem, samples: Array, **others: Any) -> ClientDecision:
    """A decision with equal shares and full power."""
    limit_w = problem.radio.d2e_power_max_w[:, None]
    none = jnp.zeros_like(samples, limit_w.dtype)
    decision = ClientDecision(samples=samples, d2e_share=none, d2e_power_w=none, **others)
    used = sends(decision)
    return decision.replace(d2e_share=equal_shares(used), d2e_power_w=jnp.where(used, limit_w, 0.0))
