"""What caps on energy pay for, before anything is decided."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.energy_caps import IN_REACH, LN2
from collapipe_jax.control.budget_floors import block_energy_j
from collapipe_jax.cost.feasibility import usable_blocks
from collapipe_jax.cost.problem import RoundProblem

_LOG_LARGEST_LEVEL = 30.0
_HALVINGS = 30
_ROUNDING = 1e-4
"""Of a block: what just suffices must still do so where it is worked out again."""


def with_payable_blocks(problem: RoundProblem) -> RoundProblem:
    """Budgets raised until they pay for the encoder, memory cut down to what they pay for.

    All budgets of a cluster are raised by the least factor that does; most often that is 1.

    Args:
      problem: with lanes.
    """
    control = problem.control
    block_j, fixed_j = _least_device_j(problem)

    def payable(log_level, slack=0.0):
        left_j = jnp.exp(log_level)[:, None] * control.energy_budget_j[:, 1:] - fixed_j
        return jnp.clip(jnp.floor(left_j / block_j + slack), 0, problem.workload.blocks)

    log_level = _least_level(problem, payable)
    budget_j = jnp.exp(log_level)[:, None] * control.energy_budget_j
    problem = problem.replace(control=control.replace(energy_budget_j=budget_j))
    return _with_room_for(problem, payable(log_level, _ROUNDING))


def _least_device_j(problem: RoundProblem) -> tuple[Array, Array]:
    """Least energy of a block and of being active at all, ``[N, K, R]``.

    On air at vanishing power, without interference and towards the best receiver.
    """
    work, radio = problem.workload, problem.radio
    bit_j = IN_REACH * LN2 * radio.snr_gap * radio.node_noise_w_per_hz / radio.d2d_gain[:, 1:]
    block_j = jax.vmap(block_energy_j, -1, -1)(problem)
    bits = 2.0 * work.local_steps * work.batch * work.activation_bits
    return block_j + work.block_param_bits * bit_j[:, :, 0], bits * jnp.min(bit_j, axis=2)


def _least_level(problem: RoundProblem, payable: Callable[[Array], Array]) -> Array:
    """Logarithm of the least level at which the payable blocks suffice, ``[N, R]``."""
    blocks = problem.workload.blocks
    most = jnp.max(problem.workload.micro_batch_choices, axis=0)
    held = jax.vmap(usable_blocks, -1, -1)(problem, most)

    def halve(_, ends):
        middle = 0.5 * (ends[0] + ends[1])
        enough = jnp.sum(jnp.minimum(payable(middle), held), axis=1) >= blocks
        return jnp.where(enough, ends[0], middle), jnp.where(enough, middle, ends[1])

    least = jnp.zeros_like(problem.control.energy_budget_j[:, 0])
    ends = least, jnp.full_like(least, _LOG_LARGEST_LEVEL)
    return jax.lax.fori_loop(0, _HALVINGS, halve, ends)[1]


def _with_room_for(problem: RoundProblem, blocks: Array) -> RoundProblem:
    """Memory for at most so many blocks, the working memory that of the smallest micro-batches.

    Args:
      problem: with lanes.
      blocks: ``[N, K, R]``.
    """
    work, compute = problem.workload, problem.compute
    samples = work.batch / jnp.max(work.micro_batch_choices, axis=0)
    per_block = work.block_static_bytes + work.batch * work.block_kept_bytes
    enough = (blocks + _ROUNDING) * per_block + samples * work.block_working_bytes
    cut = jnp.minimum(compute.memory_bytes, enough)
    memory_bytes = jnp.where(blocks < work.blocks, cut, compute.memory_bytes)
    return problem.replace(compute=compute.replace(memory_bytes=memory_bytes))
