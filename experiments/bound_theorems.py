"""What the convergence theorems say of a case of ``experiments.bound``."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.cost.convergence import (
    Descent,
    absence_bias,
    local_steps_bound,
    momentum_bound,
    one_step_bound,
)
from collapipe_jax.cost.divergence import Learning, present_weight
from experiments.bound_cases import Case, setting
from experiments.bound_descents import BATCH, Path
from experiments.bound_problems import Problem

_one_step_bound = jax.jit(one_step_bound)
_local_steps_bound = jax.jit(local_steps_bound)
_momentum_bound = jax.jit(momentum_bound)


def bound(case: Case, problem: Problem, path: Path) -> float:
    """The theorem for a case, docs/system-model.md (18) and its like of docs/theory.md.

    Args:
      case: what was run.
      problem: its problem.
      path: of its repeats, leaves ``[R, ...]``: variance and heterogeneity are the largest
        that any of them met, where alone the proofs make use of them.
    """
    at = setting(case)
    learning = Learning(
        cluster_weight=at.weight,
        gradient_variance=jnp.max(path.variance),
        gradient_heterogeneity=jnp.max(path.heterogeneity),
    )
    descent = Descent(
        smoothness=problem.smoothness,
        start_gap=start_gap(problem, case.weight),
        step_size=at.step_smoothness / problem.smoothness,
        rounds=case.rounds,
    )
    rest = at.loss_probability, at.micro_batches, BATCH, descent
    if case.kind == "momentum":
        return float(_momentum_bound(learning, *rest, at.momentum))
    if case.kind == "absence":
        return float(np.mean([_absence_bound(learning, *rest, row) for row in at.present]))
    if case.local_steps > 1:
        return float(_local_steps_bound(learning, *rest, case.local_steps))
    return float(_one_step_bound(learning, *rest))


def start_gap(problem: Problem, weight: np.ndarray) -> float:
    """``F_0 - F*``."""
    ends = problem.start, jnp.asarray(problem.optimum(weight))
    first, last = (np.asarray(problem.objectives(x), np.float64) @ weight for x in ends)
    return float(first - last)


@jax.jit
def _absence_bound(
    learning: Learning,
    loss_probability: Array,
    micro_batches: Array,
    batch: Array,
    descent: Descent,
    present: Array,
) -> Array:
    """The bound if the same sat out in all rounds; its mean over rounds is the bound."""
    bias = absence_bias(learning, present)
    ratio = jnp.sqrt(absence_bias(learning.replace(gradient_heterogeneity=1.0), present))
    there = learning.replace(
        cluster_weight=present_weight(learning.cluster_weight, present),
        gradient_heterogeneity=(1.0 + ratio) ** 2 * learning.gradient_heterogeneity,
    )
    return one_step_bound(there, loss_probability, micro_batches, batch, descent) + bias
