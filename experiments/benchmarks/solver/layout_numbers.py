"""The numbers of (P2) for one layout, idle nodes left out, as a conic program wants them.

Taken from the package's own cost, mostly from what it says of messages at full power on
the whole band that nobody else disturbs. ``A`` active nodes, ``C`` present clusters, ``D``
D2D messages: hops forward, hops backward, collection, distribution. ``M = D + C``
messages, the uplinks last.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.cost.decision import Decision, active_nodes, next_active, participates
from collapipe_jax.cost.divergence import cluster_divergence, noise_weight, present_weight
from collapipe_jax.cost.energy import node_energy_j
from collapipe_jax.cost.latency import (
    backward_flow_s,
    forward_flow_s,
    latency_parts,
    stage_times,
)
from collapipe_jax.cost.links import Links, message_links
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.network.channel import (
    Radio,
    d2d_sinr,
    interference_w,
    transport_block_hazard,
)
from experiments.benchmarks.solver.smooth_variables import free_links


class Chains(NamedTuple):
    """Who sends what to whom, as matrices of ones and zeros.

    Attributes:
      member: active nodes of a cluster, ``[C, A]``.
      sends, hears, shares: the node that sends a D2D message, that hears it, and whose
        share of the band it uses (none: the whole band), ``[D, A]`` each.
      forward, backward, moves: messages of a cluster in its forward and in its backward
        flow, and those that move parameters between nodes, ``[C, M]`` each.
    """

    member: np.ndarray
    sends: np.ndarray
    hears: np.ndarray
    shares: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    moves: np.ndarray


class MessageNumbers(NamedTuple):
    """Numbers of messages, ``[M]`` each.

    Attributes:
      sinr: at full power on the whole band, without interference.
      time_s: at 1 bit/s/Hz on the whole band.
      blocks: transport blocks; 0 where a loss costs nothing.
      price_per_s: of the sender's energy at full power, over all messages of a round like
        this one, for each second of it.
    """

    sinr: np.ndarray
    time_s: np.ndarray
    blocks: np.ndarray
    price_per_s: np.ndarray


class ClusterNumbers(NamedTuple):
    """Numbers of clusters, ``[C]`` each.

    Attributes:
      forward_s, backward_s: sum of a flow's stages, its messages no more than overhead.
      forward_longest_s, backward_longest_s: the longest of these stages.
      downlink_s, model_downlink_s: a micro-batch's gradient, and encoder and embedding, on
        the whole D2E band.
      model_per_uplink: bits of encoder and embedding over those of an uplink.
      pauses: micro-batches minus 1.
      downlink_hazard: of a micro-batch.
      price_of_excess: of the excess inverse survival.
    """

    forward_s: np.ndarray
    backward_s: np.ndarray
    forward_longest_s: np.ndarray
    backward_longest_s: np.ndarray
    downlink_s: np.ndarray
    model_downlink_s: np.ndarray
    model_per_uplink: np.ndarray
    pauses: np.ndarray
    downlink_hazard: np.ndarray
    price_of_excess: np.ndarray


class RoundNumbers(NamedTuple):
    """Numbers of the round.

    Attributes:
      local_steps: number of them.
      overhead_s: of a message.
      latency_price_per_s: of the round's latency.
      fixed_price: of what no share or power changes.
    """

    local_steps: np.ndarray
    overhead_s: np.ndarray
    latency_price_per_s: np.ndarray
    fixed_price: np.ndarray


class Layout(NamedTuple):
    """All numbers.

    Attributes:
      active, present: which nodes and clusters are meant, ``[N, K + 1]`` and ``[N]``.
      chains, message, cluster, whole: by what they belong to.
      heard: interference over noise at full power, (sender, receiver), ``[A, A]``.
    """

    active: np.ndarray
    present: np.ndarray
    chains: Chains
    message: MessageNumbers
    cluster: ClusterNumbers
    whole: RoundNumbers
    heard: np.ndarray


def layout_numbers(problem: RoundProblem, decision: Decision) -> Layout:
    """Collect the numbers of a layout.

    Args:
      problem: one round of one network.
      decision: its segments and micro-batches are used.
    """
    active = np.asarray(active_nodes(decision.segments))
    present = active[:, 0]
    dense = jax.tree.map(np.asarray, _dense(problem, decision))
    return Layout(
        active=active,
        present=present,
        chains=_chains(active),
        message=_of_messages(dense.message, active),
        cluster=ClusterNumbers(*(leaf[present] for leaf in dense.cluster)),
        whole=dense.whole,
        heard=dense.heard[active][:, active],
    )


def _chains(active: np.ndarray) -> Chains:
    """Chains of active nodes."""
    cluster, node = np.nonzero(active)
    place = np.full(active.shape, -1)
    place[active] = np.arange(cluster.size)
    here, device = np.arange(cluster.size), np.flatnonzero(node > 0)
    there = place[cluster, np.asarray(next_active(active))[cluster, node]]
    control_unit = place[cluster[device], 0]
    senders = [here, there, device, control_unit]
    one_hot = np.eye(cluster.size)
    member = np.equal.outer(np.flatnonzero(active[:, 0]), cluster).astype(float)
    of_device, uplink = member[:, device], np.eye(member.shape[0])

    def messages(forward, backward, moves, up):
        return np.hstack([member * forward, member * backward] + [of_device * moves] * 2 + [up])

    return Chains(
        member=member,
        sends=one_hot[np.concatenate(senders)],
        hears=one_hot[np.concatenate([there, here, control_unit, device])],
        shares=np.vstack([one_hot, one_hot, np.zeros((2 * device.size, cluster.size))]),
        forward=messages(1.0, 0.0, 0.0, uplink),
        backward=messages(0.0, 1.0, 0.0, 0.0 * uplink),
        moves=messages(0.0, 0.0, 1.0, 0.0 * uplink),
    )


def _of_messages(dense: MessageNumbers, active: np.ndarray) -> MessageNumbers:
    """Entries of the messages that are sent, in order."""
    devices, present = active[:, 1:], active[:, 0]
    used = active, active, devices, devices, present
    return MessageNumbers(
        *(
            np.concatenate([value[mask] for value, mask in zip(values, used, strict=True)])
            for values in dense
        )
    )


class _Dense(NamedTuple):
    """The same numbers before idle nodes are left out.

    Attributes:
      message: each a tuple: hops forward and backward ``[N, K + 1]``, collection and
        distribution ``[N, K]``, uplink ``[N]``.
      cluster: ``[N]`` each.
      whole: of the round.
      heard: ``[N, K + 1, N, K + 1]``.
    """

    message: MessageNumbers
    cluster: ClusterNumbers
    whole: RoundNumbers
    heard: Array


@jax.jit
def _dense(problem: RoundProblem, decision: Decision) -> _Dense:
    links = _undisturbed(problem, decision)
    return _Dense(
        MessageNumbers(
            sinr=_sinr(problem.radio, links),
            time_s=_time_s(problem, decision),
            blocks=_blocks(problem, decision),
            price_per_s=_price_per_s(problem, decision),
        ),
        _of_clusters(problem, decision, links),
        _of_round(problem, decision),
        _heard(problem.radio, active_nodes(decision.segments)),
    )


def _undisturbed(problem: RoundProblem, decision: Decision) -> Links:
    """Links at full power, each on the whole band, without interference."""
    radio, active = problem.radio, active_nodes(decision.segments)
    alone = decision.replace(
        d2d_share=jnp.where(active, 1.0, 0.0),
        d2d_power_w=jnp.where(active, radio.d2d_power_max_w, 0.0),
        d2e_share=jnp.where(active[:, 0], 1.0, 0.0),
        d2e_power_w=jnp.where(active[:, 0], radio.d2e_power_max_w, 0.0),
    )
    return message_links(problem, alone, jnp.zeros(active.shape))


def _sinr(radio: Radio, links: Links) -> tuple:
    power_w, gain = radio.d2d_power_max_w, radio.d2d_gain
    silent = jnp.zeros_like(power_w[:, 1:])
    collect = d2d_sinr(radio, power_w[:, 1:], gain[:, 1:, 0], 1.0, silent)
    distribute = d2d_sinr(radio, power_w[:, :1], gain[:, 0, 1:], 1.0, silent)
    return (*links.hop_sinr, collect, distribute, links.uplink_sinr)


def _bits(problem: RoundProblem, decision: Decision) -> tuple[Array, Array, Array]:
    """Bits of a micro-batch's activations and of its uplink, and of encoder and embedding."""
    work = problem.workload
    samples = work.batch / decision.micro_batches
    model = work.blocks * work.block_param_bits + work.embedding_param_bits
    return (
        samples * work.activation_bits,
        samples * (work.activation_bits + work.target_bits),
        model,
    )


