"""Memory of a device as XLA lays it out, over formula (15) that policies see.

    python -m experiments.benchmarks.memory

One line a number of blocks on a device, compiled once each: a training step of the encoder
(forward, backward, Adam) under GPipe on a mesh, everything kept or rematerialised.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import track

from collapipe_jax.cli.options import make_parser, read_counts, run_reporting_errors
from collapipe_jax.cost.memory import block_bytes
from collapipe_jax.cost.workload import encoder_workload
from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.tables import make_table
from experiments.benchmarks.pipeline import Shape, device_bytes

STATE_BYTES = 16
"""Of a parameter in single precision: weight, gradient, two moments of Adam."""


def main(argv: Sequence[str]) -> None:
    """Compile for every number of blocks and print the ratios."""
    parser = make_parser(
        __doc__,
        width=128,
        blocks=("1,2,4,6,8", "on a device, with commas"),
        stages=4,
        batch=32,
        micro_batches=8,
        sequence=64,
    )
    options = parser.parse_args(argv)
    numbers = read_counts("--blocks", options.blocks)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", options.stages)
    shape = Shape(options.stages, options.batch, options.micro_batches, options.sequence)
    console = Console()
    rows = []
    for number in track(numbers, description="compiling", console=console):
        kept = EncoderConfig(
            width=options.width,
            heads=max(options.width // 32, 1),
            feed_forward_width=4 * options.width,
            encoder_blocks=number * shape.stages,
        )
        both = [
            (one, shape, "gpipe") for one in (kept, dataclasses.replace(kept, rematerialise=True))
        ]
        ratios = (device_bytes(*one) / formula_bytes(*one) for one in both)
        rows.append((str(number), *(f"{ratio:.2f}" for ratio in ratios)))
    headings, title = ("blocks on a device", "kept", "rematerialised"), "measured over formula (15)"
    console.print(make_table(headings, rows, left=0, title=title))


def formula_bytes(config: EncoderConfig, shape: Shape, schedule: str) -> float:
    """Formula (15) for the first of the stages.

    Hops take no tick on a mesh. So devices alone count as stages there, and 1F1B keeps
    ``min(M, K)`` micro-batches.
    """
    work = encoder_workload(
        sequence=shape.sequence,
        width=config.width,
        heads=config.heads,
        feed_forward_width=config.feed_forward_width,
        encoder_blocks=config.encoder_blocks,
        dropout=config.dropout_rate > 0,
        rematerialise=config.rematerialise,
        batch=shape.batch,
        local_steps=1,
        micro_batch_choices=jnp.array([shape.micro_batches]),
        activation_number_bits=32,
        parameter_number_bits=32,
        state_bytes_per_parameter=STATE_BYTES,
        embedding_parameters=0,
        decoder_parameters=0,
        embed_flops=0.0,
        token_bits=32,
        target_tokens=0,
        decoder_flops=0.0,
    )
    count = shape.micro_batches
    in_flight = count if schedule == "gpipe" else min(count, shape.stages)
    blocks, samples = config.encoder_blocks // shape.stages, shape.batch / count
    kept_bytes = blocks * block_bytes(work, in_flight * samples)
    return float(kept_bytes + samples * work.block_working_bytes)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
