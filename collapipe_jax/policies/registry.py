"""All policies behind one signature."""

import dataclasses
import functools
from collections.abc import Callable

from jax import Array

from collapipe_jax.cost.client_decision import ClientDecision
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import static_pipeline
from collapipe_jax.errors import InputError
from collapipe_jax.policies.client_policies import splitfed, vanilla_fl
from collapipe_jax.policies.dssra import dssra
from collapipe_jax.policies.greedy import greedy
from collapipe_jax.policies.random_policy import random_policy
from collapipe_jax.policies.titanic import titanic

Policy = Callable[[Array, RoundProblem], Decision | ClientDecision]
"""``policy(key, problem) -> decision``: pure and jittable, on every network."""


@dataclasses.dataclass(frozen=True)
class PolicyOptions:
    """What policies are told that they do not decide.

    Attributes:
      micro_batches: of policies that fix it, and of others to start from.
      partitions: of ``titanic``.
    """

    micro_batches: int
    partitions: int


def _decide_dssra(problem: RoundProblem, micro_batches: int) -> Decision:
    return dssra(problem, micro_batches).decision


def _decide_greedy(problem: RoundProblem, micro_batches: int) -> Decision:
    return greedy(problem, micro_batches).decision


@functools.cache
def _policy(decide: Callable[..., Decision | ClientDecision], *arguments: int) -> Policy:
    """The same object for the same arguments, so that nothing is compiled for it twice."""
    return lambda key, problem: decide(problem, *arguments)


POLICIES: dict[str, Callable[[PolicyOptions], Policy]] = {
    "dssra": lambda told: _policy(_decide_dssra, told.micro_batches),
    "greedy": lambda told: _policy(_decide_greedy, told.micro_batches),
    "static_pipeline": lambda told: _policy(static_pipeline, told.micro_batches),
    "titanic": lambda told: _policy(titanic, 1, told.partitions),
    "titanic_pipelined": lambda told: _policy(titanic, told.micro_batches, told.partitions),
    "random": lambda told: random_policy,
    "vanilla_fl": lambda told: _policy(vanilla_fl),
    "splitfed": lambda told: _policy(splitfed),
}
"""Factories by name."""
CLIENT_POLICIES = ("vanilla_fl", "splitfed")
"""Those that decide for clients with whole copies of the model; others cut one model."""


def make_policy(name: str, micro_batches: int = 8, partitions: int = 3) -> Policy:
    """A policy by name; one object for all options that it does not look at.

    Args:
      name: a key of :data:`POLICIES`.
      micro_batches, partitions: as in :class:`PolicyOptions`.

    Raises:
      InputError: if there is no such policy.
    """
    if name not in POLICIES:
        known = ", ".join(POLICIES)
        raise InputError("policy.name", name, "unknown policy", f"Choose among: {known}")
    return POLICIES[name](PolicyOptions(micro_batches, partitions))
