"""All policies behind one signature."""

from collections.abc import Callable

from jax import Array

from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.errors import InputError
from collapipe_jax.scheduling.baselines import static_pipeline
from collapipe_jax.scheduling.dssra import dssra

Policy = Callable[[Array, RoundProblem], Decision]
"""``policy(key, problem) -> decision``: pure, jittable, feasible on every network."""


def _make_static_pipeline(micro_batches: int) -> Policy:
    return lambda key, problem: static_pipeline(problem, micro_batches)


def _make_dssra(micro_batches: int) -> Policy:
    return lambda key, problem: dssra(problem, micro_batches).decision


POLICIES: dict[str, Callable[[int], Policy]] = {
    "dssra": _make_dssra,
    "static_pipeline": _make_static_pipeline,
}
"""Factories by name; each takes the number of micro-batches to fix, or to start from."""


def make_policy(name: str, micro_batches: int = 8) -> Policy:
    """A policy by name.

    Args:
      name: a key of :data:`POLICIES`.
      micro_batches: for policies that do not choose it, and for others to start from.

    Raises:
      InputError: if there is no such policy.
    """
    if name not in POLICIES:
        known = ", ".join(POLICIES)
        raise InputError("policy.name", name, "unknown policy", f"Choose among: {known}")
    return POLICIES[name](micro_batches)
