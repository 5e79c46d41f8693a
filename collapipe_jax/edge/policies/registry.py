"""All policies by name, behind one signature."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.plugins import find
from collapipe_jax.edge.cost.decision import ClientDecision, Decision
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.policies.alternating import KNOBS, alternating
from collapipe_jax.edge.policies.baselines import random_policy, titanic
from collapipe_jax.edge.policies.client_policies import (
    BEST,
    control_unit_fl,
    hierarchical_fl,
    selected_fl,
    splitfed,
    vanilla_fl,
)
from collapipe_jax.edge.policies.dssra import dssra, dssra_wide
from collapipe_jax.edge.policies.greedy import greedy
from collapipe_jax.edge.policies.sit_out import within_deadline
from collapipe_jax.edge.solver.gateways import likeliest_routes


def at_best_micro_batches(decide: Callable[..., Decision]) -> Callable[..., Decision]:
    """A policy with an option ``best_micro_batches``.

    With the option it decides for every allowed number, and takes the decision of least
    latency in the round. Otherwise it decides for the number ``micro_batches``.
    """

    def decided(
        problem: RoundProblem,
        micro_batches: int,
        best_micro_batches: bool = False,
        **options: Any,
    ) -> Decision:
        if not best_micro_batches:
            return decide(problem, micro_batches, **options)
        choices = problem.workload.micro_batch_choices
        decisions = jax.vmap(lambda count: decide(problem, count, **options))(choices)
        latency_s = jax.vmap(lambda each: evaluate(problem, each).latency_s)(decisions)
        best = jnp.argmin(latency_s)
        return jax.tree.map(lambda leaf: leaf[best], decisions)

    return decided


def on_routes(decide: Callable[..., Any]) -> Callable[..., Any]:
    """A policy of pipelines with an option ``routes``.

    With ``gateways`` parameters come by broadcast, and the likeliest node of every cluster talks
    to the base station, see :func:`likeliest_routes`. The policy decides the rest.
    """

    def decided(problem: RoundProblem, *others: Any, routes: str, **options: Any) -> Any:
        if routes == "gateways":
            problem = problem.replace(routes=likeliest_routes(problem))
        return decide(problem, *others, **options)

    return decided


ROUTES = ("control_units", "gateways")
"""Routes of pipelines that do not decide them."""

Policy = Callable[[Array, RoundProblem], Decision | ClientDecision]
"""``policy(key, problem) -> decision``: pure and jittable, on every network."""


@dataclasses.dataclass(frozen=True)
class OfflinePolicy:
    """A policy that decides once, before the first round, and sees no fade and no queue.

    A simulation gives it the network at mean gains with all devices. In a round the clusters sit
    out in which an active device is absent.
    """

    decide: Callable[[RoundProblem], Any]

    def __call__(self, key: Array, problem: RoundProblem) -> Decision:
        """Decide for a problem, whose fades and queues are taken for lasting ones."""
        del key
        return self.decide(problem)


class Mode(NamedTuple):
    """A policy that may run a network."""

    name: str
    policy: Policy
    entry: "PolicyEntry"


@dataclasses.dataclass(frozen=True)
class ModePolicy:
    """Policies of which the first round of a network takes one for all rounds.

    Decisions of these modes are of several kinds, so no single round has one.
    Source: docs/system-model.md, section 22.
    """

    modes: tuple[Mode, ...]

    def __call__(self, key: Array, problem: RoundProblem) -> Decision | ClientDecision:
        """Refuse a single round."""
        return _refuse_single_round()


def _refuse_single_round(*_: Any) -> Decision | ClientDecision:
    problem = "it takes one of policy.modes for all rounds, and decides no round by itself"
    raise InputError("policy.name", BEST_MODE, problem, "Name one of the modes")


@dataclasses.dataclass(frozen=True)
class PolicyEntry:
    """A policy of the registry, or one's own.

    A plain function of the problem needs no entry. An entry says what else it takes.

    Example:
      >>> import collapipe_jax as cp
      >>> from collapipe_jax.edge.cost.static_pipeline import static_pipeline
      >>> entry = cp.PolicyEntry(static_pipeline, options=("micro_batches",))
      >>> entry.random, entry.by_clients
      (False, False)

    Attributes:
      decide: ``decide(problem, **options)``, or ``decide(key, problem, **options)`` if random.
      options: names of the options of :func:`make_policy` that it takes.
      random: whether it takes a random key.
      by_clients: whether clients train copies of the model, not clusters a pipeline.
      by_control_units: whether these clients are the control units, not the devices.
      averages_in_clusters: whether control units average the copies of their devices.
      offline: whether it decides once, for mean gains and all devices, see :class:`OfflinePolicy`;
        of pipelines that take no key.
      heeds_queues: whether it keeps long-term limits by their queues.
    """

    decide: Callable[..., Decision | ClientDecision]
    options: tuple[str, ...] = ()
    random: bool = False
    by_clients: bool = False
    by_control_units: bool = False
    averages_in_clusters: bool = False
    offline: bool = False
    heeds_queues: bool = False


BEST_MODE = "best_mode"
"""Name of the policy that chooses among others."""
MODES = ("dssra_wide", "splitfed", "control_unit_split", "selected_fl")
"""Pipelines, split learning of devices and of control units, and federated averaging."""

_SPLIT_MODELS = ("shares", "split", "broadcast", "deadline")
_WHOLE_MODELS = (*_SPLIT_MODELS, "accumulation")
POLICIES: dict[str, PolicyEntry] = {
    "dssra": PolicyEntry(
        lambda problem, micro_batches: dssra(problem, micro_batches).decision,
        ("micro_batches",),
        heeds_queues=True,
    ),
    "dssra_wide": PolicyEntry(
        lambda problem, micro_batches: dssra_wide(problem, micro_batches).decision,
        ("micro_batches",),
        heeds_queues=True,
    ),
    "dssra_offline": PolicyEntry(
        lambda problem, micro_batches: dssra(problem, micro_batches).decision,
        ("micro_batches",),
        offline=True,
    ),
    "greedy": PolicyEntry(
        lambda problem, micro_batches: greedy(problem, micro_batches).decision,
        ("micro_batches",),
        heeds_queues=True,
    ),
    "alternating": PolicyEntry(
        on_routes(
            lambda problem, micro_batches, decides: (
                alternating(problem, micro_batches, decides).decision
            )
        ),
        ("micro_batches", "decides", "routes"),
        heeds_queues=True,
    ),
    "static_pipeline": PolicyEntry(
        on_routes(within_deadline(at_best_micro_batches(static_pipeline))),
        ("micro_batches", "best_micro_batches", "deadline", "routes"),
    ),
    "titanic": PolicyEntry(
        on_routes(within_deadline(functools.partial(titanic, micro_batches=1))),
        ("partitions", "deadline", "routes"),
    ),
    "titanic_pipelined": PolicyEntry(
        on_routes(within_deadline(at_best_micro_batches(titanic))),
        ("micro_batches", "best_micro_batches", "partitions", "deadline", "routes"),
    ),
    "random": PolicyEntry(within_deadline(random_policy), ("deadline",), random=True),
    "vanilla_fl": PolicyEntry(vanilla_fl, _WHOLE_MODELS, by_clients=True),
    "selected_fl": PolicyEntry(selected_fl, ("clients", *_WHOLE_MODELS), by_clients=True),
    "splitfed": PolicyEntry(
        splitfed, ("cut", "client_micro_batches", *_SPLIT_MODELS), by_clients=True
    ),
    "control_unit_split": PolicyEntry(
        functools.partial(splitfed, tier="control_units"),
        ("cut", "client_micro_batches", *_SPLIT_MODELS),
        by_clients=True,
        by_control_units=True,
    ),
    "control_unit_fl": PolicyEntry(
        control_unit_fl, _WHOLE_MODELS, by_clients=True, by_control_units=True
    ),
    "hierarchical_fl": PolicyEntry(
        hierarchical_fl, _WHOLE_MODELS, by_clients=True, averages_in_clusters=True
    ),
}
"""Policies of a round by name; a new one is one entry."""
RUN_POLICIES = {**POLICIES, BEST_MODE: PolicyEntry(_refuse_single_round, ("modes",))}
"""Policies of a whole run: those, and the one that chooses among them."""


def make_policy(
    name: str,
    micro_batches: int = 8,
    partitions: int = 3,
    *,
    best_micro_batches: bool = False,
    decides: Sequence[str] = KNOBS,
    cut: str = "half",
    client_micro_batches: int | str = BEST,
    shares: str = "min_max",
    split: str = "min_max",
    accumulation: int | str = BEST,
    clients: int | str = BEST,
    broadcast: bool = True,
    routes: str = "control_units",
    deadline: float = 0.0,
    modes: Sequence[str] = MODES,
) -> Policy:
    """A policy by name; the same object for all values of options that it does not take.

    Args:
      name: of the registry, or ``package.module:name`` of one's own.
      micro_batches: of policies that fix them; policies that optimise them start from it.
      partitions: of ``titanic``.
      best_micro_batches: ``static_pipeline`` and ``titanic_pipelined`` take, in every round, the
        allowed number with the least latency instead.
      decides: knobs that ``alternating`` optimises; the others are the static pipeline's.
      cut: blocks on a client of ``splitfed``: ``half`` of them, the ``best``, or a number as
        text.
      client_micro_batches: of a client's part of ``splitfed``, or the ``best``.
      shares: of the D2E band among clients, ``min_max`` or ``equal``.
      split: of a cluster's mini-batch among its clients, ``min_max`` or ``even``.
      accumulation: pieces of a client's part, of whole models; ``best`` are the least that fit.
      clients: of a cluster, of ``selected_fl``; ``best`` keep all limits and end first.
      broadcast: send parameters to all clients in one transmission.
      routes: of pipelines with a rule for them, ``control_units`` or ``gateways``.
      deadline: after which a policy that ignores the channel leaves a cluster or client out of
        the round, in reference latencies; 0 is off.
      modes: policies among which the first round of ``best_mode`` chooses.

    Returns:
      ``policy(key, problem) -> decision``, a pure function that can be jitted.

    Raises:
      InputError: if there is no such policy, or it or a number is wrong.

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
    for option, count in {"micro_batches": micro_batches, "partitions": partitions}.items():
        if count < 1:
            raise InputError(option, count, "not positive", "Give 1 or more")
    options = {
        "micro_batches": micro_batches,
        "partitions": partitions,
        "best_micro_batches": best_micro_batches,
        "decides": tuple(decides),
        "cut": cut,
        "client_micro_batches": client_micro_batches,
        "shares": shares,
        "split": split,
        "accumulation": accumulation,
        "clients": clients,
        "broadcast": broadcast,
        "routes": routes,
        "deadline": deadline,
    }
    if name == BEST_MODE:
        check_modes(modes)
        return ModePolicy(
            tuple(Mode(mode, make_policy(mode, **options), policy_entry(mode)) for mode in modes)
        )
    return _policy(name, entry, **{option: options[option] for option in entry.options})


