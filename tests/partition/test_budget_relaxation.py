"""Budgets that no partition can keep are raised by what the links between nodes ask for."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from support.random_problems import random_problems, to_batch_last

from collapipe_jax.compilation import quick_jit
from collapipe_jax.partition.budget_relaxation import relax_infeasible_budgets


def test_gains_of_nodes_to_themselves_change_no_budget(batch_axis_last):
    with jax.enable_x64(True):
        problem = to_batch_last(random_problems(8, clusters=2, devices=3, blocks=5, seed=3))
        radio, control = problem.radio, problem.control
        # Budgets far too small, and activations so large that sending them costs most.
        control = control.replace(energy_budget_j=1e-6 * control.energy_budget_j)
        work = problem.workload.replace(activation_bits=1e6 * problem.workload.activation_bits)
        itself = jnp.eye(radio.d2d_gain.shape[1], dtype=bool)[:, :, None]
        relax = quick_jit(relax_infeasible_budgets)

        def relaxed(gain):
            changed = radio.replace(d2d_gain=jnp.where(itself, gain, radio.d2d_gain))
            problems = problem.replace(radio=changed, control=control, workload=work)
            found = relax(problems)
            return found.control.energy_budget_j, found.compute.memory_bytes

        budget_j, memory_bytes = relaxed(1.0)
        assert np.all(budget_j > 10 * control.energy_budget_j)
        chex.assert_trees_all_equal((budget_j, memory_bytes), relaxed(1e-30))
