"""Memory of a device as XLA lays it out, over what policies are told by formula (15).

    python -m experiments.benchmarks.memory_formula

One line a number of blocks on a device, compiled once each: a training step of the encoder
(forward, backward, Adam) under GPipe on a mesh, everything kept or rematerialised.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import jax
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.cost.memory import device_memory_bytes
from collapipe_jax.cost.workload import encoder_workload
from collapipe_jax.errors import InputError
from collapipe_jax.models.config import EncoderConfig
from experiments.benchmarks.pipeline import Shape, device_bytes

STATE_BYTES = 16
"""Of a parameter in single precision: weight, gradient, two moments of Adam."""


def main(argv: Sequence[str]) -> None:
    """Compile for every number of blocks and print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", default="1,2,4,6,8", help="on a device, with commas")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=64)
    options = parser.parse_args(argv)
    if not options.blocks.replace(",", "").isdigit():
        raise InputError("--blocks", options.blocks, "not numbers", "Write them like 1,2,4")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", options.stages)
    shape = Shape(options.stages, options.batch, options.micro_batches, options.sequence)
    console = Console()
    numbers = [int(word) for word in options.blocks.split(",")]
    rows = [
        _ratios(options.width, number, shape)
        for number in track(numbers, description="compiling", console=console)
    ]
    table = Table(title="measured over formula (15)")
    for heading in ("blocks on a device", "kept", "rematerialised"):
        table.add_column(heading, justify="right")
    for number, row in zip(numbers, rows, strict=True):
        table.add_row(str(number), *(f"{ratio:.2f}" for ratio in row))
    console.print(table)


def _ratios(width: int, blocks: int, shape: Shape) -> list[float]:
    """Measured over stated, everything kept and rematerialised."""
    kept = EncoderConfig(
        width=width,
        heads=max(width // 32, 1),
        feed_forward_width=4 * width,
        encoder_blocks=blocks * shape.stages,
    )
    both = kept, dataclasses.replace(kept, rematerialise=True)
    return [device_bytes(one, shape, "gpipe") / formula_bytes(one, shape, "gpipe") for one in both]


def formula_bytes(config: EncoderConfig, shape: Shape, schedule: str) -> float:
    """Formula (15) for the first of the stages, whose part under 1F1B is the largest.

    Args:
      config: sizes; the blocks are split equally over the stages.
      shape: sizes of the step.
      schedule: "gpipe" or "1f1b".
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
        micro_batch_choices=np.array([shape.micro_batches]),
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
    segments = np.full((1, shape.stages), config.encoder_blocks // shape.stages)
    counts = np.array([shape.micro_batches])
    return float(device_memory_bytes(work, segments, counts, schedule)[0, 0])


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
