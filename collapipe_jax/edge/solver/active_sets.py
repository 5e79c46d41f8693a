"""Active sets of a cluster, with powers, ranked by an estimate of their cost.

The sets of active devices worth trying are many, and each needs powers. A node's power
matters to the messages that it sends, whatever the other powers of its cluster are. So every
node takes the cheapest of a few powers by itself. This ranking rests on approximations that
nothing else makes: shares are equal, blocks are split at will, and losses are charged at an
expected hazard. The sets that it selects are then costed as they are
(:mod:`cluster_search`).

Arrays have nodes first, clusters next, then the sets ``A`` and the batch ``R``. A problem or
coupling for them has 1 in place of ``A``.
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from collapipe_jax.core.batch_axis import fusion_barrier, max_nodes, sum_nodes
from collapipe_jax.edge.cost.chain import (
    Chain,
    add_at_gateway,
    at_gateway,
    at_others,
    ending_hops,
    gain_to_next,
    gateway_gains,
    gateway_nodes,
)
from collapipe_jax.edge.cost.computing import computing_energy_j, pass_times, product_or_zero
from collapipe_jax.edge.cost.convergence import cluster_divergence, participating_weight
from collapipe_jax.edge.cost.decision import Allocation
from collapipe_jax.edge.cost.evaluate import RoundTerms, receiving_cost
from collapipe_jax.edge.cost.fixed_partition import FixedPartition
from collapipe_jax.edge.cost.link_quality import d2e_hazard
from collapipe_jax.edge.cost.objective import unit_costs
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.terms import partition_additions
from collapipe_jax.edge.network.channel import (
    d2d_sinr,
    downlink_sinr,
    narrowed_bit_time_s,
    transport_block_hazard,
    uplink_sinr,
)
from collapipe_jax.edge.solver.smooth_objective import Coupling

# Segments of given sets of devices, filled with the cheapest blocks first.
#
# With shares and powers given, the cost of a cluster is linear in the blocks of each device but
# for its longest stages. So it is cheapest to fill a set under a ceiling on a device's time in
# the order of unit costs, and the best of several ceilings is taken. Arrays have nodes first,
# clusters next, then the sets ``A`` and the batch ``R``.

_CEILINGS = (1.0, 1.2, 1.6, 2.5, np.inf)
"""Ceilings on a device's time, over the time of all if blocks could be split at will."""


class LinearCosts(NamedTuple):
    """Cost of sets, linear in the blocks but for the longest stages, ``[N, A, R]`` each."""

    forward_s: Array  # longest stage with one block on every device
    backward_s: Array  # likewise
    rest_s: Array  # latency that blocks do not change
    rest_cost: Array  # likewise of the other costs
    block_s: Array  # latency of a block on a device, ``[K, N, A, R]``
    block_cost: Array  # its other costs, likewise
    # Of a bit from a node to its gateway and back, 0 without parameters, ``[2, K, N, A, R]``
    moved_bit_s: Array
    moved_bit_cost: Array  # its other costs, likewise
    stage_s: Array  # forward pass of a block on a device, ``[K, N, 1, R]``
    waits: Array  # how often a round waits for the longest stages