def policy_entry(name: str) -> PolicyEntry:
    """Entry of a policy of the registry, or of one's own as ``package.module:name``.

    One's own is a function ``decide(problem)``, or a :class:`PolicyEntry`.

    Raises:
      InputError: if there is no such policy.
    """
    found = find("policy.name", name, RUN_POLICIES)
    if not callable(found) and not isinstance(found, PolicyEntry):
        remedy = "Name a function of the problem, or a PolicyEntry"
        raise InputError("policy.name", name, f"it is a {type(found).__name__}", remedy)
    return found if isinstance(found, PolicyEntry) else PolicyEntry(found)


def check_modes(modes: Sequence[str]) -> None:
    """Refuse modes among which no first round can choose."""
    problem = ""
    if not modes or len(set(modes)) < len(modes):
        problem = "no different policies"
    elif BEST_MODE in modes:
        problem = f"{BEST_MODE} chooses among others"
    elif any(policy_entry(mode).averages_in_clusters for mode in modes):
        problem = "its control units would sum updates in one of the modes, and not in others"
    if problem:
        remedy = f"Name policies, each once, such as {','.join(MODES)}"
        raise InputError("policy.modes", tuple(modes), problem, remedy)


@functools.cache
def _policy(name: str, entry: PolicyEntry, **options: Any) -> Policy:
    """The same object for the same arguments, so that it is compiled once."""
    _check_parameters(name, entry, options)
    kind = ClientDecision if entry.by_clients else Decision

    def policy(key: Array, problem: RoundProblem) -> Decision | ClientDecision:
        given = (key, problem.as_policies_see) if entry.random else (problem.as_policies_see,)
        decision = entry.decide(*given, **options)
        if not isinstance(decision, kind):
            remedy = f"Return a {kind.__name__}"
            if isinstance(decision, ClientDecision):
                remedy += ", or name a PolicyEntry(decide, by_clients=True)"
            found = "nothing" if decision is None else f"a {type(decision).__name__}"
            raise InputError("policy.name", name, f"it returned {found}", remedy)
        return decision

    if not entry.offline:
        return policy
    no_key: Any = None  # it takes none
    return OfflinePolicy(functools.partial(policy, no_key))


def _check_parameters(name: str, entry: PolicyEntry, options: Mapping[str, Any]) -> None:
    """Refuse an entry whose fields contradict, or whose function does not take what it is given."""
    for other in ("random", "by_clients"):
        if entry.offline and getattr(entry, other):
            problem, remedy = f"both offline and {other}", "Leave one of them out"
            raise InputError("policy.name", name, problem, remedy)
    given = ("key", "problem") if entry.random else ("problem",)
    try:
        parameters = inspect.signature(entry.decide)
    except (TypeError, ValueError):  # it shows none
        return
    try:
        parameters.bind(*given, **options)
    except TypeError:
        problem = f"it takes {parameters}, and is given ({', '.join((*given, *options))})"
        remedy = "Define decide(problem), or name a PolicyEntry(decide, random=True) for "
        remedy += "decide(key, problem)"
        raise InputError("policy.name", name, problem, remedy) from None