def _time_s(problem: RoundProblem, decision: Decision) -> tuple:
    radio = problem.radio
    step, up, _ = _bits(problem, decision)
    hop_s = step[:, None] / radio.d2d_bandwidth_hz + jnp.zeros_like(radio.d2d_power_max_w)
    move_s = decision.segments * problem.workload.block_param_bits / radio.d2d_bandwidth_hz
    return hop_s, hop_s, move_s, move_s, up / radio.d2e_bandwidth_hz


def _blocks(problem: RoundProblem, decision: Decision) -> tuple:
    radio = problem.radio
    step, up, _ = _bits(problem, decision)
    hop = step[:, None] / radio.transport_block_bits + jnp.zeros_like(radio.d2d_power_max_w)
    never = jnp.zeros_like(hop[:, 1:])
    return hop, hop, never, never, up / radio.transport_block_bits


def _price_per_s(problem: RoundProblem, decision: Decision) -> tuple:
    control, radio = problem.control, problem.radio
    _, up, model = _bits(problem, decision)
    repeats = problem.workload.local_steps * decision.micro_batches
    price_per_j = control.energy_queue / control.energy_budget_j
    node = price_per_j * radio.d2d_power_max_w
    sends_back = jnp.take_along_axis(node, next_active(active_nodes(decision.segments)), axis=1)
    control_unit = jnp.broadcast_to(node[:, :1], node[:, 1:].shape)
    uplink = price_per_j[:, 0] * radio.d2e_power_max_w * (repeats + model / up)
    steps = repeats[:, None]
    return steps * node, steps * sends_back, node[:, 1:], control_unit, uplink


