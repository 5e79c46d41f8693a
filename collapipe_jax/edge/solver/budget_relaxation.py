"""Energy caps that no partition can keep, relaxed before anything is decided."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.edge.control.budget_floors import block_energy_j
from collapipe_jax.edge.cost.feasibility import usable_blocks
from collapipe_jax.edge.cost.memory import block_bytes
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import least_bit_energy_j
from collapipe_jax.edge.solver.energy_caps import IN_REACH

_LOG_LARGEST_FACTOR = 30.0
_HALVINGS = 30
_ROUNDING = 1e-4
"""Of a block, so that a budget that just suffices still does so after rounding."""


def relax_infeasible_budgets(problem: RoundProblem) -> RoundProblem:
    """Raise budgets until they pay for the encoder, and cut memory to the blocks they pay for.

    All budgets of a cluster are raised by the least factor that suffices; mostly that is 1.
    """
    control, blocks = problem.control, problem.workload.blocks
    block_j, fixed_j = _least_device_j(problem)
    most = jnp.max(problem.workload.micro_batch_choices, axis=0)
    held = jax.vmap(usable_blocks, -1, -1)(problem, most)

    def affordable(log_factor, slack=0.0):
        left_j = jnp.exp(log_factor)[:, None] * control.energy_budget_j[:, 1:] - fixed_j
        left = jnp.nan_to_num(left_j / block_j)  # both are infinite over a dead link
        return jnp.clip(jnp.floor(left + slack), 0, blocks)

    def suffices(log_factor, slack=0.0):
        paid_for = jnp.minimum(affordable(log_factor, slack), held)
        return jnp.sum(paid_for, axis=1) >= blocks

    log_factor = _least_log_factor(suffices, jnp.zeros_like(control.energy_budget_j[:, 0]))
    budget_j = jnp.exp(log_factor)[:, None] * control.energy_budget_j
    problem = problem.replace(control=control.replace(energy_budget_j=budget_j))
    # Where links are dead no budget suffices: then all that is held is tried.
    paid_for = affordable(log_factor, _ROUNDING)
    enough = suffices(log_factor, _ROUNDING)[:, None]
    return _with_memory_for(problem, jnp.where(enough, paid_for, blocks))


def _least_device_j(problem: RoundProblem) -> tuple[Array, Array]:
    """Least energy of a block, and of an active device without blocks, ``[N, K, R]``.

    On air at vanishing power, without interference and to the best other node.
    """
    work, radio = problem.workload, problem.radio
    is_own = jnp.eye(problem.compute.memory_bytes.shape[1] + 1, dtype=bool)[1:, :, None]
    gain = jnp.where(is_own, 0.0, radio.d2d_gain[:, 1:])
    bit_j = IN_REACH * least_bit_energy_j(radio, radio.node_noise_w_per_hz, gain)
    block_j = jax.vmap(block_energy_j, -1, -1)(problem)
    bits = 2.0 * work.local_steps * work.batch * work.activation_bits
    return block_j + work.block_param_bits * bit_j[:, :, 0], bits * jnp.min(bit_j, axis=2)


def _least_log_factor(suffices: Callable[[Array], Array], least: Array) -> Array:
    """Logarithm of the least factor on budgets that suffices, at least ``least [N, R]``."""

    def halve(_, ends):
        middle = 0.5 * (ends[0] + ends[1])
        enough = suffices(middle)
        return jnp.where(enough, ends[0], middle), jnp.where(enough, middle, ends[1])

    ends = least, jnp.full_like(least, _LOG_LARGEST_FACTOR)
    return jax.lax.fori_loop(0, _HALVINGS, halve, ends)[1]


def _with_memory_for(problem: RoundProblem, blocks: Array) -> RoundProblem:
    """Cut memory to a number of blocks, with working memory of the smallest micro-batches."""
    work, compute = problem.workload, problem.compute
    samples = work.batch / jnp.max(work.micro_batch_choices, axis=0)
    enough = (blocks + _ROUNDING) * block_bytes(work, work.batch)
    enough = enough + samples * work.block_working_bytes
    cut = jnp.minimum(compute.memory_bytes, enough)
    memory_bytes = jnp.where(blocks < work.blocks, cut, compute.memory_bytes)
    return problem.replace(compute=compute.replace(memory_bytes=memory_bytes))