def linear_costs(
    problem: RoundProblem, fixed: FixedPartition, terms: RoundTerms, stage_s: Array, waits: Array
) -> LinearCosts:
    """Cost of sets from the terms of a round with one block on every device.

    Args:
      problem: one round.
      fixed: its partition with one block on every device of the sets, and none before it.
      terms: of the sets' shares and powers.
      stage_s: forward pass of a block on a device, ``[K, N, 1, R]``.
      waits: how often a round waits for the longest stages, ``[1, R]`` or ``[N, 1, R]``.
    """
    forward_s, backward_s = terms.flows.forward.value, terms.flows.backward.value
    passes = problem.workload.local_steps * (1.0 + problem.workload.backward_ratio)
    move_s = terms.air.move_s
    move_cost = fixed.sender_cost_per_j.move * terms.message_j.move
    move_cost = move_cost + receiving_cost(fixed, terms.received_s).move
    work, members = problem.workload, fixed.chain.members[1:]
    block_j = computing_energy_j(work, work.block_flops, problem.by_node.joules_per_flop[1:])
    computed = fixed.costs.energy_per_j[1:] * jnp.where(members, block_j, 0.0)

    def of_blocks(move):
        """What blocks add; of the gateway nothing, since its blocks do not move."""
        both = sum_nodes(move)
        return at_others(jnp.concatenate([jnp.zeros_like(both[:1]), both]), fixed.chain.gateway)

    block_s = passes * fixed.compute.forward_s[1:] + of_blocks(move_s)
    block_cost = computed + of_blocks(move_cost)
    per_bit = 1.0 / jnp.where(fixed.move_bits > 0, fixed.move_bits, 1.0)
    return LinearCosts(
        forward_s=forward_s,
        backward_s=backward_s,
        rest_s=terms.cluster_latency_s - waits * (forward_s + backward_s) - sum_nodes(block_s),
        rest_cost=terms.cluster_cost - sum_nodes(block_cost),
        block_s=block_s,
        block_cost=block_cost,
        moved_bit_s=per_bit * move_s,
        moved_bit_cost=per_bit * move_cost,
        stage_s=stage_s,
        waits=waits,
    )


def cost_at(problem: RoundProblem, linear: LinearCosts, segments: Array) -> tuple[Array, Array]:
    """Latency and other costs of segments, at least one block on every device of their set.

    Args:
      problem: one round.
      linear: cost of the sets.
      segments: ``[K, N, A, R]``.

    Returns:
      Seconds and drift of the queues, ``[N, A, R]`` each.
    """
    slowest_s = max_nodes(segments * linear.stage_s)
    backward_s = problem.workload.backward_ratio * slowest_s
    longest_s = jnp.maximum(linear.forward_s, slowest_s)
    longest_s = longest_s + jnp.maximum(linear.backward_s, backward_s)
    held = segments > 0  # a dead link costs nothing to a device without blocks
    block_s = sum_nodes(jnp.where(held, segments * linear.block_s, 0.0))
    block_cost = sum_nodes(jnp.where(held, segments * linear.block_cost, 0.0))
    latency_s = linear.rest_s + block_s + linear.waits * longest_s
    added = partition_additions(problem, segments)
    bits = jnp.broadcast_to(added.move_bits, linear.moved_bit_s.shape)

    def moved(per_bit):
        return sum_nodes(sum_nodes(product_or_zero(bits, per_bit)))

    node_cost = sum_nodes(unit_costs(problem).energy_per_j * added.node_j)
    cost = linear.rest_cost + block_cost + moved(linear.moved_bit_cost) + node_cost + added.cost
    return latency_s + added.prepare_s + moved(linear.moved_bit_s), cost


def fill_sets(
    linear: LinearCosts,
    active: Array,
    capacity: Array,
    blocks: Array | int,
    latency_per_s: Array,
    cost_of: Callable[[Array], Array],
) -> tuple[Array, Array]:
    """Cheapest segments of sets under several ceilings.

    Args:
      linear: cost of the sets.
      active: devices of the sets, ``[K, N, A, R]``.
      capacity: most blocks of a device, ``[K, N, A, R]`` or ``[K, N, 1, R]``.
      blocks: of a cluster.
      latency_per_s: cost of a second in the order of filling.
      cost_of: cost of segments, which chooses the ceiling.

    Returns:
      Segments ``[K, N, A, R]``, and their cost, infinite where a set cannot hold the blocks.
    """
    comes_first = fill_order(fusion_barrier(latency_per_s * linear.block_s + linear.block_cost))

    def fill(best, limit_s):
        limit = jnp.floor(jnp.maximum(limit_s / linear.stage_s, 1.0) + 1e-4)
        segments = fill_in_order(comes_first, jnp.minimum(limit, capacity), active, blocks)
        cost = jnp.where(sum_nodes(segments) == blocks, cost_of(segments), jnp.inf)
        wins = cost < best[1]
        return (jnp.where(wins, segments, best[0]), jnp.where(wins, cost, best[1])), None

    balanced_s = _balanced_time_s(linear.stage_s, active, blocks)
    ceilings = jnp.array(_CEILINGS).reshape(-1, 1, 1, 1)
    # Up to the longest stage that is there anyway, a device's time costs nothing more.
    free_s = jnp.maximum(linear.forward_s, balanced_s)
    limits_s = jnp.concatenate([balanced_s * ceilings, free_s[None]])
    nothing = jnp.zeros_like(linear.block_s), jnp.full_like(linear.rest_s, jnp.inf)
    return jax.lax.scan(fill, nothing, limits_s)[0]


