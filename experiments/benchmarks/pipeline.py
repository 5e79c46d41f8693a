"""What the pipeline costs where it really runs: memory of a device, seconds of CPU.

    python -m experiments.benchmarks.pipeline
    python -m experiments.benchmarks.pipeline --width=256 --blocks=16 --out=runs/pipeline.json

One training step of the encoder (forward, backward, Adam) is compiled for one device and
for a device per stage, on forced host devices. Memory is what XLA lays out for a device;
seconds of CPU are those of the whole process, the fused step of one device and the
pipelines in turn, medians of the repetitions.
"""

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.table import Table

from collapipe_jax.cli.options import make_parser, run_training
from collapipe_jax.core.compilation import WITHOUT_FUSION_EMITTERS
from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.core.quantity import bytes_to_mib
from collapipe_jax.learning.models.adapters import add_adapters, join, split
from collapipe_jax.learning.models.block import encode, init_encoder
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.pipeline.mesh import gather_slots, make_pipeline_mesh
from collapipe_jax.learning.pipeline.schedules import SCHEDULES, Step
from experiments.benchmarks.timing import in_turns

_OPTIMIZER = optax.adam(1e-3)

QUICK = {"xla_backend_optimization_level": 0, **WITHOUT_FUSION_EMITTERS}
"""A fifth of the time to compile, and the same memory; for programs that are not run."""


class Shape(NamedTuple):
    """Sizes of a step that are not the model's: ``K``, ``B``, ``M``, and ``S`` tokens."""

    stages: int
    batch: int
    micro_batches: int
    sequence: int


class Batch(NamedTuple):
    """One cluster's mini-batch, and how its encoder is cut.

    The blocks per device are values, so that one program runs every partition.
    """

    x: jax.Array  # embedded tokens [1, B, S, h]
    mask: jax.Array  # [1, B, S]
    weights: jax.Array  # of the loss, like x
    segments: jax.Array  # [1, K]


def main(argv: Sequence[str]) -> None:
    """Measure, print, and write what came out."""
    options = _options(argv)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", options.stages)
    shape = Shape(options.stages, options.batch, options.micro_batches, options.sequence)
    sizes = {"width": options.width, "heads": options.heads, "encoder_blocks": options.blocks}
    config = EncoderConfig(**sizes, feed_forward_width=4 * options.width)
    console = Console()
    memory = measure_memory(config, shape)
    console.print(_memory_table(memory))
    seconds = measure_cpu_seconds(config, shape, options.repeats)
    console.print(_seconds_table(seconds))
    if options.out:
        report = {"options": vars(options), "memory": memory, "cpu_seconds": seconds}
        write_json(Path(options.out), report)
        console.print(f"written: {options.out}")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(
        __doc__,
        width=128,
        heads=4,
        blocks=(8, "a multiple of the stages"),
        stages=4,
        batch=64,
        micro_batches=8,
        sequence=64,
        repeats=9,
        out=(None, "where to write the figures as JSON"),
    )
    options = parser.parse_args(argv)
    require_positive(repeats=options.repeats)
    if options.stages < 1 or options.blocks % options.stages:
        raise InputError("--stages", options.stages, "does not divide the blocks", "Give a divisor")
    return options


def weighted_sum(
    head: Params, encoded: jax.Array, weights: jax.Array
) -> tuple[jax.Array, tuple[()]]:
    """A loss without parameters, so that the encoder alone is measured."""
    del head
    return jnp.vdot(encoded, weights), ()


def make_step(config: EncoderConfig, shape: Shape, schedule: str | None) -> Callable:
    """A step by a schedule on a mesh, or fused on one device: a scan, ``jax.grad``, Adam."""

    def gradients_of(params: Params, base: Params, batch: Batch) -> tuple[Params, jax.Array]:
        if schedule is not None:
            given = {"slots": params, "base": base, "head": {}, "config": config}
            given |= {"loss": weighted_sum}
            given |= {"x": batch.x, "mask": batch.mask, "segments": batch.segments}
            step = Step(**given, data=batch.weights, micro_batches=shape.micro_batches)
            _, found = SCHEDULES[schedule](step)
            return found.slots, found.x
        x, mask, weights, _ = (leaf[0] for leaf in batch)

        def loss(params: Params, x: jax.Array) -> jax.Array:
            return weighted_sum({}, encode(join(params, base), config, x, mask), weights)[0]

        return jax.grad(loss, argnums=(0, 1))(params, x)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: tuple, batch: Batch) -> tuple[tuple, jax.Array]:
        params, moments, base = state
        gradient, by_x = gradients_of(params, base, batch)
        updates, moments = _OPTIMIZER.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments, base), by_x

    return step


