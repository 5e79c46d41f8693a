"""All policies side by side on the same networks, under the same fading; no learning.

    python -m experiments.compare --config=configs/paper.py --workdir=DIR \
        --rounds=50 --realisations=256

Results stand in ``summary.json``; figures are drawn from ``checkpoints/``. A run that was
killed goes on with the same arguments, chunk by chunk, and ends with the same bytes.
"""

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict
from rich.console import Console
from rich.progress import track

from collapipe_jax.command_line import require_positive, run_reporting_errors
from collapipe_jax.config.system import build_system_params
from collapipe_jax.cost.client_decision import ClientDecision
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.feasibility import can_run
from collapipe_jax.files.atomic import write_text
from collapipe_jax.files.checkpoints import open_workdir
from collapipe_jax.policies.registry import POLICIES, Policy, make_policy
from collapipe_jax.simulation.environment import draw_system, simulate_system
from collapipe_jax.simulation.system import EdgeSystem, SystemParams
from experiments.array_files import write_arrays
from experiments.compare_files import chunk_file, load_comparison, networks_file
from experiments.compare_summary import summarise, summary_table
from experiments.configuration import read_checked_config
from experiments.realisations import chunk_rows, realisation_keys


class Network(NamedTuple):
    """What is kept of a network.

    Attributes:
      reference_latency_s: ``T_ref``.
      can_run: clusters that can hold the encoder, ``[N]``.
      energy_budget_j: ``[N, K + 1]``.
      divergence_target: of the mean over rounds.
      memory_limit_bytes: ``[N, K]``.
    """

    reference_latency_s: Array
    can_run: Array
    energy_budget_j: Array
    divergence_target: Array
    memory_limit_bytes: Array


class Realisation(NamedTuple):
    """What is kept of a realisation, round by round ``[T]`` unless another shape is given.

    Attributes:
      latency_s, compute_latency_s: of the round.
      parts_s: of the slowest cluster's latency, ``[T, 5]``, in the order of ``LatencyParts``.
      energy_j: of all nodes.
      divergence: Gamma.
      device_memory_bytes: of the device that holds most.
      loss_probability: mean over clusters, or clients, that take part.
      worst_energy_queue: largest of all nodes.
      divergence_queue: ``z``.
      active_devices: that hold blocks or samples, of all clusters.
      micro_batches: mean over clusters that take part; 1 for clients.
      mean_energy_j: of every node over the rounds, ``[N, K + 1]``.
      blocks_held: devices and rounds by number of blocks, ``[L + 1]``; of clients, of those
        that take part.
      memory_by_blocks: their summed memory, ``[L + 1]``.
      absent_rounds: rounds that a cluster sat out, ``[N]``.
      violated: rounds that break each limit, by name.
    """

    latency_s: Array
    compute_latency_s: Array
    parts_s: Array
    energy_j: Array
    divergence: Array
    device_memory_bytes: Array
    loss_probability: Array
    worst_energy_queue: Array
    divergence_queue: Array
    active_devices: Array
    micro_batches: Array
    mean_energy_j: Array
    blocks_held: Array
    memory_by_blocks: Array
    absent_rounds: Array
    violated: dict[str, Array]


