"""Virtual queues of the long-term constraints, a bound on them, and the least budgets."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from collapipe_jax.core.quantity import Struct, quantity
from collapipe_jax.edge.cost.computing import (
    block_capacity,
    computing_energy_j,
    idle_energy_j,
    product_or_zero,
)
from collapipe_jax.edge.cost.convergence import (
    cluster_divergence,
    excess_inverse_survival,
    participating_weight,
)
from collapipe_jax.edge.cost.feasibility import can_run
from collapipe_jax.edge.cost.problem import Control, RoundProblem
from collapipe_jax.edge.cost.terms import SenderAddition, Senders, reading, sender_additions
from collapipe_jax.edge.network.channel import (
    bit_time_s,
    downlink_sinr,
    least_bit_energy_j,
    spectral_efficiency,
    transport_block_hazard,
    uplink_sinr,
)


class Queues(NamedTuple):
    """Backlogs ``q`` of energy and ``z`` of divergence, in units of the budget and the target."""

    energy: Float[Array, "N J"]
    divergence: Float[Array, ""]


class EffectiveQueueParams(Struct):
    """From virtual queues to those that policies see, docs/system-model.md, section 5.

    With all at 0 they are the same, and policies see (P2) as it is. The virtual queues follow
    (20) in any case. Compare Neely's place-holder backlog.
    """

    energy_queue_floor: Array = quantity(
        "least effective queue of energy; with an empty queue energy is free", unit="budgets"
    )
    divergence_queue_floor: Array = quantity(
        "least effective queue of divergence; with an empty queue divergence is free",
        unit="targets",
    )
    unavoidable_arrival_weight: Array = quantity(
        "share of a control unit's unavoidable arrival that counts in its effective queue before "
        "the round",
        bounds=">= 0 and <= 1",
    )


def empty_queues(clusters: int, nodes: int) -> Queues:
    """Queues before the first round."""
    return Queues(energy=jnp.zeros((clusters, nodes)), divergence=jnp.zeros(()))


def update_queues(
    queues: Queues,
    control: Control,
    energy_j: Float[Array, "N J"],
    divergence: Float[ArrayLike, ""],
) -> Queues:
    """Queues after a round: cost arrives, the budget is served.

    Source: docs/system-model.md (20).
    """
    return Queues(
        energy=jnp.maximum(queues.energy + energy_j / control.energy_budget_j - 1.0, 0.0),
        divergence=jnp.maximum(
            queues.divergence + divergence / control.divergence_target - 1.0, 0.0
        ),
    )


def queues_before(after: Queues) -> Queues:
    """Queues before every round from those after it, ``[rounds, ...]``; the first are empty."""
    return jax.tree.map(lambda queue: jnp.roll(queue, 1, axis=0).at[0].set(0.0), after)


def effective_queues(queues: Queues, problem: RoundProblem, params: EffectiveQueueParams) -> Queues:
    """Queues as policies see them. Source: docs/system-model.md, section 5."""
    floor = control_unit_floor_j(problem) / problem.control.energy_budget_j[:, 0]
    unavoidable = params.unavoidable_arrival_weight * jnp.maximum(floor - 1.0, 0.0)
    return Queues(
        energy=jnp.maximum(queues.energy.at[:, 0].add(unavoidable), params.energy_queue_floor),
        divergence=jnp.maximum(queues.divergence, params.divergence_queue_floor),
    )


# Lower bound of the control units' backlogs on a sample path, for every policy.
#
# A queue after the last round is the largest sum of arrivals less service over some last
# rounds. An uplink spends at least its floor times a factor that grows with its SINR; a low
# SINR loses micro-batches, and the divergence target limits the losses over all rounds. The
# Lagrange multiplier of that target separates the rounds, and any multiplier gives a lower
# bound: docs/theory.md (T23).

_MULTIPLIERS = np.concatenate([[0.0], np.logspace(-6, 6, 97)])
_SINRS = np.logspace(-6, 6, 6001)
_LOSS_COSTS = np.logspace(-10, 14, 481)


class _Floors(NamedTuple):
    """Floors of a round, in units of budgets and of the target."""

    uplink: Float[Array | np.ndarray, "*rounds N"]  # least energy of a control unit's uplink
    rest: Float[Array | np.ndarray, "*rounds N"]  # and of all else that it does
    per_excess: Float[Array | np.ndarray, "*rounds N"]  # divergence per unit of e^hazard - 1
    lossless: Float[Array | np.ndarray, "*rounds"]  # divergence of a round without losses


def backlog_lower_bound(
    problems: RoundProblem, divergence_limit: float
) -> Float[np.ndarray, "S N"]:
    """Least energy queue of every control unit after the last round.

    No decisions of pipelines within the limit of the mean divergence end below it, if control
    units are their gateways.

    Source: docs/theory.md (T23).

    Args:
      problems: of ``S`` networks that share workload and radio constants, and of their ``R``
        rounds in order; every leaf with leading axes ``[S, R]``.
      divergence_limit: mean divergence over its target that is still allowed; infinite to
        allow any.
    """
    floors = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), _floors(problems))
    rounds = floors.lossless.shape[1]
    room = divergence_limit * rounds - floors.lossless.sum(axis=1)
    multiplier = _MULTIPLIERS[:, None, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.where(floors.uplink > 0, multiplier * floors.per_excess / floors.uplink, 0.0)
        allowed = np.where(multiplier > 0, multiplier * room[:, None, None], 0.0)
    first = jax.tree.map(lambda leaf: leaf[0, 0], problems)
    arrivals = floors.uplink * _least_factor(first, cost) + floors.rest  # [P, S, R, N]
    last_rounds = np.cumsum(arrivals[:, :, ::-1] - 1.0, axis=2)
    return np.maximum(np.max(last_rounds - allowed, axis=(0, 2)), 0.0)


@jax.jit
@jax.vmap
@jax.vmap
def _floors(problem: RoundProblem) -> _Floors:
    learning, work, control = problem.learning, problem.workload, problem.control
    budget_j, uplink_j = control.energy_budget_j[:, 0], _uplink_floor_j(problem)
    weight = participating_weight(learning.cluster_weight, can_run(problem))
    smallest = jnp.max(work.micro_batch_choices)
    divergence = cluster_divergence(learning, weight, work.batch, smallest)
    return _Floors(
        uplink=uplink_j / budget_j,
        rest=(control_unit_floor_j(problem) - uplink_j) / budget_j,
        per_excess=divergence.per_excess / control.divergence_target,
        lossless=jnp.sum(divergence.lossless) / control.divergence_target,
    )


def _least_factor(
    problem: RoundProblem, loss_cost: Float[np.ndarray, "*any"]
) -> Float[np.ndarray, "*any"]:
    """Least of an uplink's energy over its floor plus the cost of losses, at least 1.

    With ``e(x)`` the energy of a bit at SINR ``x`` over that at vanishing power and ``l(x)``
    the least ``e^hazard - 1``, that of the smallest micro-batches: ``min_x e(x) + cost l(x)``,
    from below. One grows with ``x`` and the other falls, so between two points of a grid the
    sum is above the one at its left end and the other at its right; the least is concave in
    the cost, so a chord lies below it.
    """
    work, radio = problem.workload, problem.radio
    batch = work.batch / jnp.max(work.micro_batch_choices)
    transport_blocks = batch * work.uplink_bits / radio.transport_block_bits
    with jax.enable_x64(True):
        sinr = jnp.asarray(_SINRS)
        energy = sinr / (radio.snr_gap * np.log(2.0) * spectral_efficiency(sinr, radio))
        loss = excess_inverse_survival(transport_blocks * transport_block_hazard(radio, sinr))
    energy = np.concatenate([[1.0], np.maximum(energy, 1.0)])
    loss = np.concatenate([np.asarray(loss), [0.0]])
    costs = np.concatenate([[0.0], _LOSS_COSTS])
    least = [np.min(energy + cost * loss) for cost in costs]
    return np.interp(loss_cost, costs, least)


# Floors of the budgets: least energy that any decision spends.
#
# With a budget below its floor, a queue grows under every policy: Slater's condition fails
# (docs/system-model.md, section 5). Such a budget is refused before anything runs.


def control_unit_floor_j(problem: RoundProblem) -> Float[Array, " N"]:
    """Least energy of a round for every control unit as gateway; 0 where a cluster cannot run.

    Its computing, its masks, and its bits at the energy per bit of vanishing power over the whole
    band, ``ln 2 N_0 / g``, without D2D interference and to the device with the best link.
    Idle energy of the shortest round comes on top, in every cluster, and energy to receive the
    downlink on the whole band.
    """
    work, radio = problem.workload, problem.radio
    samples = work.local_steps * work.batch
    hop_bits = 2 * samples * work.activation_bits + work.cluster_blocks * work.block_param_bits
    hop_bits = jnp.where(work.cluster_blocks > 0, hop_bits, 0.0)
    best_gain = jnp.max(radio.d2d_gain[:, 0, 1:], axis=1)
    hop_j_per_bit = least_bit_energy_j(radio, radio.node_noise_w_per_hz, best_gain)
    computing_j = computing_energy_j(work, work.embed_flops, problem.compute.joules_per_flop[:, 0])
    floor_j = jnp.where(can_run(problem), computing_j + hop_bits * hop_j_per_bit, 0.0)
    floor_j = floor_j + _least_additions(problem).node_j
    idle_j = idle_energy_j(problem.compute, least_latency_s(problem))
    floor_j = floor_j + _uplink_floor_j(problem) + idle_j[:, 0]
    return floor_j + product_or_zero(problem.compute.receive_power_w, _least_d2e_s(problem)[1])


def least_latency_s(problem: RoundProblem) -> Float[Array, ""]:
    """Lower bound of a pipeline's round whose gateways are control units: bits over D2E.

    All are sent at full power on the whole band.

    Every block arrives at once, since attempts may be fewer on a part of the band.
    Source: docs/system-model.md (29).
    """
    up_s, down_s = _least_d2e_s(problem)
    return jnp.max(up_s + down_s)


def _least_d2e_s(problem: RoundProblem) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Least times on the uplink and the downlink of a round, 0 where a cluster cannot run."""
    work = reading(problem, problem.workload.batch)
    radio = problem.radio.replace(retransmissions="free")
    gain, samples = radio.d2e_gain[:, 0], work.local_steps * work.batch
    up_sinr = uplink_sinr(radio, radio.d2e_power_max_w, gain, 1.0)
    up_s = bit_time_s(radio, radio.d2e_bandwidth_hz, up_sinr)
    down_s = bit_time_s(radio, radio.d2e_bandwidth_hz, downlink_sinr(radio, gain))
    added = _least_additions(problem)
    up_bits, down_bits = added.upload_bits, added.shared_bits + added.own_bits
    up_s = (samples * work.uplink_bits + work.update_bits + up_bits) * up_s
    down_s = (samples * work.activation_bits + work.model_bits + down_bits) * down_s
    runs = can_run(problem)
    return jnp.where(runs, up_s, 0.0), jnp.where(runs, down_s, 0.0)