def _balanced_time_s(stage_s: Array, active: Array, blocks: Array | int) -> Array:
    """Forward time of every device of a set with blocks split at will, ``[N, A, R]``."""
    return blocks / sum_nodes(active.astype(stage_s.dtype) / stage_s)


def fill_order(unit_cost: Array) -> Array:
    """1 where the second device is filled before the first, ``[K, K, ...]``."""
    order = jnp.arange(unit_cost.shape[0])
    first = (order[None] < order[:, None]).reshape(-1, len(order), *[1] * (unit_cost.ndim - 1))
    mine, other = unit_cost[:, None], unit_cost[None]
    return ((other < mine) | ((other == mine) & first)).astype(unit_cost.dtype)


def fill_in_order(comes_first: Array, capacity: Array, active: Array, blocks: Array | int) -> Array:
    """Cheapest segments of a cluster when every block costs the same on a device.

    Every active device gets one block, and the rest goes to the cheapest devices first:
    optimal, since blocks of one device are alike.

    Args:
      comes_first: as :func:`fill_order` returns it.
      capacity: ``[K, ...]``.
      active: ``[K, ...]``.
      blocks: of a cluster.

    Returns:
      ``[K, ...]``, whole numbers; zeros where the active devices cannot hold the blocks,
      or are more than there are blocks.
    """
    room = fusion_barrier(jnp.where(active, capacity - 1.0, 0.0))
    rest = blocks - sum_nodes(active.astype(room.dtype))
    before = sum(comes_first[:, k] * room[k] for k in range(room.shape[0]))
    filled = jnp.clip(rest - before, 0.0, room) + active
    short = sum_nodes(jnp.where(active & (capacity < 1.0), 1.0, 0.0))
    enough = (rest >= 0) & (sum_nodes(room) >= rest) & (short == 0)
    return fusion_barrier(jnp.where(enough, filled, 0.0))


LEVELS = (1.0, 0.25, 0.06, 0.015, 0.001)
"""Powers to choose from, over the largest."""
_ALL_SUBSETS_UP_TO = 5
_BOTTLENECK_PART = 0.5
"""Part of the bottleneck that hops are taken to be while it is unknown."""
_EXPECTED_HAZARD = 1.0
_LARGEST_EXPECTED_HAZARD = 4.0
"""Hazard at which losses are charged while powers and shares are chosen, and its limit."""
_DEAD_LINK = 1e30
"""Cost of a block over a link that moves nothing. No block costs nothing there."""


class NodeCosts(NamedTuple):
    """Costs of nodes, whatever set is active: parameters take the whole band."""

    max_power_w: Array  # ``[J, N, 1, R]``
    energy_per_j: Array  # unit cost of a node's energy, likewise
    receive_per_s: Array  # cost of a second that the node receives
    interference_per_w: Array  # cost of a watt of a node on other clusters, likewise
    block_energy: Array  # cost of the energy to compute a block, ``[K, N, 1, R]``
    collect_s: Array  # time to move a block from a device, by level, ``[levels, J, N, 1, R]``
    distribute_s: Array  # and to it, likewise