def _of_clusters(problem: RoundProblem, decision: Decision, links: Links) -> ClusterNumbers:
    stages = stage_times(problem, decision, free_links(problem, decision))
    forward_s, backward_s = forward_flow_s(stages), backward_flow_s(stages)
    step, up, model = _bits(problem, decision)
    hazard = transport_block_hazard(problem.radio, links.downlink_sinr)
    without, with_excess = _divergence_prices(problem, decision)
    return ClusterNumbers(
        forward_s=jnp.sum(forward_s, axis=1),
        backward_s=jnp.sum(backward_s, axis=1),
        forward_longest_s=jnp.max(forward_s, axis=1),
        backward_longest_s=jnp.max(backward_s, axis=1),
        downlink_s=step / links.downlink_rate_bps,
        model_downlink_s=model / links.downlink_rate_bps,
        model_per_uplink=model / up,
        pauses=decision.micro_batches - 1.0,
        downlink_hazard=step / problem.radio.transport_block_bits * hazard,
        price_of_excess=with_excess - without,
    )


def _of_round(problem: RoundProblem, decision: Decision) -> RoundNumbers:
    control = problem.control
    links = free_links(problem, decision)
    parts = latency_parts(problem, decision, links, stage_times(problem, decision, links))
    computing_j = node_energy_j(problem, decision, links, parts)
    lossless, _ = _divergence_prices(problem, decision)
    computing = jnp.sum(control.energy_queue * computing_j / control.energy_budget_j)
    return RoundNumbers(
        local_steps=problem.workload.local_steps,
        overhead_s=problem.compute.link_overhead_s,
        latency_price_per_s=control.v / control.reference_latency_s,
        fixed_price=computing + jnp.sum(lossless),
    )


def _divergence_prices(problem: RoundProblem, decision: Decision) -> tuple[Array, Array]:
    """Price of each cluster's divergence at an excess inverse survival of 0, and of 1."""
    control, learning = problem.control, problem.learning
    present = participates(decision.segments)
    weight = noise_weight(learning, present_weight(learning.cluster_weight, present))
    price = control.divergence_queue / control.divergence_target * weight

    def at(hazard):
        hazards = jnp.full(weight.shape, hazard)
        batch = problem.workload.batch
        return price * cluster_divergence(hazards, decision.micro_batches, batch, learning)

    return at(0.0), at(jnp.log(2.0))


def _heard(radio: Radio, active: Array) -> Array:
    """Interference over noise from every node at full power, by (1) being linear."""
    noise_w = radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz
    slope = jax.jacobian(lambda power_w: interference_w(radio, active, power_w))
    per_watt = jnp.moveaxis(slope(radio.d2d_power_max_w), (0, 1), (2, 3))
    return per_watt * radio.d2d_power_max_w[:, :, None, None] / noise_w