def _uplink_floor_j(problem: RoundProblem) -> Float[Array, " N"]:
    """Part of every uplink in :func:`control_unit_floor_j`."""
    work, radio = reading(problem, problem.workload.batch), problem.radio
    noise = radio.bs_noise_w_per_hz + radio.d2e_interference_w / radio.d2e_bandwidth_hz
    update_bits = work.update_bits + _least_additions(problem).upload_bits
    bits = work.local_steps * work.batch * work.uplink_bits + update_bits
    floor_j = bits * least_bit_energy_j(radio, noise, radio.d2e_gain[:, 0])
    return jnp.where(can_run(problem), floor_j, 0.0)


def _least_additions(problem: RoundProblem) -> SenderAddition:
    """What terms add where all clusters that can run do, with at most one device each."""
    work = reading(problem, problem.workload.batch)
    senders = Senders(
        takes_part=can_run(problem),
        model_bits=work.model_bits,
        update_bits=work.update_bits,
        nodes=jnp.minimum(work.cluster_blocks, 1) + 1,
        power_w=problem.compute.node_power_w[:, 0],
        samples=work.batch,
    )
    return sender_additions(problem, senders)


def block_energy_j(problem: RoundProblem) -> Float[Array, "N K"]:
    """Energy to compute one encoder block for a round on every device."""
    work = problem.workload
    return computing_energy_j(work, work.block_flops, problem.compute.joules_per_flop[:, 1:])


