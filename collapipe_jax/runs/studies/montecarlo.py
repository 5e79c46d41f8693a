"""Monte-Carlo simulation: policies on common random numbers, reduced and kept on file.

A realisation is one network and its fading, drawn from a key of its own, the same for every
policy. Realisations run in chunks; a reducer says what is kept of each history. A chunk is one
program on one device, whatever else runs beside it, so results depend on nothing but its size.
"""

import functools
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from rich.console import Console

from collapipe_jax.core.console import track
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.core.quantity import check_array
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.core.stopping import stop_between_steps
from collapipe_jax.edge.environment import (
    Environment,
    SystemRound,
    best_trial,
    reset,
    simulate,
    simulate_modes,
)
from collapipe_jax.edge.policies.registry import ModePolicy, Policy, make_policy
from collapipe_jax.edge.system import EdgeSystem, SystemParams
from collapipe_jax.runs.config.system import cuts_of
from collapipe_jax.runs.results.experiment import Results, Variable
from collapipe_jax.runs.results.realisations import parts_of, point_config
from collapipe_jax.runs.results.store import WHOLE, Place, Shard

_MOST_CHUNKS = 100_000

_Reducer = Callable[[EdgeSystem, SystemRound], dict[str, Variable]]
"""What is kept of a network and its history: a pure function that returns arrays by name."""


class Setup(NamedTuple):
    """A policy on networks."""

    policy: Policy  # who decides
    params: SystemParams  # what the networks are drawn from
    # Further arguments of the policy; array values, so nothing is compiled anew
    arguments: tuple = ()
    cuts: ArrayLike | None = None  # of :func:`.simulate`


def realisation_keys(seed: int, realisations: int) -> Array:
    """Keys of the realisations, ``[R]``; more of them leave the first ones as they are."""
    fold = functools.partial(jax.random.fold_in, jax.random.key(seed))
    return jax.vmap(fold)(jnp.arange(realisations))


def _chunk_rows(start: int, chunk: int, realisations: int) -> Array:
    """Rows of a chunk, ``[chunk]``; the last one repeated, so that all are of one shape."""
    return jnp.minimum(jnp.arange(start, start + chunk), realisations - 1)


def with_v(params: SystemParams, v: float) -> SystemParams:
    """The same networks under another weight of latency; nothing is compiled anew."""
    return params.replace(control=params.control.replace(v=jnp.asarray(v, jnp.float32)))


def label_realisations(variable: Variable) -> Variable:
    """Label the first axis of an array as that of the realisations."""
    return variable.replace(axes=f"realisation {variable.axes}".strip())


@functools.partial(jax.jit, static_argnames=("rounds", "policy", "reduce"))
def simulate_reduced(
    keys: Array,
    rows: Array,
    params: SystemParams,
    arguments: tuple,
    cuts: ArrayLike | None = None,
    *,
    policy: Callable,
    rounds: int,
    reduce: _Reducer,
) -> dict[str, Variable]:
    """Simulate realisations, and reduce each, to arrays ``[R, ...]``.

    They have the keys ``keys [R]`` and are numbered ``rows [R]``.
    """

    def with_arguments(key, problem):
        return policy(key, problem, *arguments)

    decide = with_arguments if arguments else policy

    def realisation(key, row):
        start = reset(key, params, row)
        if isinstance(policy, ModePolicy):
            return _reduce_best_mode(start, policy, rounds, cuts, reduce)
        return reduce(start.system, simulate(start, decide, rounds, cuts))

    kept = jax.vmap(realisation)(keys, rows)
    return {name: label_realisations(variable) for name, variable in kept.items()}


def _reduce_best_mode(
    start: Environment, policy: ModePolicy, rounds: int, cuts: ArrayLike | None, reduce: _Reducer
) -> dict[str, Variable]:
    """What is kept of the mode with the least trial, and its place among all as ``mode``."""
    values, histories = zip(*simulate_modes(start, policy, rounds, cuts), strict=True)
    best = best_trial(jax.tree.map(lambda *leaves: jnp.stack(leaves), *values))
    kept = [reduce(start.system, history) for history in histories]
    names = dict.fromkeys(name for own in kept for name in own)
    chosen = {}
    for name in names:
        like = next(own[name] for own in kept if name in own)
        # Pipelines and clients break limits of their own.
        every = [own[name].values if name in own else jnp.zeros_like(like.values) for own in kept]
        chosen[name] = like.replace(values=jnp.stack(every)[best])
    return {**chosen, "mode": Variable("", best)}