class ActiveSets(NamedTuple):
    """Active sets, and the messages of their nodes at every power, shares being equal."""

    chain: Chain  # ``[J, N, A, R]``
    full_sinr: Array  # of a hop's messages on the whole band, 1 where idle, ``[2, J, N, A, R]``
    bit_s: Array  # time of a bit of both messages of a node, ``[levels, J, N, A, R]``
    hazard: Array  # of a transport block of both, likewise


class StepCosts(NamedTuple):
    """What a number of micro-batches makes of a local step, ``[N, 1, R]`` unless said."""

    micro_batches: Array  # the number, ``[1, R]``
    bits: Array  # of a micro-batch on a hop, ``[1, R]``
    waits: Array  # how often a round waits for the longest stages, ``[1, R]``
    block_s: Array  # forward pass of a block on a device, ``[K, N, 1, R]``
    latency_per_s: Array  # between a cluster's own cost of a second and that of the round
    excess: Array  # cost of the excess inverse survival of a micro-batch
    d2e_hazard: Array  # of the D2E messages of a micro-batch


class RankedSets(NamedTuple):
    """Active sets with powers."""

    chain: Chain  # ``[J, N, A, R]``
    full_sinr: Array  # as in :class:`ActiveSets`
    power: Array  # over its maximum, ``[J, N, A, R]``
    balanced_s: Array  # forward time of every device with blocks split at will, ``[N, A, R]``
    cost: Array  # estimated, of what differs between sets, likewise


def candidate_sets(preference: Float[Array, "orders K N R"]) -> Bool[Array, "K N A R"]:
    """Sets of active devices worth trying.

    All subsets of few devices; of many, those that take the best devices first, by each
    of several orders of preference, the least first. None is empty.
    """
    orders, devices, *shape = preference.shape
    if devices <= _ALL_SUBSETS_UP_TO:
        subsets = np.array(list(itertools.product((False, True), repeat=devices))[1:])
        return jnp.broadcast_to(
            subsets.T[:, None, :, None], (devices, shape[0], len(subsets), shape[1])
        )
    rank = jnp.argsort(jnp.argsort(preference, axis=1), axis=1)
    sizes = jnp.arange(1, devices + 1).reshape(1, -1, 1, 1, 1)
    sets = (rank[:, None] < sizes).reshape(orders * devices, devices, *shape)
    return jnp.moveaxis(sets, 0, 2)


def node_costs(problem: RoundProblem, coupling: Coupling) -> NodeCosts:
    """Costs of nodes, whichever set is active."""
    radio, work = problem.radio, problem.workload
    by_node, received_w = problem.by_node, coupling.interference_w
    gain, max_power_w = by_node.d2d_gain, by_node.d2d_power_max_w
    gateway = gateway_nodes(problem.routes, len(gain))
    is_gateway = add_at_gateway(jnp.zeros_like(max_power_w), jnp.ones(()), gateway) > 0
    to_gateway, from_gateway = gateway_gains(gain, gateway)
    per_j = unit_costs(problem).energy_per_j
    joules_per_flop = by_node.joules_per_flop[1:]

    def block_s(power_w, gain, received_w):
        sinr = d2d_sinr(radio, _levels() * power_w, gain, jnp.ones(()), received_w)
        bit_s = narrowed_bit_time_s(radio, radio.d2d_bandwidth_hz, sinr)
        return jnp.where(is_gateway, 0.0, work.block_param_bits * bit_s)

    return NodeCosts(
        max_power_w=max_power_w,
        energy_per_j=per_j / radio.amplifier_efficiency,
        receive_per_s=per_j * problem.compute.receive_power_w,
        interference_per_w=coupling.interference_cost_per_w,
        block_energy=per_j[1:] * computing_energy_j(work, work.block_flops, joules_per_flop),
        collect_s=work.update_ratio
        * block_s(max_power_w, to_gateway, at_gateway(received_w, gateway)),
        distribute_s=block_s(at_gateway(max_power_w, gateway), from_gateway, received_w),
    )