def device_budget_floor_j(problem: RoundProblem) -> Float[np.ndarray, " N"]:
    """Least budget, the same for all devices of a cluster, that pays for the encoder.

    Spread over time, a device with budget ``E`` computes at most ``E / e_k`` blocks a
    round and never more than it can hold alone; the floor is where these sum to the cluster's
    blocks. It is 0 for a cluster whose devices cannot hold them. Idle energy of the shortest round
    comes on top. The problem is a round at mean gains, with all devices available.
    """
    energy_j = np.maximum(block_energy_j(problem), 1e-300, dtype=np.float64)
    # As many as there may be: with them memory holds most.
    micro_batches = jnp.max(problem.workload.micro_batch_choices)
    # And a device alone keeps least under any schedule.
    work, memory_bytes = problem.workload, problem.compute.memory_bytes
    capacity = np.asarray(block_capacity(work, memory_bytes, micro_batches, 1), np.float64)
    # Each sum is linear between the budgets that fill a device.
    budgets_j = np.sort(np.pad(energy_j * capacity, ((0, 0), (1, 0))), axis=1)
    most = np.minimum(capacity[:, None], budgets_j[:, :, None] / energy_j[:, None])
    sums = zip(np.sum(most, axis=2), budgets_j, strict=True)
    floor_j = np.array([np.interp(problem.workload.cluster_blocks, *row) for row in sums])
    idle_j = idle_energy_j(problem.compute, least_latency_s(problem))
    return np.where(can_run(problem), floor_j, 0.0) + np.asarray(idle_j)[:, 1:].max(axis=1)