def lay_out(shape_only: bool, mesh: Mesh | None, config: EncoderConfig, shape: Shape) -> tuple:
    """State and batch of a step, on a mesh of one cluster by K stages, or on one device.

    The blocks are split equally over the stages. With ``shape_only`` there are no values.

    Returns:
      ``((parameters, moments, base), Batch)``; parameters in slots where there is a mesh.
    """

    def draw(key: jax.Array) -> tuple:
        whole = {"embedding": {}, "encoder": init_encoder(key, config)}
        trained, base = split(add_adapters(key, whole, config.adapters))
        params, base = trained["encoder"], base["encoder"]
        capacity = config.encoder_blocks // shape.stages
        segments = jnp.full((1, shape.stages), capacity)
        if mesh is not None:
            stacks = jax.tree.map(lambda leaf: leaf[None], (params, base))
            params, base = gather_slots(stacks, segments, capacity)
        x = jax.random.normal(key, (1, shape.batch, shape.sequence, config.width))
        mask = jnp.ones(x.shape[:3], bool)
        state = params, _OPTIMIZER.init(params), base
        return state, Batch(x, mask, jnp.cos(x), segments)

    def place(leaf: jax.ShapeDtypeStruct, *axes: str) -> jax.ShapeDtypeStruct:
        sharding = mesh and NamedSharding(mesh, PartitionSpec(*axes[: leaf.ndim]))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    state, batch = jax.eval_shape(draw, jax.random.key(0))
    # The state is on its stages, the batch on all devices of the cluster.
    state = jax.tree.map(lambda leaf: place(leaf, "cluster", "stage"), state)
    everything = state, jax.tree.map(lambda leaf: place(leaf, "cluster"), batch)
    if shape_only:
        return everything
    where = jax.tree.map(lambda leaf: leaf.sharding, everything)
    return jax.jit(draw, out_shardings=mesh and where)(jax.random.key(0))


def device_bytes(config: EncoderConfig, shape: Shape, schedule: str | None) -> int:
    """Memory of one device for a training step, as XLA lays it out.

    ``schedule`` is a key of ``SCHEDULES``, or None for the fused step on one device.
    """
    mesh = None if schedule is None else make_pipeline_mesh(1, shape.stages)
    step = make_step(config, shape, schedule)
    return program_bytes(step.lower(*lay_out(True, mesh, config, shape)))


def program_bytes(lowered: Any) -> int:
    """Memory of one device for a program, as XLA lays it out.

    Arguments (parameters, moments, batch), outputs that are not arguments updated in
    place, and temporary memory (gradients, kept activations, work in progress).
    """
    sizes = lowered.compile(compiler_options=QUICK).memory_analysis()
    whole = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return whole - sizes.alias_size_in_bytes


def measure_memory(config: EncoderConfig, shape: Shape) -> list[dict]:
    """A row per way of training: the whole encoder on a device, or a segment of it."""
    ways = [(1, None)] + [(stages, name) for stages in (1, shape.stages) for name in SCHEDULES]
    rows = []
    for rematerialise in (False, True):
        changed = dataclasses.replace(config, rematerialise=rematerialise)
        for stages, schedule in ways:
            row = {"stages": stages, "schedule": schedule, "rematerialise": rematerialise}
            size = device_bytes(changed, shape._replace(stages=stages), schedule)
            rows.append(row | {"bytes": size})
    return rows


def measure_cpu_seconds(config: EncoderConfig, shape: Shape, repeats: int) -> dict[str, list]:
    """Seconds of CPU of every step of ``sequential`` and of the schedules, in alternation."""

    def keep_running(schedule: str | None, mesh: Mesh | None) -> Callable[[], None]:
        step = make_step(config, shape, schedule)
        state, batch = lay_out(False, mesh, config, shape)

        def run() -> None:
            nonlocal state
            state = jax.block_until_ready(step(state, batch))[0]

        return run

    mesh = make_pipeline_mesh(1, shape.stages)
    works = {"sequential": keep_running(None, None)}
    works |= {name: keep_running(name, mesh) for name in SCHEDULES}
    return in_turns(works, repeats, time.process_time)


def _memory_table(rows: list[dict]) -> Table:
    cells = []
    for row in rows:
        place = "1 device" if row["stages"] == 1 else f"{row['stages']} devices"
        activations = "rematerialised" if row["rematerialise"] else "kept"
        size = f"{bytes_to_mib(row['bytes']):.1f}"
        cells.append((place, row["schedule"] or "one scan", activations, size))
    headings, title = ("blocks on", "schedule", "activations", "MiB"), "memory of one device"
    return make_table(headings, cells, left=3, title=f"{title} for a training step")


def _seconds_table(seconds: dict[str, list]) -> Table:
    fused, rows = np.median(seconds["sequential"]), []
    for name, values in seconds.items():
        numbers = np.median(values), min(values), max(values), np.median(values) / fused
        rows.append((name, *(f"{number:.3g}" for number in numbers)))
    headings = ("step", "median", "least", "most", "ratio")
    return make_table(headings, rows, title="seconds of CPU of a step, all threads")


if __name__ == "__main__":
    raise SystemExit(run_training(main))