def _levels() -> Array:
    """:data:`LEVELS` before the axes of nodes, clusters, sets and the batch."""
    return jnp.array(LEVELS).reshape(-1, 1, 1, 1, 1)


def active_sets(
    problem: RoundProblem, coupling: Coupling, nodes: NodeCosts, members: Array
) -> ActiveSets:
    """Messages of every set at every power, shares being equal."""
    radio, received_w = problem.radio, coupling.interference_w
    members = jnp.concatenate([jnp.ones_like(members[:1]), members])
    gateway = gateway_nodes(problem.routes, len(members))
    chain = Chain(members, None if gateway is None else jnp.broadcast_to(gateway, members.shape))
    gain, one = problem.by_node.d2d_gain, jnp.ones(())
    full = d2d_sinr(radio, nodes.max_power_w[:, None], gain, one, received_w[None])
    backward = jnp.swapaxes(full, 0, 1)
    both = jnp.stack([gain_to_next(full, chain), gain_to_next(backward, chain)])
    full_sinr = jnp.where(chain.hops, both, 1.0)  # a dead link of an idle node is no link
    senders = sum_nodes(chain.hops.astype(full_sinr.dtype))
    share_hz = radio.d2d_bandwidth_hz / senders

    # A node sends forward to the next one, and backward to the one before.
    sent = [(full_sinr[0], chain.hops), *ending_hops(full_sinr[1], chain)]
    sent = [(fusion_barrier(sinr * senders), sends) for sinr, sends in sent]

    def of_both(number):
        numbers = (jnp.where(sends, number(_levels() * sinr), 0.0) for sinr, sends in sent)
        return functools.reduce(jnp.add, numbers)

    return ActiveSets(
        chain=chain,
        full_sinr=full_sinr,
        bit_s=of_both(lambda sinr: narrowed_bit_time_s(radio, share_hz, sinr)),
        hazard=of_both(lambda sinr: transport_block_hazard(radio, sinr)),
    )


def step_costs(
    problem: RoundProblem,
    coupling: Coupling,
    allocation: Allocation,
    can_run: Array,
    micro_batches: Array,
) -> StepCosts:
    """Costs of a local step for a number of micro-batches.

    Args:
      problem: one round.
      coupling: cost of a cluster's latency.
      allocation: its D2E shares and powers are used, ``[N, 1, R]``.
      can_run: clusters that can hold the encoder, ``[N, 1, R]``.
      micro_batches: ``[1, R]``.
    """
    work, radio, learning = problem.workload, problem.radio, problem.learning
    samples, costs = work.batch / micro_batches, unit_costs(problem)
    weight = participating_weight(learning.cluster_weight, can_run)
    divergence = cluster_divergence(learning, weight, work.batch, micro_batches)
    by_node = problem.by_node.d2e_gain
    gain = at_gateway(by_node, gateway_nodes(problem.routes, len(by_node)))
    up_sinr = uplink_sinr(radio, allocation.d2e_power, gain, allocation.d2e_share)
    return StepCosts(
        micro_batches=micro_batches,
        bits=samples * work.activation_bits,
        waits=work.local_steps * (micro_batches - 1.0),
        block_s=pass_times(problem, micro_batches).block_s,
        latency_per_s=0.5 * (costs.latency_per_s + coupling.latency_cost_per_s),
        excess=costs.divergence * divergence.per_excess,
        d2e_hazard=d2e_hazard(problem, samples, up_sinr, downlink_sinr(radio, gain)),
    )


