"""Memory of a device as XLA lays it out, over formula (15) that policies see.

    python -m experiments.benchmarks.memory

One line a number of blocks on a device, compiled once each: a training step of the encoder
(forward, backward, Adam) under GPipe on a mesh, everything kept or rematerialised, or adapters of
rank 8 alone trained. Then what
XLA lays out on a device for the program of ``collapipe train``, by number of stages.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import track

from collapipe_jax.cli.options import make_parser, read_counts, run_reporting_errors
from collapipe_jax.core.console import make_table
from collapipe_jax.core.quantity import bytes_to_mib
from collapipe_jax.edge.cost.computing import block_bytes
from collapipe_jax.learning.models.config import LINEAR_LAYERS, AdapterConfig, EncoderConfig
from collapipe_jax.learning.pipeline.schedules import SCHEDULES
from collapipe_jax.runs.config.default import get_config
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.config.system import encoder_workload
from collapipe_jax.runs.training.learning_rounds import LearningRounds
from collapipe_jax.runs.training.loop import round_inputs
from collapipe_jax.runs.training.network_ahead import NetworkAhead
from collapipe_jax.runs.training.ongoing_run import initial_run_state, learning_place
from experiments.benchmarks.pipeline import QUICK, Shape, device_bytes

STATE_BYTES = 16
"""Of a parameter in single precision: weight, gradient, two moments of Adam."""
ADAPTERS = [
    AdapterConfig(rank=8, alpha=16.0, targets=targets)
    for targets in (("query", "value"), LINEAR_LAYERS)
]
"""Adapters of the maps that the default names, and of all."""


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
        changes = {}, {"rematerialise": True}, *({"adapters": one} for one in ADAPTERS)
        ways = [(dataclasses.replace(kept, **change), shape, "gpipe") for change in changes]
        ratios = (device_bytes(*one) / formula_bytes(*one) for one in ways)
        rows.append((str(number), *(f"{ratio:.2f}" for ratio in ratios)))
    headings = "blocks on a device", "kept", "rematerialised", "adapters", "adapters of all maps"
    title = "measured over formula (15)"
    console.print(make_table(headings, rows, left=0, title=title))
    blocks, rows = 2 * shape.stages, []
    counts = [count for count in range(1, shape.stages + 1) if blocks % count == 0]
    for count in track(counts, description="compiling", console=console):
        each = shape._replace(stages=count)
        gpipe, other = (training_sizes(blocks, options.width, each, name) for name in SCHEDULES)
        parts = gpipe.argument_size_in_bytes, gpipe.temp_size_in_bytes, other.temp_size_in_bytes
        mib = (f"{bytes_to_mib(part):.1f}" for part in parts)
        rows.append((str(count), str(blocks // count), *mib))
    headings = "stages", "blocks on a device", "arguments", *SCHEDULES
    title = f"MiB of one device, training {blocks} blocks; temporaries by schedule"
    console.print(make_table(headings, rows, left=0, title=title))


def training_sizes(blocks: int, width: int, shape: Shape, schedule: str) -> Any:
    """What XLA lays out on a device for rounds of training of one cluster, compiled only.

    The task is synthetic translation; sequences have at most the tokens of the shape.
    """
    config = get_config()
    config.network.update({"clusters": 1, "devices": shape.stages})
    sizes = {"width": width, "heads": max(width // 32, 1), "feed_forward_width": 4 * width}
    config.model.update(sizes | {"encoder_blocks": blocks})
    config.training.update({"batch": shape.batch, "micro_batch_choices": (shape.micro_batches,)})
    config.task.update({"source_length": shape.sequence, "pairs": 1000})
    config.policy.update({"name": "static_pipeline", "micro_batches": shape.micro_batches})
    pipeline = {"backend": "sharded", "schedule": schedule, "capacity": blocks // shape.stages}
    config.pipeline.update(pipeline | {"micro_batches": shape.micro_batches})
    # Every network can do the work: only the program matters.
    config.devices.memory_share = 1.0
    config.control.update({"control_unit_budget_j": 1e6, "device_budget_j": 1e6})
    experiment = build_experiment(config)
    state, learner = initial_run_state(experiment), experiment.learner
    learning = LearningRounds([learner], [state.learning], learning_place(experiment))
    (rounds,) = NetworkAhead([experiment], [state.system], [0]).take([1])
    inputs = round_inputs(experiment, learner, 0, [happened for _, happened in rounds])
    return learning.lower([inputs]).compile(compiler_options=QUICK).memory_analysis()


def formula_bytes(config: EncoderConfig, shape: Shape, schedule: str) -> float:
    """Formula (15) for the first of the stages.

    Hops take no tick on a mesh. So devices alone count as stages there, and 1F1B keeps
    ``min(M, K)`` micro-batches.
    """
    work = encoder_workload(
        config,
        sequence=shape.sequence,
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
