"""All policies by name, behind one signature."""

import dataclasses
import functools
from collections.abc import Callable

from jax import Array

from collapipe_jax.cost.decision import ClientDecision, Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import static_pipeline
from collapipe_jax.errors import InputError
from collapipe_jax.own import find
from collapipe_jax.policies.client_policies import splitfed, vanilla_fl
from collapipe_jax.policies.dssra import dssra
from collapipe_jax.policies.greedy import greedy
from collapipe_jax.policies.random_policy import random_policy
from collapipe_jax.policies.titanic import titanic

Policy = Callable[[Array, RoundProblem], Decision | ClientDecision]
"""``policy(key, problem) -> decision``: pure and jittable, on every network."""


@dataclasses.dataclass(frozen=True)
class PolicyEntry:
    """A policy of the registry, or one's own.

    A plain function of the problem needs no entry. An entry says what else it takes.

    Example:
      >>> import collapipe_jax as cp
      >>> from collapipe_jax.cost.static_pipeline import static_pipeline
      >>> entry = cp.PolicyEntry(static_pipeline, options=("micro_batches",))
      >>> entry.random, entry.by_clients
      (False, False)

    Attributes:
      decide: ``decide(problem, **options)``, or ``decide(key, problem, **options)`` if random.
      options: names of the options of :func:`make_policy` that it takes.
      random: whether it takes a random key.
      by_clients: whether every device trains a copy of the model, not its cluster a pipeline.
    """

    decide: Callable[..., Decision | ClientDecision]
    options: tuple[str, ...] = ()
    random: bool = False
    by_clients: bool = False


POLICIES: dict[str, PolicyEntry] = {
    "dssra": PolicyEntry(
        lambda problem, micro_batches: dssra(problem, micro_batches).decision, ("micro_batches",)
    ),
    "greedy": PolicyEntry(
        lambda problem, micro_batches: greedy(problem, micro_batches).decision, ("micro_batches",)
    ),
    "static_pipeline": PolicyEntry(static_pipeline, ("micro_batches",)),
    "titanic": PolicyEntry(functools.partial(titanic, micro_batches=1), ("partitions",)),
    "titanic_pipelined": PolicyEntry(titanic, ("micro_batches", "partitions")),
    "random": PolicyEntry(random_policy, random=True),
    "vanilla_fl": PolicyEntry(vanilla_fl, by_clients=True),
    "splitfed": PolicyEntry(splitfed, by_clients=True),
}
"""Policies by name; a new one is one entry."""


def make_policy(name: str, micro_batches: int = 8, partitions: int = 3) -> Policy:
    """A policy by name; the same object for all values of options that it does not take.

    Args:
      name: of the registry, or ``package.module:name`` of one's own.
      micro_batches: of policies that fix them; policies that optimise them start from it.
      partitions: of ``titanic``.

    Returns:
      ``policy(key, problem) -> decision``, a pure function that can be jitted.

    Raises:
      InputError: if there is no such policy.

    Example:
      >>> import jax
      >>> import collapipe_jax as cp
      >>> problem = cp.read_network("docs/examples/edge.network.json")
      >>> policy = cp.make_policy("static_pipeline", micro_batches=4)
      >>> print(jax.jit(policy)(jax.random.key(0), problem).segments)
      [[2 2 2]
       [2 2 2]]
    """
    entry = policy_entry(name)
    options = {"micro_batches": micro_batches, "partitions": partitions}
    return _policy(entry, **{option: options[option] for option in entry.options})


def policy_entry(name: str) -> PolicyEntry:
    """Entry of a policy of the registry, or of one's own as ``package.module:name``.

    One's own is a function ``decide(problem)``, or a :class:`PolicyEntry`.

    Raises:
      InputError: if there is no such policy.
    """
    found = find("policy.name", name, POLICIES)
    if not callable(found) and not isinstance(found, PolicyEntry):
        remedy = "Name a function of the problem, or a PolicyEntry"
        raise InputError("policy.name", name, f"it is a {type(found).__name__}", remedy)
    return found if isinstance(found, PolicyEntry) else PolicyEntry(found)


@functools.cache
def _policy(entry: PolicyEntry, **options: int) -> Policy:
    """The same object for the same arguments, so that it is compiled once."""
    if entry.random:
        return lambda key, problem: entry.decide(key, problem, **options)
    return lambda key, problem: entry.decide(problem, **options)
