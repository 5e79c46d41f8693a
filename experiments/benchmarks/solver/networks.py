"""Random networks on which the solver is measured, and what is measured, network by network.

Networks are hard, but not hopeless. The law "tight" changes the default configuration: memory that
forces splits, queues of all lengths, Rayleigh fading, and outage thresholds at which losses matter.
The law "wide" changes that of the paper: anything from half a GiB of memory to two, both bands from
5 to 80 MHz, V from 3 to 30, with the same queues and fading. The law "unusable" takes devices and
links away from "wide". Results are on file, one line each, from which a killed run goes on.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import write_text
from collapipe_jax.core.quantity import db_to_linear
from collapipe_jax.edge.cost.computing import block_bytes
from collapipe_jax.edge.cost.problem import Control, RoundProblem
from collapipe_jax.edge.environment import Environment, initial_state, observe
from collapipe_jax.edge.system import SystemParams, sample_system
from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.named import paper
from collapipe_jax.runs.config.system import build_system_params
from collapipe_jax.runs.studies.montecarlo import realisation_keys
from experiments.double_precision import pick

_BATCH = 32
_CHOICES = (1, 2, 4, 8, 16, 32)


HEAVY_LOSS = 0.9
"""Loss of a micro-batch above which no decision serves a network; such ones are apart."""


class NetworkShape(NamedTuple):
    """Sizes of a network, which fix the shapes of its problem."""

    clusters: int
    devices: int
    blocks: int


SMALL_SHAPES = tuple(NetworkShape(2, devices, blocks) for devices in (2, 3) for blocks in (4, 5, 6))
"""Networks small enough for exhaustive search."""

MIXED_SHAPES = (*SMALL_SHAPES, NetworkShape(3, 4, 8))
"""Networks on which shares and powers are compared."""

LARGE_SHAPE = NetworkShape(4, 5, 12)
"""The network of stated speeds, with six numbers of micro-batches to choose from."""


def sample_problems(seed: int, count: int, shape: NetworkShape, law: str = "tight") -> RoundProblem:
    """Random problems of one shape, stacked; problem ``i`` does not depend on ``count``.

    Args:
      seed: of the networks.
      count: how many.
      shape: of each.
      law: a key of :data:`LAWS`.

    Raises:
      InputError: if there is no such law.
    """
    if law not in LAWS:
        raise InputError("--law", law, "no such law", f"Take one of {', '.join(LAWS)}")
    get_config, change = LAWS[law]
    config = get_config()
    config.network.clusters, config.network.devices = shape.clusters, shape.devices
    config.model.encoder_blocks = shape.blocks
    config.training.update({"batch": _BATCH, "micro_batch_choices": _CHOICES})
    config.devices.memory_share = 1.0  # the static pipeline, its latency the unit, always fits
    config.dynamics.update({"d2e_rician_factor": 0.0, "d2d_rician_factor": 0.0})
    params = build_system_params(config)
    keys = realisation_keys(seed, count)
    return jax.jit(jax.vmap(lambda key: _sample_problem(key, params, change)))(keys)


def _sample_problem(
    key: Array, params: SystemParams, change: Callable[[Array, Array, RoundProblem], RoundProblem]
) -> RoundProblem:
    """One network in one round."""
    system_key, state_key, memory_key, queue_key, radio_key = jax.random.split(key, 5)
    system = sample_system(system_key, params)
    problem = observe(Environment(system, initial_state(state_key, system), state_key))
    problem = problem.replace(control=_with_queues(queue_key, problem.control))
    return change(memory_key, radio_key, problem)


def _tight(memory_key: Array, radio_key: Array, problem: RoundProblem) -> RoundProblem:
    """Memory that forces splits, and any outage threshold."""
    # Between the most robust format and 16-QAM's.
    threshold_db = jax.random.uniform(radio_key, minval=-6.7, maxval=8.0)
    memory_bytes = _tight_memory(memory_key, problem)
    return problem.replace(
        compute=problem.compute.replace(memory_bytes=memory_bytes),
        radio=problem.radio.replace(outage_threshold=db_to_linear(threshold_db)),
    )


def _wide(memory_key: Array, radio_key: Array, problem: RoundProblem) -> RoundProblem:
    """Any memory, bands and weight of latency within a decade or so."""
    shape = problem.compute.memory_bytes.shape
    memory_bytes = 2.0**30 * jax.random.uniform(memory_key, shape, minval=0.5, maxval=2.0)
    d2e_key, d2d_key, v_key = jax.random.split(radio_key, 3)

    def log_uniform(key, low, high):
        return jnp.exp(jax.random.uniform(key, minval=jnp.log(low), maxval=jnp.log(high)))

    return problem.replace(
        compute=problem.compute.replace(memory_bytes=memory_bytes),
        control=problem.control.replace(v=log_uniform(v_key, 3.0, 30.0)),
        radio=problem.radio.replace(
            d2e_bandwidth_hz=log_uniform(d2e_key, 5e6, 80e6),
            d2d_bandwidth_hz=log_uniform(d2d_key, 5e6, 80e6),
        ),
    )


def _unusable(memory_key: Array, radio_key: Array, problem: RoundProblem) -> RoundProblem:
    """Some devices absent, and some gains 0, near 1e-25 or anything under 1."""
    wide_key, link_key = jax.random.split(radio_key)
    problem = _wide(memory_key, wide_key, problem)
    share_key, link_key, kind_key, zero_key, gain_key, absent_key = jax.random.split(link_key, 6)
    gain, memory_bytes = problem.radio.d2d_gain, problem.compute.memory_bytes
    share = jax.random.uniform(share_key, minval=0.05, maxval=0.5)
    low, high = jax.random.choice(kind_key, jnp.array([(-27.0, -22.0), (-38.0, 0.0)]))
    other = 10.0 ** jax.random.uniform(gain_key, gain.shape, minval=low, maxval=high)
    other = jnp.where(jax.random.bernoulli(zero_key, 1 / 3), 0.0, other)
    replaced = jax.random.bernoulli(link_key, share, gain.shape)
    absent = jax.random.bernoulli(absent_key, 0.15, memory_bytes.shape)
    return problem.replace(
        compute=problem.compute.replace(memory_bytes=jnp.where(absent, 0.0, memory_bytes)),
        radio=problem.radio.replace(d2d_gain=jnp.where(replaced, other, gain)),
    )


LAWS = {
    "tight": (default.get_config, _tight),
    "wide": (paper, _wide),
    "unusable": (paper, _unusable),
}
"""Laws of random networks: a configuration, and what is changed in each network."""


def _tight_memory(key: Array, problem: RoundProblem) -> Array:
    """Memory for 1.2 to 2.5 encoders in a cluster, and for no whole one on a device."""
    work, (clusters, devices) = problem.workload, problem.compute.memory_bytes.shape
    total_key, split_key = jax.random.split(key)
    total = jax.random.uniform(total_key, (clusters, 1), minval=1.2, maxval=2.5)
    split = jax.random.uniform(split_key, (clusters, devices), minval=0.5, maxval=1.5)
    part = total * split / jnp.sum(split, axis=1, keepdims=True)
    blocks = jnp.minimum(jnp.ceil(work.blocks * part), work.blocks - 1)
    blocks_bytes = blocks * block_bytes(work, work.batch)
    return 1.001 * (blocks_bytes + work.batch * work.block_working_bytes)


def _with_queues(key: Array, control: Control) -> Control:
    """Energy queues over three decades, a quarter of them empty, and one of divergence."""
    scale_key, length_key, empty_key, divergence_key = jax.random.split(key, 4)
    scale = 10.0 ** jax.random.uniform(scale_key, minval=-1.0, maxval=2.0)
    energy = scale * jax.random.exponential(length_key, control.energy_queue.shape)
    energy = jnp.where(jax.random.bernoulli(empty_key, 0.25, energy.shape), 0.0, energy)
    divergence = 10.0 ** jax.random.uniform(divergence_key, minval=-1.0, maxval=1.5)
    return control.replace(energy_queue=energy, divergence_queue=divergence)


def run_networks(
    path: Path,
    networks: int,
    settings: dict[str, Any],
    shapes: Sequence[NetworkShape],
    draw: Callable[[int, int, NetworkShape], tuple],
    measure: Callable[..., dict],
    console: Console,
) -> list[dict]:
    """Measure the networks that are not on file yet.

    Args:
      path: of the lines; its folder is made.
      networks: how many in all, shapes taking turns.
      settings: all that the rows depend on, by the names of their options; has a ``seed``.
      shapes: of the networks.
      draw: arguments of ``measure`` for all networks of a shape, stacked, from a seed, their
        number and the shape.
      measure: the row of one of them.
      console: for progress.

    Returns:
      The rows, by number.

    Raises:
      InputError: if the file was written with other settings.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _rows_on_file(path, settings)
    with (
        path.open("a", encoding="utf-8") as stream,
        Progress(console=console, transient=True) as progress,
    ):
        done = sum(number < networks for number in rows)
        task = progress.add_task("networks", total=networks, completed=done)
        for place, shape in enumerate(shapes):
            numbers = range(place, networks, len(shapes))
            missing = [number for number in numbers if number not in rows]
            drawn = draw(settings["seed"] + place, len(numbers), shape) if missing else None
            for number in missing:
                row = {"network": number, **settings, "shape": list(shape)}
                rows[number] = row | measure(*pick(drawn, numbers.index(number)))
                stream.write(json.dumps(rows[number]) + "\n")
                stream.flush()
                os.fsync(stream.fileno())  # a kill cannot lose the line afterwards
                progress.advance(task)
    return [rows[number] for number in sorted(rows) if number < networks]


