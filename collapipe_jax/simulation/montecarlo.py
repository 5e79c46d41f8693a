"""Monte-Carlo simulation: policies on common random numbers, reduced and kept on file.

A realisation is one network and its fading, drawn from a key of its own, the same for every
policy. Realisations run in chunks; a reducer says what is kept of each history.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from rich.console import Console
from rich.progress import track

from collapipe_jax.errors import require_positive
from collapipe_jax.files.realisations import case_name, chunk_parts
from collapipe_jax.files.results import Results, Variable
from collapipe_jax.policies.registry import Policy, make_policy
from collapipe_jax.seeds import seed_of
from collapipe_jax.simulation.environment import SystemRound, reset, simulate
from collapipe_jax.simulation.system import EdgeSystem, SystemParams

Reducer = Callable[[EdgeSystem, SystemRound], dict[str, Variable]]
"""What is kept of a network and its history: a pure function that returns arrays by name."""


class Setup(NamedTuple):
    """A policy on networks."""

    policy: Policy  # who decides
    params: SystemParams  # what the networks are drawn from
    # Further arguments of the policy; array values, so nothing is compiled anew
    arguments: tuple = ()


def realisation_keys(seed: int, realisations: int) -> Array:
    """Keys of the realisations, ``[R]``; more of them leave the first ones as they are."""
    fold = functools.partial(jax.random.fold_in, jax.random.key(seed))
    return jax.vmap(fold)(jnp.arange(realisations))


def chunk_rows(start: int, chunk: int, realisations: int) -> Array:
    """Rows of a chunk, ``[chunk]``; the last one repeated, so that all are of one shape."""
    return jnp.minimum(jnp.arange(start, start + chunk), realisations - 1)


def with_v(params: SystemParams, v: float) -> SystemParams:
    """The same networks under another weight of latency; nothing is compiled anew."""
    return params.replace(control=params.control.replace(v=jnp.asarray(v, jnp.float32)))


def stack(variable: Variable) -> Variable:
    """Label the first axis of an array as that of the realisations."""
    return variable.replace(axes=f"realisation {variable.axes}".strip())


@functools.partial(jax.jit, static_argnames=("rounds", "policy", "reduce"))
def simulate_reduced(
    keys: Array,
    rows: Array,
    params: SystemParams,
    arguments: tuple,
    *,
    policy: Callable,
    rounds: int,
    reduce: Reducer,
) -> dict[str, Variable]:
    """Simulate realisations, and reduce each, to arrays ``[R, ...]``.

    They have the keys ``keys [R]`` and are numbered ``rows [R]``.
    """

    def decide(key, problem):
        return policy(key, problem, *arguments)

    def realisation(key, row):
        start = reset(key, params, row)
        return reduce(start.system, simulate(start, decide, rounds))

    kept = jax.vmap(realisation)(keys, rows)
    return {name: stack(variable) for name, variable in kept.items()}


def policy_options(
    policies: Sequence[str], v: Sequence[float], *, rounds: int, realisations: int, chunk: int
) -> dict[str, Any]:
    """Options of a Monte-Carlo experiment, checked; every policy once.

    Raises:
      InputError: naming the option that is wrong.
    """
    require_positive(rounds=rounds, realisations=realisations, chunk=chunk)
    for name in policies:
        make_policy(name)
    return {
        "rounds": rounds,
        "realisations": realisations,
        "chunk": min(chunk, realisations),
        "policies": list(dict.fromkeys(policies)),
        "v": [float(value) for value in v],
    }


def run_policies(
    results: Results,
    params: SystemParams,
    networks: Callable[[Array, SystemParams, Mapping[str, Any]], dict[str, Variable]],
    reduce: Reducer,
    console: Console,
) -> None:
    """Simulate the policies and V of a Monte-Carlo experiment that are not on file.

    Args:
      results: where they go; its options are those of :func:`policy_options`.
      params: what the networks are drawn from.
      networks: what is kept as the part ``networks``, from keys, parameters and options.
      reduce: what is kept of every history.
      console: for progress.
    """
    options = results.options
    if results.missing(["networks"]):
        keys = realisation_keys(seed_of(results.config, "network"), options["realisations"])
        results.write("networks", networks(keys, params, options))
    cases = {
        case_name(name, v): Setup(
            make_policy(**{**results.config["policy"], "name": name}), with_v(params, v)
        )
        for name in options["policies"]
        for v in options["v"]
    }
    run_cases(results, cases, reduce, console)


def run_cases(
    results: Results, cases: Mapping[str, Setup], reduce: Reducer, console: Console
) -> None:
    """Simulate the chunks of all cases, by name, that are not on file.

    The options of ``results`` have the rounds, realisations and chunk.
    """
    options = results.options
    keys = realisation_keys(seed_of(results.config, "network"), options["realisations"])
    chunks = {
        part: (case, start)
        for name, case in cases.items()
        for part, start in chunk_parts(name, options).items()
    }
    for part in track(results.missing(chunks), description="simulating", console=console):
        case, start = chunks[part]
        rows = chunk_rows(start, options["chunk"], options["realisations"])
        arrays = simulate_reduced(
            keys[rows],
            rows,
            case.params,
            case.arguments,
            policy=case.policy,
            rounds=options["rounds"],
            reduce=reduce,
        )
        left = options["realisations"] - start
        results.write(part, jax.tree.map(lambda values, left=left: values[:left], arrays))
