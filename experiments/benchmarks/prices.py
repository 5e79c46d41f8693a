"""Prices of a training step over what XLA compiles, for a published model and a file.

    python -m experiments.benchmarks.prices --model=models/MiniLM --data=banking77/train.csv
    python -m experiments.benchmarks.prices --model=models/SmolLM2-135M --data=gsm8k/train.jsonl \
        --lora=8

Model and file give all keys, as in ``collapipe train``; nothing is trained. FLOPs are of a
micro-batch. XLA counts the body of a loop once, so a block is compiled by itself. It counts
elementwise operations as it fuses them, and leaves out those of exponentials. Prices are of matrix
products, but for the embedding, which has none. Dropout is off: its masks are hashes of integers.

Memory is of a device with an equal part of the blocks under GPipe. *Alone* it runs the passes of
one micro-batch at a time, as a board does. *On a mesh* one program has a whole step of all
devices, and each of them has the mini-batch whole, several times.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import make_table
from collapipe_jax.edge.cost.computing import device_memory_bytes
from collapipe_jax.edge.cost.problem import Workload
from collapipe_jax.learning.models.adapters import add_adapters, join, split
from collapipe_jax.learning.models.block import encoder_block, init_encoder
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.split_model import Batch, SplitModel
from collapipe_jax.learning.pipeline.sharded import Kept, Stage
from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.config.files import read_values
from collapipe_jax.runs.config.finetuning import fine_tuning
from experiments.benchmarks.pipeline import QUICK, Shape, device_bytes, program_bytes


class Line(NamedTuple):
    """A price, and the same of a compiled program."""

    name: str
    price: float
    compiled: float


def main(argv: Sequence[str]) -> None:
    """Compile, and print prices and ratios."""
    parser = make_parser(__doc__, "model", "data", lora=(0, "rank of adapters; 0 has none"))
    options = parser.parse_args(argv)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", default.get_config().network.devices)
    tuning, console = fine_tuning(options.model, options.data, lora=options.lora), Console()
    console.print(tuning.summary)
    experiment = build_experiment(read_values(tuning.config, tuning.values)[0])
    config, task = experiment.config, experiment.task
    work, sizes = experiment.system.mean_problem.workload, task.model.sizes
    count, samples = config["policy"]["micro_batches"], config["training"]["batch"]
    batch = jax.tree.map(lambda leaf: leaf[: samples // count], task.data.train)
    stages = max(
        stages
        for stages in range(1, config["network"]["devices"] + 1)
        if sizes.encoder_blocks % stages == 0
    )
    shape = Shape(stages, samples, count, config["task"]["source_length"])
    lines = flop_lines(work, task.model, batch)
    _print(console, f"MFLOP of a micro-batch of {samples // count}", lines, 1e-6)
    lines = memory_lines(work, sizes, shape)
    title = f"MiB of a device with {sizes.encoder_blocks // stages} blocks"
    _print(console, title, lines, 2.0**-20)


def _print(console: Console, title: str, lines: Sequence[Line], scale: float) -> None:
    """A table of lines, their numbers scaled."""
    rows = []
    for line in lines:
        ratio = f"{line.compiled / line.price:.3f}" if line.price else ""
        numbers = (f"{scale * number:.5g}" for number in (line.price, line.compiled))
        rows.append((line.name, *numbers, ratio))
    headings = "", "price", "compiled", "compiled over price"
    console.print(make_table(headings, rows, title=title))


def flop_lines(work: Workload, model: SplitModel, batch: Batch) -> list[Line]:
    """FLOPs of the parts of a model on a micro-batch ``[b, ...]``, of which shapes alone matter."""
    sizes, samples = model.sizes, len(jax.tree.leaves(batch)[0])

    def draw(key: Array) -> tuple[Params, Params]:
        return split(add_adapters(key, model.init(key), sizes.adapters), sizes.adapters)

    def embed(params: Params, base: Params, batch: Batch) -> tuple[Array, Array]:
        return model.embed(join(params, base), batch, None)

    def block(params: Params, x: Array, base: Params, mask: Array) -> Array:
        return encoder_block(join(params, base), sizes, x, mask)

    def loss(params: Params, x: Array, batch: Batch) -> Array:
        return model.losses(params, x, batch, None)[0].sum()

    trained, base = jax.eval_shape(draw, jax.random.key(0))
    tables = trained["embedding"], base["embedding"], batch
    x, mask = jax.eval_shape(embed, *tables)
    own, frozen = (jax.tree.map(_one_block, part["encoder"]) for part in (trained, base))
    inputs, both = (own, x, frozen, mask), _both(block, 2)
    forward = _flops(block, *inputs)
    if sizes.rematerialise:
        # Apart, as in a loop over blocks: one program would share products of the two passes.
        block_flops = forward + _flops(lambda *given: both(*given)[1], x, *inputs)
    else:
        block_flops = _flops(both, x, *inputs)
    table, passes = work.embed_flops, 1.0 + work.backward_ratio
    counted = {
        "block, forward": (work.block_flops, forward),
        "block, both passes": (work.block_flops * passes, block_flops),
        "embedding, both passes": (
            table * passes,
            _flops(_both(lambda *given: embed(*given)[0], 1), x, *tables),
        ),
        "decoder, both passes": (
            work.decoder_flops,
            _flops(jax.value_and_grad(loss, argnums=(0, 1)), trained["decoder"], x, batch),
        ),
    }
    return [Line(name, float(samples * price), flops) for name, (price, flops) in counted.items()]


def _one_block(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """A leaf ``[L, ...]`` without its first axis."""
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _both(function: Callable, count: int) -> Callable:
    """Value and gradients by the first ``count`` arguments, behind a cotangent."""

    def run(cotangent: Array, *arguments: Any) -> tuple:
        rest = arguments[count:]
        value, pull_back = jax.vjp(lambda *given: function(*given, *rest), *arguments[:count])
        return value, pull_back(cotangent)

    return run


def _flops(function: Callable, *arguments: Any) -> float:
    """FLOPs that XLA counts in a compiled function."""
    program = jax.jit(function).lower(*arguments).compile(compiler_options=QUICK)
    return program.cost_analysis()["flops"]


def memory_lines(work: Workload, sizes: EncoderConfig, shape: Shape) -> list[Line]:
    """Bytes of a device with an equal part of the blocks: alone, of one block more, on a mesh."""
    blocks = sizes.encoder_blocks // shape.stages
    price, more = (_priced_bytes(work, shape, count) for count in (blocks, blocks + 1))
    compiled = alone_bytes(sizes, shape, blocks)
    grown = alone_bytes(sizes, shape, blocks + 1) - compiled
    return [
        Line("alone", price, compiled),
        Line("alone, a block more", more - price, grown),
        Line("on a mesh", price, device_bytes(sizes, shape, "gpipe")),
    ]


def _priced_bytes(work: Workload, shape: Shape, blocks: int) -> float:
    """Formula (15) for a device with so many blocks."""
    segments, count = jnp.array([[blocks]]), jnp.array([shape.micro_batches])
    return float(device_memory_bytes(work, segments, count)[0, 0])


def alone_bytes(sizes: EncoderConfig, shape: Shape, blocks: int) -> int:
    """Memory of a device that runs the passes of one micro-batch of its blocks at a time.

    It is that of the larger of the two programs, besides moments of Adam and, in the forward
    pass, sums of gradients.
    """
    sizes = dataclasses.replace(sizes, encoder_blocks=blocks)
    samples = shape.batch // shape.micro_batches

    def draw(key: Array) -> tuple:
        whole = {"embedding": {}, "encoder": init_encoder(key, sizes)}
        trained, base = split(add_adapters(key, whole, sizes.adapters), sizes.adapters)
        x = jnp.zeros((samples, shape.sequence, sizes.width))
        keys = jax.random.split(key, (shape.micro_batches, samples)) if sizes.drops else None
        rest = jnp.ones((shape.micro_batches, *x.shape[:2]), bool), keys
        state = trained["encoder"], base["encoder"], *rest
        return state, x, jnp.int32(0), make_stage(*state).empty_kept(x, shape.micro_batches)

    def make_stage(slots: Params, base: Params, mask: Array, keys: Array | None) -> Stage:
        return Stage(sizes, slots, jnp.int32(0), jnp.int32(blocks), mask, keys, base)

    def forward(kept: Kept, state: tuple, x: Array, number: Array) -> tuple[Array, Kept]:
        return make_stage(*state).forward(x, number, jnp.bool_(True), kept)

    def backward(
        sums: Params, cotangent: Array, state: tuple, number: Array, kept: Kept
    ) -> tuple[Array, Params]:
        return make_stage(*state).backward(cotangent, number, jnp.bool_(True), kept, sums)

    state, x, number, kept = jax.eval_shape(draw, jax.random.key(0))
    slots = state[0]
    of_slots = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(slots))
    programs = (
        jax.jit(forward, donate_argnums=0).lower(kept, state, x, number),
        jax.jit(backward, donate_argnums=(0, 1)).lower(slots, x, state, number, kept),
    )
    besides = 3 * of_slots, 2 * of_slots
    sizes_of = zip(programs, besides, strict=True)
    return max(program_bytes(program) + more for program, more in sizes_of)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