def _rows_on_file(path: Path, settings: dict[str, Any]) -> dict[int, dict]:
    """Networks on file, by number; a line cut off by a kill is dropped."""
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        for name, value in settings.items():
            if row.get(name) != value:
                problem = f"{path} was written with {row.get(name)}"
                key = f"--{name.replace('_', '-')}"
                raise InputError(key, value, problem, "Give another --workdir")
        rows[row["network"]] = row
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows.values()))
    return rows


def split_by_loss(rows: Sequence[dict]) -> tuple[list[dict], list[dict]]:
    """Rows whose loss is at most :data:`HEAVY_LOSS`, and the others."""
    light = [row for row in rows if row["loss"] <= HEAVY_LOSS]
    return light, [row for row in rows if row["loss"] > HEAVY_LOSS]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and maximum."""
    middle, high = np.quantile(values, (0.5, 0.95))
    return {"median": float(middle), "p95": float(high), "max": float(np.max(values))}


def spread_table(title: str, summary: dict[str, Any]) -> Table:
    """Table of spreads by name; a single number is in the first column."""
    rows = []
    for key, value in summary.items():
        numbers = value.values() if isinstance(value, dict) else [value]
        texts = (f"{x:.1e}" if isinstance(x, float) else str(x) for x in numbers)
        rows.append((key.replace("_", " "), *texts))
    return make_table(("", "median", "95 %", "largest"), rows, title=title)
