"""Are the long-term constraints kept, and at what latency: policies over random networks.

    python -m experiments.closed_loop --config=configs/default.py --workdir=DIR \
        --rounds=300 --realisations=256 --v=1,10,100

No learning. Every policy and V meets the same networks and the same fading. Results stand
in ``summary.json``; a run that was killed goes on with the same arguments, chunk by chunk,
and ends with the same bytes.
"""

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict
from rich.console import Console
from rich.progress import track

from collapipe_jax.command_line import read_numbers, require_positive, run_reporting_errors
from collapipe_jax.config.system import build_system_params
from collapipe_jax.control.backlog_bound import unavoidable_debt
from collapipe_jax.control.budget_floors import control_unit_floor_j, device_budget_floor_j
from collapipe_jax.control.queues import queues_before
from collapipe_jax.cost.feasibility import can_run
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.files.atomic import write_text
from collapipe_jax.files.checkpoints import open_workdir
from collapipe_jax.policies.registry import POLICIES, Policy, make_policy
from collapipe_jax.simulation.environment import SystemRound, draw_system, problems_met, simulate
from collapipe_jax.simulation.system import SystemParams
from experiments.array_files import write_arrays
from experiments.closed_loop_files import (
    chunk_file,
    chunk_starts,
    load_closed_loop,
    networks_file,
)
from experiments.closed_loop_summary import DIVERGENCE_LIMIT, summarise, summary_table
from experiments.configuration import read_checked_config
from experiments.realisations import chunk_rows, realisation_keys


class Network(NamedTuple):
    """What is kept of a network.

    Attributes:
      reference_latency_s: ``T_ref``.
      can_run: clusters that can hold the encoder, ``[N]``.
      control_unit_floor: least energy over the budget of every control unit, ``[N]``.
      device_floor: least budget of the devices over their budget, ``[N]``.
      least_final_queue: of every control unit after the last round, whatever decides as long
        as it keeps the mean divergence, ``[N]``.
    """

    reference_latency_s: Array
    can_run: Array
    control_unit_floor: Array
    device_floor: Array
    least_final_queue: Array


class Realisation(NamedTuple):
    """What is kept of a realisation. Means are over the rounds, without unit but for latency.

    Attributes:
      mean_latency_s: seconds.
      latency_over_reference: mean, over the network's ``T_ref``.
      energy_over_budget: mean, ``[N, K + 1]``.
      divergence_over_target: mean.
      final_energy_queue: after the last round, ``[N, K + 1]``.
      final_divergence_queue: after the last round.
      mean_energy_queue: ``[N, K + 1]``.
      mean_divergence_queue: its mean.
      energy_drift: mean of half the sum over nodes of ``(E / budget - 1)^2``.
      divergence_drift: mean of half of ``(Gamma / target - 1)^2``.
      lifted_cost: mean of what prices above the queues add to (P2).
      absent_rounds: rounds that a cluster sat out, ``[N]``.
    """

    mean_latency_s: Array
    latency_over_reference: Array
    energy_over_budget: Array
    divergence_over_target: Array
    final_energy_queue: Array
    final_divergence_queue: Array
    mean_energy_queue: Array
    mean_divergence_queue: Array
    energy_drift: Array
    divergence_drift: Array
    lifted_cost: Array
    absent_rounds: Array


