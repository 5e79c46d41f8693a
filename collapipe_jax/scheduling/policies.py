"""All policies behind one signature."""

import dataclasses
from collections.abc import Callable

from jax import Array

from collapipe_jax.cost.client_decision import ClientDecision
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.errors import InputError
from collapipe_jax.scheduling.baselines import static_pipeline
from collapipe_jax.scheduling.client_policies import splitfed, vanilla_fl
from collapipe_jax.scheduling.dssra import dssra
from collapipe_jax.scheduling.greedy import greedy
from collapipe_jax.scheduling.random_policy import random_policy
from collapipe_jax.scheduling.titanic import titanic

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


def _dssra(options: PolicyOptions) -> Policy:
    return lambda key, problem: dssra(problem, options.micro_batches).decision


def _greedy(options: PolicyOptions) -> Policy:
    return lambda key, problem: greedy(problem, options.micro_batches).decision


def _static_pipeline(options: PolicyOptions) -> Policy:
    return lambda key, problem: static_pipeline(problem, options.micro_batches)


def _titanic(options: PolicyOptions) -> Policy:
    return lambda key, problem: titanic(problem, 1, options.partitions)


def _titanic_pipelined(options: PolicyOptions) -> Policy:
    return lambda key, problem: titanic(problem, options.micro_batches, options.partitions)


def _random(options: PolicyOptions) -> Policy:
    return random_policy


def _vanilla_fl(options: PolicyOptions) -> Policy:
    return lambda key, problem: vanilla_fl(problem)


def _splitfed(options: PolicyOptions) -> Policy:
    return lambda key, problem: splitfed(problem)


POLICIES: dict[str, Callable[[PolicyOptions], Policy]] = {
    "dssra": _dssra,
    "greedy": _greedy,
    "static_pipeline": _static_pipeline,
    "titanic": _titanic,
    "titanic_pipelined": _titanic_pipelined,
    "random": _random,
    "vanilla_fl": _vanilla_fl,
    "splitfed": _splitfed,
}
"""Factories by name."""
CLIENT_POLICIES = ("vanilla_fl", "splitfed")
"""Those that decide for clients with whole copies of the model; others cut one model."""


def make_policy(name: str, micro_batches: int = 8, partitions: int = 3) -> Policy:
    """A policy by name.

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