def policy_options(
    policies: Sequence[str],
    *,
    rounds: int,
    realisations: int,
    chunk: int,
    v: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Options of a Monte-Carlo experiment, checked; every policy once.

    ``v`` are weights of latency besides those of configurations.

    Raises:
      InputError: naming the option that is wrong.
    """
    require_positive(rounds=rounds, realisations=realisations, chunk=chunk)
    if (chunks := -(-realisations // chunk)) > _MOST_CHUNKS:
        problem = f"{chunks} chunks, and there may be {_MOST_CHUNKS}"
        raise InputError("--realisations", realisations, problem, "Lower it, or raise --chunk")
    check_array("a chunk of histories", {"--rounds": rounds, "--chunk": min(chunk, realisations)})
    for name in policies:
        make_policy(name)
    options = {
        "rounds": rounds,
        "realisations": realisations,
        "chunk": min(chunk, realisations),
        "policies": list(dict.fromkeys(policies)),
    }
    return options | ({} if v is None else {"v": [float(value) for value in v]})


Networks = Callable[[Array, Array, SystemParams, Mapping[str, Any]], dict[str, Variable]]
"""What is kept of networks: of the keys and numbers of a chunk, parameters, and options."""


def run_policies(
    results: Results,
    params: Sequence[SystemParams],
    networks: Networks,
    reduce: _Reducer,
    console: Console,
    shard: Shard = WHOLE,
) -> int:
    """Simulate the parts of a shard that are not on file.

    Args:
      results: where they go; its options are those of :func:`policy_options`.
      params: of every point, what its networks are drawn from.
      networks: what is kept of the networks.
      reduce: what is kept of every history.
      console: for progress.
      shard: which parts.

    Returns:
      The number of parts of all shards that are missing still.
    """
    parts = parts_of(results.options)
    own = shard.of(list(parts))
    configs = functools.cache(functools.partial(point_config, results.settings))
    for name in results.missing(name for name in own if not parts[name].policy):
        part, options = parts[name], results.options
        keys, rows = _draws(configs(part.point), part.place)
        kept = networks(keys, rows, params[part.point], options)
        results.write(name, _cut(kept, part.place), part.place)
    cases = {}
    for name in own:
        part = parts[name]
        if part.policy:
            config, system = configs(part.point), params[part.point]
            system = system if part.v is None else with_v(system, part.v)
            policy = make_policy(**{**config["policy"], "name": part.policy})
            cuts = cuts_of(config, part.policy)
            cases[name] = Work(Setup(policy, system, cuts=cuts), part.place, config)
    run_parts(results, cases, reduce, console)
    return len(results.missing(parts))


class Work(NamedTuple):
    """A part to simulate."""

    setup: Setup
    place: Place  # in the arrays on file
    config: Mapping[str, Any]  # whose seed draws the networks


def run_parts(
    results: Results, parts: Mapping[str, Work], reduce: _Reducer, console: Console
) -> None:
    """Simulate parts, by name, that are not on file: a chunk on every device at a time.

    The options of ``results`` have the number of rounds. A device has a program of its own: one
    program for all devices would round otherwise than that of a single one.
    """
    missing, devices = results.missing(parts), jax.local_devices()
    if 0 < len(missing) < len(devices):
        few = f"{len(missing)} of {len(devices)} devices have a chunk; a smaller --chunk makes more"
        console.print(few)
    idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for device in devices:
        idle.put(device)

    def make(part: str) -> None:
        device = idle.get()
        try:
            if not stop.is_set() and results.missing(
                [part]
            ):  # others may be at work in the same folder
                work = parts[part]
                kept = _simulate(work, results.options["rounds"], reduce, device)
                results.write(part, kept, work.place)
        finally:
            idle.put(device)

    with ThreadPoolExecutor(len(devices)) as pool, stop_between_steps() as stop:
        made = pool.map(make, missing) if len(devices) > 1 else map(make, missing)
        for _ in track(made, "chunks", len(missing), console):
            if stop.is_set():
                break
    if stop.is_set() and (left := len(results.missing(parts))):
        done = f"{len(parts) - left} of {len(parts)} parts are saved in {results.folder}"
        raise stop.kind(f"{done}; the same command goes on")


def _simulate(work: Work, rounds: int, reduce: _Reducer, device: Any) -> dict[str, Variable]:
    """A part on a device, without what fills up the last chunk."""
    inputs = jax.device_put((*_draws(work.config, work.place), *work.setup[1:]), device)
    policy = work.setup.policy
    kept = simulate_reduced(*inputs, policy=policy, rounds=rounds, reduce=reduce)
    return _cut(jax.device_get(kept), work.place)


def _draws(config: Mapping[str, Any], place: Place) -> tuple[Array, Array]:
    """Keys and numbers of the realisations of a chunk."""
    rows = _chunk_rows(place.start, place.chunk, place.realisations)
    return realisation_keys(seed_of(config, "network"), place.realisations)[rows], rows


def _cut(kept: dict[str, Variable], place: Place) -> dict[str, Variable]:
    """A chunk without what fills up the last one."""
    left = place.realisations - place.start
    return jax.tree.map(lambda values: values[:left], kept)