def main(argv: Sequence[str]) -> None:
    """Simulate what is not on file yet, then summarise all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="a file with get_config()")
    parser.add_argument("--workdir", required=True, help="where results go")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--realisations", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=32, help="realisations at a time")
    parser.add_argument("--policies", default=",".join(POLICIES), help="names, with commas")
    parser.add_argument("--v", help="values of V, with commas (default: the configuration's)")
    options, overrides = parser.parse_known_args(argv)

    settings = _settings(options, overrides)
    config = ConfigDict(settings["config"])
    clusters = config.network.clusters
    params = build_system_params(config, np.full(clusters, 1.0 / clusters))
    workdir = open_workdir(options.workdir, settings, resume=True)
    console = Console()
    _simulate_missing(workdir, settings, params, console)
    summary = summarise(load_closed_loop(workdir))
    write_text(workdir / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    console.print(summary_table(summary))
    console.print(f"written: {workdir / 'summary.json'}")


def _settings(options: argparse.Namespace, overrides: Sequence[str]) -> dict[str, Any]:
    """All that the numbers depend on, checked."""
    require_positive(rounds=options.rounds, realisations=options.realisations, chunk=options.chunk)
    config = read_checked_config(options.config, overrides)
    policies = list(dict.fromkeys(options.policies.split(",")))
    for name in policies:
        make_policy(name)
    return {
        "config": config.to_dict(),
        "closed_loop": {
            "rounds": options.rounds,
            "realisations": options.realisations,
            "chunk": min(options.chunk, options.realisations),
            "policies": policies,
            "v": [config.control.v] if options.v is None else read_numbers("--v", options.v),
        },
    }


def _simulate_missing(
    workdir: Path, settings: dict[str, Any], params: SystemParams, console: Console
) -> None:
    """Draw the networks and run the chunks that are not on file."""
    asked, config = settings["closed_loop"], settings["config"]
    keys = realisation_keys(config["seed"], asked["realisations"])
    if not networks_file(workdir).exists():
        write_arrays(networks_file(workdir), _networks(keys, params, asked))
    missing = list(_missing_chunks(workdir, asked))
    for path, name, v, start in track(missing, description="simulating", console=console):
        rows = chunk_rows(start, asked["chunk"], asked["realisations"])
        policy = make_policy(**{**config["policy"], "name": name})
        done = _realisations(keys[rows], with_v(params, v), policy, asked["rounds"])
        left = asked["realisations"] - start
        kept = {field: np.asarray(value)[:left] for field, value in done._asdict().items()}
        write_arrays(path, kept)


def _missing_chunks(workdir: Path, asked: dict[str, Any]) -> Iterator[tuple]:
    """Path, policy, V and first realisation of every chunk that is not on file."""
    starts = chunk_starts(asked["realisations"], asked["chunk"])
    for name, v, start in itertools.product(asked["policies"], asked["v"], starts):
        path = chunk_file(workdir, name, v, start)
        if not path.exists():
            yield path, name, v, start


def with_v(params: SystemParams, v: float) -> SystemParams:
    """The same networks under another weight of latency, an array: nothing is compiled anew."""
    return params.replace(control=params.control.replace(v=jnp.asarray(v, jnp.float32)))


@jax.jit
def drawn(key: Array, params: SystemParams) -> tuple[RoundProblem, Array, Array]:
    """The problem of a network at mean gains, who can run and the control units' floors.

    Args:
      key: of the realisation, as :func:`simulate` takes it.
      params: what the network is drawn from.
    """
    problem = draw_system(key, params).mean_problem
    floor = control_unit_floor_j(problem) / problem.control.energy_budget_j[:, 0]
    return problem, can_run(problem), floor


def _networks(keys: Array, params: SystemParams, asked: dict[str, Any]) -> dict[str, np.ndarray]:
    """What is kept of all networks, stacked."""
    debts = _least_final_queues(keys, params, asked)
    networks = [_network(key, params, debt) for key, debt in zip(keys, debts, strict=True)]
    fields = zip(*networks, strict=True)
    return dict(zip(Network._fields, map(np.stack, fields), strict=True))


def _network(key: Array, params: SystemParams, least_final_queue: np.ndarray) -> Network:
    problem, runs, floor = drawn(key, params)
    budget_j = np.asarray(problem.control.energy_budget_j)[:, 1]
    return Network(
        reference_latency_s=problem.control.reference_latency_s,
        can_run=runs,
        control_unit_floor=floor,
        device_floor=device_budget_floor_j(problem) / budget_j,
        least_final_queue=least_final_queue,
    )


def _least_final_queues(keys: Array, params: SystemParams, asked: dict[str, Any]) -> np.ndarray:
    """Debts that nobody can avoid in any of the networks, ``[R, N]``."""
    realisations, chunk = asked["realisations"], asked["chunk"]
    debts = []
    for start in chunk_starts(realisations, chunk):
        rows = chunk_rows(start, chunk, realisations)
        problems = _channels(keys[rows], params, asked["rounds"])
        debts.append(unavoidable_debt(problems, DIVERGENCE_LIMIT))
    return np.concatenate(debts)[:realisations]


@functools.partial(jax.jit, static_argnames="rounds")
def _channels(keys: Array, params: SystemParams, rounds: int) -> RoundProblem:
    """The rounds that realisations meet, the same for every policy but for their queues."""
    anybody = make_policy("static_pipeline", params.control.reference_micro_batches)
    return jax.vmap(lambda key: problems_met(key, params, anybody, rounds))(keys)


@functools.partial(jax.jit, static_argnames=("policy", "rounds"))
def _realisations(keys: Array, params: SystemParams, policy: Policy, rounds: int) -> Realisation:
    return jax.vmap(lambda key: realisation(key, params, policy, rounds))(keys)


def realisation(key: Array, params: SystemParams, policy: Policy, rounds: int) -> Realisation:
    """Simulate one network and keep what the constraints and the trade-off need.

    Args:
      key: random key.
      params: what the network is drawn from.
      policy: who decides.
      rounds: length of the horizon.
    """
    control = draw_system(key, params).mean_problem.control
    history = simulate(key, params, policy, rounds)
    cost, queues = history.cost, history.queues
    energy = cost.energy_j / control.energy_budget_j[None]
    divergence = cost.divergence / control.divergence_target
    latency_s = jnp.mean(cost.latency_s)
    return Realisation(
        mean_latency_s=latency_s,
        latency_over_reference=latency_s / control.reference_latency_s,
        energy_over_budget=jnp.mean(energy, axis=0),
        divergence_over_target=jnp.mean(divergence),
        final_energy_queue=queues.energy[-1],
        final_divergence_queue=queues.divergence[-1],
        mean_energy_queue=jnp.mean(queues.energy, axis=0),
        mean_divergence_queue=jnp.mean(queues.divergence),
        energy_drift=jnp.mean(jnp.sum((energy - 1.0) ** 2, axis=(1, 2))) / 2.0,
        divergence_drift=jnp.mean((divergence - 1.0) ** 2) / 2.0,
        lifted_cost=jnp.mean(_lifted_cost(history, energy, divergence)),
        absent_rounds=jnp.sum(cost.absent, axis=0),
    )


def _lifted_cost(history: SystemRound, energy: Array, divergence: Array) -> Array:
    """What was shown above the queues times what was spent, ``[rounds]``."""
    lifted = jax.tree.map(jnp.subtract, history.shown, queues_before(history.queues))
    return jnp.sum(lifted.energy * energy, axis=(1, 2)) + lifted.divergence * divergence


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
