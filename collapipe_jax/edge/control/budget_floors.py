"""Floors of the budgets: least energy that any decision spends.

With a budget below its floor, a queue grows under every policy: Slater's condition fails
(docs/system-model.md, section 5). Such a budget is refused before anything runs.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from collapipe_jax.edge.cost.computing import computing_energy_j
from collapipe_jax.edge.cost.constant_power import drawn_j, idle_energy_j
from collapipe_jax.edge.cost.feasibility import can_run
from collapipe_jax.edge.cost.memory import block_capacity
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.secure_exchange import SecureMessages, mask_energy_j, secure_messages
from collapipe_jax.edge.network.channel import (
    bit_time_s,
    downlink_sinr,
    least_bit_energy_j,
    uplink_sinr,
)


def control_unit_floor_j(problem: RoundProblem) -> Float[Array, " N"]:
    """Least energy of a round for every control unit; 0 where a cluster cannot run.

    Its computing, its masks, and its bits at the energy per bit of vanishing power over the whole
    band, ``ln 2 N_0 / g``, without D2D interference and to the device with the best link.
    Idle energy of the shortest round comes on top, in every cluster, and energy to receive the
    downlink on the whole band.
    """
    work, radio = problem.workload, problem.radio
    samples = work.local_steps * work.batch
    hop_bits = 2 * samples * work.activation_bits + work.blocks * work.block_param_bits
    best_gain = jnp.max(radio.d2d_gain[:, 0, 1:], axis=1)
    hop_j_per_bit = least_bit_energy_j(radio, radio.node_noise_w_per_hz, best_gain)
    computing_j = computing_energy_j(work, work.embed_flops, problem.compute.joules_per_flop[:, 0])
    if (secure := _secure_messages(problem)) is not None:
        computing_j = computing_j + mask_energy_j(secure, problem.compute.node_power_w[:, 0])
    floor_j = jnp.where(can_run(problem), computing_j + hop_bits * hop_j_per_bit, 0.0)
    idle_j = idle_energy_j(problem.compute, least_latency_s(problem))
    floor_j = floor_j + uplink_floor_j(problem) + idle_j[:, 0]
    if problem.compute.receive_power_w is None:
        return floor_j
    return floor_j + drawn_j(problem.compute.receive_power_w, _least_d2e_s(problem)[1])


def least_latency_s(problem: RoundProblem) -> Float[Array, ""]:
    """Lower bound of a pipeline's round: bits over D2E, at full power on the whole band.

    Every block arrives at once, since attempts may be fewer on a part of the band.
    Source: docs/system-model.md (29).
    """
    up_s, down_s = _least_d2e_s(problem)
    return jnp.max(up_s + down_s)


def _least_d2e_s(problem: RoundProblem) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Least times on the uplink and the downlink of a round, 0 where a cluster cannot run."""
    work, radio = problem.workload, problem.radio.replace(retransmissions="free")
    gain, samples = radio.d2e_gain[:, 0], work.local_steps * work.batch
    up_sinr = uplink_sinr(radio, radio.d2e_power_max_w, gain, 1.0)
    up_s = bit_time_s(radio, radio.d2e_bandwidth_hz, up_sinr)
    down_s = bit_time_s(radio, radio.d2e_bandwidth_hz, downlink_sinr(radio, gain))
    up_bits = down_bits = work.model_bits
    if (secure := _secure_messages(problem)) is not None:
        up_bits, down_bits = secure.upload_bits, down_bits + secure.received_bits
    up_s = (samples * work.uplink_bits + up_bits) * up_s
    down_s = (samples * work.activation_bits + down_bits) * down_s
    runs = can_run(problem)
    return jnp.where(runs, up_s, 0.0), jnp.where(runs, down_s, 0.0)


def uplink_floor_j(problem: RoundProblem) -> Float[Array, " N"]:
    """Part of every uplink in :func:`control_unit_floor_j`."""
    work, radio = problem.workload, problem.radio
    noise = radio.bs_noise_w_per_hz + radio.d2e_interference_w / radio.d2e_bandwidth_hz
    secure = _secure_messages(problem)
    model_bits = work.model_bits if secure is None else secure.upload_bits
    bits = work.local_steps * work.batch * work.uplink_bits + model_bits
    floor_j = bits * least_bit_energy_j(radio, noise, radio.d2e_gain[:, 0])
    return jnp.where(can_run(problem), floor_j, 0.0)


def _secure_messages(problem: RoundProblem) -> SecureMessages | None:
    """Secure aggregation of all clusters that can run, if it is on."""
    if problem.secure_aggregation is None:
        return None
    parties = jnp.sum(can_run(problem)).astype(problem.radio.d2e_gain.dtype)
    return secure_messages(problem.secure_aggregation, problem.workload.model_bits, parties)


def block_energy_j(problem: RoundProblem) -> Float[Array, "N K"]:
    """Energy to compute one encoder block for a round on every device."""
    work = problem.workload
    return computing_energy_j(work, work.block_flops, problem.compute.joules_per_flop[:, 1:])


def device_budget_floor_j(problem: RoundProblem) -> Float[np.ndarray, " N"]:
    """Least budget, the same for all devices of a cluster, that pays for the encoder.

    Spread over time, a device with budget ``E`` computes at most ``E / e_k`` blocks a
    round and never more than it can hold alone; the floor is where these sum to ``L``. It is 0
    for a cluster whose devices cannot hold the encoder. Idle energy of the shortest round comes
    on top. The problem is a round at mean gains, with all devices available.
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
    floor_j = np.array([np.interp(problem.workload.blocks, *row) for row in sums])
    idle_j = idle_energy_j(problem.compute, least_latency_s(problem))
    return np.where(can_run(problem), floor_j, 0.0) + np.asarray(idle_j)[:, 1:].max(axis=1)
