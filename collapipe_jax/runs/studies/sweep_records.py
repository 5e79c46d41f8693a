"""Comparisons at the points of a sweep, in one store; without axes one comparison."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from rich.console import Console

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.client_round import client_micro_batches
from collapipe_jax.edge.cost.convergence import absence_ratio
from collapipe_jax.edge.cost.decision import ClientDecision
from collapipe_jax.edge.environment import SystemRound
from collapipe_jax.edge.system import EdgeSystem, SystemParams
from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.sweeps import SEED, Axis, Sweep, read_sweep
from collapipe_jax.runs.config.system import system_params
from collapipe_jax.runs.results.experiment import Results, Variable
from collapipe_jax.runs.results.realisations import coordinates, sweep_settings
from collapipe_jax.runs.results.store import WHOLE, Shard
from collapipe_jax.runs.studies.comparison import networks
from collapipe_jax.runs.studies.montecarlo import run_policies

_POLICY = "policy.name"


class Comparisons(NamedTuple):
    """Comparisons to make, checked."""

    experiment: str  # its name
    sweep: Sweep
    options: dict[str, Any]  # of the experiment
    params: list[SystemParams]  # of every point


def read_comparisons(
    experiment: str,
    path: str,
    overrides: Mapping[str, Any],
    options: Mapping[str, Any],
    axes: Sequence[Axis] = (),
    seeds: int = 1,
) -> Comparisons:
    """Comparisons at all points of a sweep; nothing is on file yet.

    Args:
      experiment: its name.
      path: of the configuration.
      overrides: of all points.
      options: as of :func:`.policy_options`.
      axes: of the sweep.
      seeds: number of seeds.

    Raises:
      InputError: naming all that is wrong at any point.
    """
    params = []
    named = [keys[_POLICY] for axis in axes for keys in axis.keys if _POLICY in keys]
    if named:
        problem = "every point runs the policies of --policies"
        remedy = "Leave this key out of the axes, and name the policies with --policies"
        raise InputError(_POLICY, named, problem, remedy)

    def check(config: Config) -> None:
        if seeds > 1 and config.network.seed >= 0:
            problem = f"every {SEED} would draw these networks"
            raise InputError("network.seed", config.network.seed, problem, "Leave it out")
        params.append(system_params(config))

    sweep = read_sweep(path, overrides, axes, seeds, check)
    return Comparisons(experiment, sweep, dict(options), params)


def open_comparisons(workdir: str | os.PathLike, made: Comparisons) -> Results:
    """Take possession of a workdir, or go on there.

    Raises:
      InputError: if the folder holds something else.
    """
    swept, config = sweep_settings(made.sweep)
    options = made.options | (swept if made.sweep.axes else {})
    places = coordinates(options)
    return Results.create(workdir, made.experiment, options, config, places)


def run_comparisons(
    results: Results, made: Comparisons, console: Console, shard: Shard = WHOLE
) -> int:
    """Simulate the parts of a shard that are not on file; the number that all shards lack."""
    return run_policies(results, made.params, networks, per_round, console, shard)


def missing_by_shard(results: Results, parts: Sequence[str], count: int) -> dict[int, int]:
    """Missing parts of the shards that lack some, by their number."""
    missing = {index: len(results.missing(Shard(index, count).of(parts))) for index in range(count)}
    return {index: number for index, number in missing.items() if number}


def per_round(system: EdgeSystem, history: SystemRound) -> dict[str, Variable]:
    """Latency, energy, memory, losses and queues of every round."""
    cost, decision = history.cost, history.decision
    slowest = jnp.argmax(cost.cluster_latency_s, axis=1, keepdims=True)
    parts_s = [jnp.take_along_axis(part, slowest, axis=1)[:, 0] for part in cost.parts]
    if isinstance(decision, ClientDecision):
        takes_part = decision.samples > 0
        blocks = jnp.broadcast_to(decision.client_blocks[:, None, None], takes_part.shape)
        own = jax.vmap(client_micro_batches)(decision)
        micro_batches = _mean_over(takes_part, own)
    else:
        blocks, takes_part = decision.segments, decision.segments > 0
        micro_batches = _mean_over(~cost.absent, decision.micro_batches)
    loss = cost.loss_probability  # of clusters [T, N], or of clients [T, N, K]
    counted = takes_part if loss.ndim == 3 else ~cost.absent
    counts = jnp.where(takes_part, 1.0, 0.0).ravel()
    slots = system.mean_problem.workload.blocks + 1
    held_bytes = cost.memory_bytes  # of devices, or of the control units that train in their place
    if cost.control_unit_memory_bytes is not None:
        held_bytes = cost.control_unit_memory_bytes[..., None]
    memory_bytes = counts * held_bytes.ravel()
    memory_bytes = jnp.bincount(blocks.ravel(), memory_bytes, length=slots)
    weight = system.mean_problem.learning.cluster_weight
    ratio = jax.vmap(absence_ratio, in_axes=(None, 0))(weight, ~cost.absent)
    return {
        "latency_s": Variable("round", cost.latency_s),
        "compute_latency_s": Variable("round", cost.compute_latency_s),
        "parts_s": Variable("round part", jnp.stack(parts_s, axis=-1)),  # of the slowest cluster
        "energy_j": Variable("round", jnp.sum(cost.energy_j, axis=(1, 2))),
        "divergence": Variable("round", cost.divergence),
        "absence_ratio": Variable("round", ratio),
        "device_memory_bytes": Variable("round", jnp.max(held_bytes, axis=(1, 2))),
        # Means over clusters, or clients, that take part.
        "loss_probability": Variable("round", _mean_over(counted, loss)),
        "worst_energy_queue": Variable("round", jnp.max(history.queues.energy, axis=(1, 2))),
        "divergence_queue": Variable("round", history.queues.divergence),
        "active_devices": Variable("round", jnp.sum(takes_part, axis=(1, 2))),
        "participation": Variable("round", _participation(history)),
        "micro_batches": Variable("round", micro_batches),
        "mean_energy_j": Variable("cluster node", jnp.mean(cost.energy_j, axis=0)),
        # Devices and rounds by number of blocks, and their summed memory.
        "blocks_held": Variable("blocks", jnp.bincount(blocks.ravel(), counts, length=slots)),
        "memory_by_blocks": Variable("blocks", memory_bytes),
        "absent_rounds": Variable("cluster", jnp.sum(cost.absent, axis=0)),
        **{
            f"violated.{name}": Variable("", jnp.sum(broken))
            for name, broken in history.violations.items()
        },
    }


def _participation(history: SystemRound) -> Array:
    """Share of clusters, or of clients, that take part in every round, ``[T]``."""
    if isinstance(history.decision, ClientDecision):
        return jnp.mean(history.decision.samples > 0, axis=(1, 2))
    return jnp.mean(~history.cost.absent, axis=1)


def _mean_over(counted: Array, values: Array) -> Array:
    """Mean of some values of every round, ``[T, ...] -> [T]``; 0 of none."""
    axes = tuple(range(1, values.ndim))
    total = jnp.sum(jnp.where(counted, values, 0), axis=axes)
    return total / jnp.maximum(jnp.sum(counted, axis=axes), 1)