def rank_sets(
    problem: RoundProblem, nodes: NodeCosts, sets: ActiveSets, step: StepCosts
) -> RankedSets:
    """Powers of every set, and an estimate of its cost at them."""
    work, compute = problem.workload, problem.compute
    chain = sets.chain
    member = chain.members[1:].astype(step.block_s.dtype)
    balanced_s = _balanced_time_s(step.block_s, chain.members[1:], work.cluster_blocks)
    blocks = member / step.block_s * balanced_s
    power, cost = _cheapest_powers(problem, nodes, sets, step, blocks)
    devices, passes = sum_nodes(member), 1.0 + work.backward_ratio
    busy_s = (work.local_steps * devices + step.waits) * passes * balanced_s
    hops = sum_nodes(chain.hops.astype(step.block_s.dtype))
    overhead_s = 2.0 * work.local_steps * hops * compute.link_overhead_s
    energy = sum_nodes(blocks * nodes.block_energy)
    cost = sum_nodes(jnp.where(chain.active, cost, 0.0)) + energy
    cost = cost + step.latency_per_s * (busy_s + overhead_s)
    return RankedSets(chain, sets.full_sinr, power, balanced_s, cost)


def _cheapest_powers(
    problem: RoundProblem, nodes: NodeCosts, sets: ActiveSets, step: StepCosts, blocks: Array
) -> tuple[Array, Array]:
    """The cheapest power of every node of every set, shares being equal.

    Blocks are collected from the devices and distributed by the gateway.

    Returns:
      Powers over their maxima, and costs of nodes at them, ``[J, N, A, R]`` each.
    """
    work, per_s = problem.workload, step.latency_per_s
    max_power_w = _levels() * nodes.max_power_w
    # As if the receiver's unit cost were the sender's.
    energy_per_s = max_power_w * nodes.energy_per_j + nodes.receive_per_s
    round_bits = work.local_steps * work.batch * work.activation_bits
    gateway = gateway_nodes(problem.routes, len(nodes.max_power_w))
    of_gateway = at_gateway(jnp.swapaxes(energy_per_s, 0, 1), gateway)[:, None]
    per_bit, interference, collect, distribute = fusion_barrier(
        (
            energy_per_s * round_bits,
            max_power_w * nodes.interference_per_w,
            _finite((per_s + energy_per_s) * nodes.collect_s),
            _finite((per_s + of_gateway) * nodes.distribute_s),
        )
    )
    blocks = jnp.concatenate([jnp.zeros_like(blocks[:1]), blocks])
    bit_cost = cost_per_bit_s(problem, step, sets.chain.hops)
    hazard_cost = cost_per_hazard(problem, step)
    blocks, bit_cost, hazard_cost = fusion_barrier((blocks, bit_cost, hazard_cost))

    distributed = sum_nodes(jnp.moveaxis(blocks * distribute, 1, 0))
    cost = (bit_cost + per_bit) * sets.bit_s + hazard_cost * sets.hazard
    cost = cost + interference + blocks * collect
    by_gateway = jax.vmap(lambda by_node, own: add_at_gateway(by_node, own, gateway))
    cost = fusion_barrier(by_gateway(cost, distributed))
    best, least = jnp.full_like(cost[0], LEVELS[0]), cost[0]
    for index, power in enumerate(LEVELS[1:], start=1):
        best = jnp.where(cost[index] < least, power, best)
        least = jnp.minimum(cost[index], least)
    return fusion_barrier((best, least))


def _finite(cost: Array) -> Array:
    return jnp.nan_to_num(cost, nan=_DEAD_LINK, posinf=_DEAD_LINK)


def cost_per_bit_s(problem: RoundProblem, step: StepCosts, has_hop: Array) -> Array:
    """Cost of a second longer for a bit of a hop's messages, ``[N, A, R]``."""
    hops = sum_nodes(has_hop.astype(step.bits.dtype))
    bottleneck_part = _BOTTLENECK_PART * problem.radio.hops_per_stage
    waits = (step.micro_batches - 1.0) * bottleneck_part / hops
    return step.latency_per_s * problem.workload.local_steps * step.bits * (1.0 + waits)


def cost_per_hazard(problem: RoundProblem, step: StepCosts) -> Array:
    """Cost of a transport block's hazard on a hop at the expected loss, ``[N, 1, R]``."""
    expected = jnp.minimum(step.d2e_hazard + _EXPECTED_HAZARD, _LARGEST_EXPECTED_HAZARD)
    return step.excess * jnp.exp(expected) * step.bits / problem.radio.transport_block_bits
