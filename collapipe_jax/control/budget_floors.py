"""Floors of the budgets: least energy that any decision spends.

With a budget below its floor, a queue grows under every policy: Slater's condition fails
(docs/system-model.md, section 5). Such a budget is refused before anything runs.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.cost.computing import computing_energy_j
from collapipe_jax.cost.feasibility import can_run, usable_blocks
from collapipe_jax.cost.problem import RoundProblem

_LN2 = 0.6931472


def control_unit_floor_j(problem: RoundProblem) -> Array:
    """Least energy of a round for every control unit, ``[N]``; 0 where a cluster cannot run.

    Its computing, and its bits at the energy per bit of vanishing power over the whole
    band, ``ln 2 N_0 / g``, without D2D interference and to the device with the best link.

    Args:
      problem: a round at mean gains.
    """
    work, radio = problem.workload, problem.radio
    samples = work.local_steps * work.batch
    hop_bits = 2 * samples * work.activation_bits + work.blocks * work.block_param_bits
    best_gain = jnp.max(radio.d2d_gain[:, 0, 1:], axis=1)
    hop_j_per_bit = _LN2 * radio.snr_gap * radio.node_noise_w_per_hz / best_gain
    computing_j = computing_energy_j(work, work.embed_flops, problem.compute.joules_per_flop[:, 0])
    floor_j = jnp.where(can_run(problem), computing_j + hop_bits * hop_j_per_bit, 0.0)
    return floor_j + uplink_floor_j(problem)


def uplink_floor_j(problem: RoundProblem) -> Array:
    """Part of every uplink in :func:`control_unit_floor_j`, ``[N]``."""
    work, radio = problem.workload, problem.radio
    noise = radio.bs_noise_w_per_hz + radio.d2e_interference_w / radio.d2e_bandwidth_hz
    model_bits = work.blocks * work.block_param_bits + work.embedding_param_bits
    sample_bits = work.activation_bits + work.target_bits
    bits = work.local_steps * work.batch * sample_bits + model_bits
    floor_j = bits * _LN2 * radio.snr_gap * noise / radio.d2e_gain[:, 0]
    return jnp.where(can_run(problem), floor_j, 0.0)


def block_energy_j(problem: RoundProblem) -> Array:
    """Energy to compute one encoder block for a round on every device, ``[N, K]``."""
    work = problem.workload
    return computing_energy_j(work, work.block_flops, problem.compute.joules_per_flop[:, 1:])


def device_budget_floor_j(problem: RoundProblem) -> np.ndarray:
    """Least budget, the same for all devices of a cluster, that pays for the encoder.

    Spread over time, a device with budget ``E`` computes at most ``E / e_k`` blocks a
    round and never more than it can hold; the floor is where these sum to ``L``.

    Args:
      problem: a round at mean gains, with all devices available.

    Returns:
      ``[N]``; 0 for a cluster whose devices cannot hold the encoder.
    """
    energy_j = np.asarray(block_energy_j(problem), np.float64)
    fewest_bytes = jnp.max(problem.workload.micro_batch_choices)
    capacity = np.asarray(usable_blocks(problem, fewest_bytes), np.float64)
    runs = np.asarray(can_run(problem))
    return np.array(
        [
            _least_level(energy_j[n], capacity[n], problem.workload.blocks) if runs[n] else 0.0
            for n in range(len(runs))
        ]
    )


def _least_level(cost: np.ndarray, capacity: np.ndarray, wanted: float) -> float:
    """Least x with ``sum min(capacity, x / cost) >= wanted``, by its breakpoints."""
    full_at = np.sort(cost * capacity)
    for level in full_at:
        if np.minimum(capacity, level / cost).sum() >= wanted:
            rising = cost * capacity >= level
            held = capacity[~rising].sum()
            return float((wanted - held) / (1.0 / cost[rising]).sum())
    return float(full_at[-1])