def main(argv: Sequence[str]) -> None:
    """Simulate what is not on file yet, then summarise all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="a file with get_config()")
    parser.add_argument("--workdir", required=True, help="where results go")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--realisations", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=64, help="realisations at a time")
    parser.add_argument("--policies", default=",".join(POLICIES), help="names, with commas")
    options, overrides = parser.parse_known_args(argv)

    console = Console()
    config = read_checked_config(options.config, overrides)
    settings = comparison_settings(
        config, options.rounds, options.realisations, options.chunk, options.policies.split(",")
    )
    summary = compare(settings, options.workdir, console)
    console.print(summary_table(summary))
    console.print(f"written: {Path(options.workdir) / 'summary.json'}")


def comparison_settings(
    config: ConfigDict, rounds: int, realisations: int, chunk: int, policies: Sequence[str]
) -> dict[str, Any]:
    """All that the numbers of a comparison depend on, for a checked configuration.

    Raises:
      InputError: naming the option that is wrong.
    """
    require_positive(rounds=rounds, realisations=realisations, chunk=chunk)
    policies = list(dict.fromkeys(policies))
    for name in policies:
        make_policy(name)
    asked = {"rounds": rounds, "realisations": realisations}
    asked |= {"chunk": min(chunk, realisations), "policies": policies}
    return {"config": config.to_dict(), "compare": asked}


def compare(settings: dict[str, Any], workdir: str | Path, console: Console) -> dict[str, Any]:
    """Run what is missing in a workdir, and summarise.

    Args:
      settings: of :func:`comparison_settings`.
      workdir: where results go; a run of the same settings goes on there.
      console: where progress is shown.

    Returns:
      The summary, as it stands in ``summary.json``.
    """
    folder = open_workdir(workdir, settings, resume=True)
    config = ConfigDict(settings["config"])
    params = build_system_params(
        config, np.full(config.network.clusters, 1 / config.network.clusters)
    )
    _simulate_missing(folder, settings, params, console)
    summary = summarise(load_comparison(folder))
    write_text(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary


def _simulate_missing(
    workdir: Path, settings: dict[str, Any], params: SystemParams, console: Console
) -> None:
    """Draw the networks and run the chunks that are not on file."""
    asked, config = settings["compare"], settings["config"]
    keys = realisation_keys(config["seed"], asked["realisations"])
    systems = _draw(keys, params)
    if not networks_file(workdir).exists():
        write_arrays(networks_file(workdir), _named(_network(systems)))
    missing = [
        (name, start)
        for name in asked["policies"]
        for start in range(0, asked["realisations"], asked["chunk"])
        if not chunk_file(workdir, name, start).exists()
    ]
    for name, start in track(missing, description="simulating", console=console):
        rows = chunk_rows(start, asked["chunk"], asked["realisations"])
        here, there = jax.tree.map(lambda leaf, rows=rows: leaf[rows], (keys, systems))
        policy = make_policy(**{**config["policy"], "name": name})
        done = _named(_realisations(here, there, policy, asked["rounds"]))
        kept = {field: value[: asked["realisations"] - start] for field, value in done.items()}
        write_arrays(chunk_file(workdir, name, start), kept)


@jax.jit
def _draw(keys: Array, params: SystemParams) -> EdgeSystem:
    """All networks, ``[R]``."""
    return jax.vmap(lambda key: draw_system(key, params))(keys)


@jax.jit
@jax.vmap
def _network(system: EdgeSystem) -> Network:
    problem = system.mean_problem
    return Network(
        reference_latency_s=problem.control.reference_latency_s,
        can_run=can_run(problem),
        energy_budget_j=problem.control.energy_budget_j,
        divergence_target=problem.control.divergence_target,
        memory_limit_bytes=problem.compute.memory_bytes,
    )


def _named(kept: NamedTuple) -> dict[str, np.ndarray]:
    """Fields as arrays by name, those of a dictionary as ``field.key``."""
    arrays = {}
    for name, value in kept._asdict().items():
        entries = value if isinstance(value, dict) else {"": value}
        for key, entry in entries.items():
            arrays[f"{name}.{key}" if key else name] = np.asarray(entry)
    return arrays


@functools.partial(jax.jit, static_argnames=("policy", "rounds"))
def _realisations(keys: Array, systems: EdgeSystem, policy: Policy, rounds: int) -> Realisation:
    return jax.vmap(lambda key, system: realisation(key, system, policy, rounds))(keys, systems)


def realisation(key: Array, system: EdgeSystem, policy: Policy, rounds: int) -> Realisation:
    """Simulate one network and keep what the comparison needs.

    Args:
      key: random key; the same key is the same fading for every policy.
      system: the network.
      policy: who decides.
      rounds: length of the horizon.
    """
    history = simulate_system(key, system, policy, rounds)
    cost, decision = history.cost, history.decision
    slowest = jnp.argmax(cost.cluster_latency_s, axis=1, keepdims=True)
    parts_s = [jnp.take_along_axis(part, slowest, axis=1)[:, 0] for part in cost.parts]
    blocks, takes_part = _blocks_held(decision)
    counts = jnp.where(takes_part, 1.0, 0.0).ravel()
    slots = system.mean_problem.workload.blocks + 1
    return Realisation(
        latency_s=cost.latency_s,
        compute_latency_s=cost.compute_latency_s,
        parts_s=jnp.stack(parts_s, axis=-1),
        energy_j=jnp.sum(cost.energy_j, axis=(1, 2)),
        divergence=cost.divergence,
        device_memory_bytes=jnp.max(cost.memory_bytes, axis=(1, 2)),
        loss_probability=_mean_loss(cost.loss_probability, takes_part),
        worst_energy_queue=jnp.max(history.queues.energy, axis=(1, 2)),
        divergence_queue=history.queues.divergence,
        active_devices=jnp.sum(takes_part, axis=(1, 2)),
        micro_batches=_mean_micro_batches(decision),
        mean_energy_j=jnp.mean(cost.energy_j, axis=0),
        blocks_held=jnp.bincount(blocks.ravel(), counts, length=slots),
        memory_by_blocks=jnp.bincount(
            blocks.ravel(), counts * cost.memory_bytes.ravel(), length=slots
        ),
        absent_rounds=jnp.sum(cost.absent, axis=0),
        violated={name: jnp.sum(broken) for name, broken in history.violations.items()},
    )


def _blocks_held(decision: Decision | ClientDecision) -> tuple[Array, Array]:
    """Blocks on every device and whether it takes part, ``[T, N, K]`` each."""
    if isinstance(decision, ClientDecision):
        held = jnp.broadcast_to(decision.client_blocks[:, None, None], decision.samples.shape)
        return held, decision.samples > 0
    return decision.segments, decision.segments > 0


def _mean_loss(loss_probability: Array, takes_part: Array) -> Array:
    """Mean over clusters ``[T, N]``, or clients ``[T, N, K]``, that take part."""
    counted = takes_part if loss_probability.ndim == 3 else jnp.any(takes_part, axis=2)
    axes = tuple(range(1, loss_probability.ndim))
    total = jnp.sum(jnp.where(counted, loss_probability, 0.0), axis=axes)
    return total / jnp.maximum(jnp.sum(counted, axis=axes), 1)


def _mean_micro_batches(decision: Decision | ClientDecision) -> Array:
    """Mean over clusters that take part, ``[T]``; clients do not cut theirs."""
    if isinstance(decision, ClientDecision):
        return jnp.ones(decision.samples.shape[0])
    present = jnp.any(decision.segments > 0, axis=2)
    total = jnp.sum(jnp.where(present, decision.micro_batches, 0), axis=1)
    return total / jnp.maximum(jnp.sum(present, axis=1), 1)


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
