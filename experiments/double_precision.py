"""Decisions judged in double precision, one network of a stack at a time."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.cost.problem import RoundProblem


def pick(tree, index: int):
    """One network of a stack."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def in_double(tree):
    """The same tree, its floating-point leaves in double precision."""

    def widen(leaf):
        leaf = np.asarray(leaf)
        return jnp.asarray(leaf.astype(float) if leaf.dtype.kind == "f" else leaf)

    return jax.tree.map(widen, tree)


class Judgement(NamedTuple):
    """Objective of a decision, largest loss of a micro-batch, and feasibility."""

    objective: Array
    loss: Array
    feasible: Array


@jax.jit
def judge(problem: RoundProblem, decision: Decision) -> Judgement:
    """Judge a decision."""
    cost = evaluate(problem, decision)
    return Judgement(cost.objective, jnp.max(cost.loss_probability), is_feasible(problem, decision))
