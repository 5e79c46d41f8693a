"""Time and memory of a local step with examples' gradients clipped one by one, over a plain one.

    python -m experiments.benchmarks.privacy

A client has one local step of a small BERT on random texts, plain and with the noise of
``privacy.unit = "example"``, for several numbers of gradients at once. The steps take turns, so
that other load of the machine affects all alike. Seconds are those of the process's cores,
medians of the repeats; memory is what XLA lays out for the program beside its arguments.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, read_counts, run_reporting_errors
from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import require_positive
from collapipe_jax.core.quantity import bytes_to_mib
from collapipe_jax.learning.federated.data_parallel_learner import (
    ClientsOutcome,
    DataParallelLearner,
)
from collapipe_jax.learning.federated.optimizers import Optimizers, Rules, make_optimizer
from collapipe_jax.learning.federated.privacy import ExamplePrivacy, seed_words
from collapipe_jax.learning.models.bert import BertWithHead, LabelledBatch
from collapipe_jax.learning.models.config import BertConfig
from experiments.benchmarks.timing import in_turns

CLASSES = 150


def main(argv: Sequence[str]) -> None:
    """Time the steps and print the ratios."""
    parser = make_parser(
        __doc__,
        width=64,
        blocks=2,
        vocabulary=2000,
        batch=128,
        sequence=16,
        at_once=("1,4,16,64", "gradients at once, with commas"),
        repeats=7,
    )
    options = parser.parse_args(argv)
    counts = ("width", "blocks", "vocabulary", "batch", "sequence", "repeats")
    require_positive(**{name: getattr(options, name) for name in counts})
    numbers = read_counts("--at-once", options.at_once)
    plain = make_learner(options)
    learners = {"plain": plain}
    learners |= {f"{count} at once": with_privacy(plain, count) for count in numbers}
    programs = {name: compile_step(learner, options) for name, learner in learners.items()}
    runs = {name: program[0] for name, program in programs.items()}
    times_s = in_turns(runs, options.repeats, clock=time.process_time)
    console = Console()
    console.print(f"{count_parameters(plain):,} parameters, {options.batch} examples a step")
    console.print(_table(times_s, {name: size for name, (_, size) in programs.items()}))


def make_learner(options: Any) -> DataParallelLearner:
    """One client with a whole model, by plain SGD."""
    sizes = BertConfig(
        width=options.width,
        heads=4,
        feed_forward_width=4 * options.width,
        encoder_blocks=options.blocks,
        vocabulary_size=options.vocabulary,
        positions=options.sequence,
    )
    step = make_optimizer("sgd", 0.1)
    return DataParallelLearner(
        cluster_weight=jnp.ones(1),
        model=BertWithHead(sizes=sizes, labels=CLASSES, pools=True),
        optimizers=Optimizers(client=step, decoder=step, server=make_optimizer("sgd", 1.0)),
        devices=1,
    )


def with_privacy(learner: DataParallelLearner, at_once: int) -> DataParallelLearner:
    """The learner with clipped gradients of examples, so many of them in memory."""
    numbers = {"noise_multiplier": 1.0, "clip_norm": 1.0, "seed": seed_words(0)}
    rule = ExamplePrivacy(examples_at_once=at_once, **jax.tree.map(jnp.asarray, numbers))
    return learner.replace(rules=Rules(example_privacy=rule))


def count_parameters(learner: DataParallelLearner) -> int:
    """Numbers of the model."""
    shapes = jax.eval_shape(learner.model.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def compile_step(learner: DataParallelLearner, options: Any) -> tuple[Any, int]:
    """A round of one local step to call, and the bytes of its temporaries."""
    rng = np.random.default_rng(0)
    shape = 1, 1, options.batch, options.sequence
    token_ids = jnp.asarray(rng.integers(1, options.vocabulary, shape), jnp.int32)
    labels = jnp.asarray(rng.integers(0, CLASSES, shape[:3]), jnp.int32)
    outcome = ClientsOutcome(jnp.array([[options.batch]], jnp.int32), jnp.zeros((1, 1)))
    state = learner.init(learner.model.init(jax.random.key(0)))
    arguments = state, LabelledBatch(token_ids, labels), outcome, jax.random.key(1), 0
    program = jax.jit(DataParallelLearner.round.__wrapped__).lower(learner, *arguments).compile()
    size = program.memory_analysis().temp_size_in_bytes

    def run() -> None:
        jax.block_until_ready(program(learner, *arguments))

    return run, size


def _table(times_s: dict[str, list[float]], sizes: dict[str, int]) -> Any:
    medians = {name: statistics.median(values) for name, values in times_s.items()}
    rows = [
        (
            name,
            f"{1e3 * seconds:.0f} ms",
            f"{seconds / medians['plain']:.1f}",
            f"{bytes_to_mib(sizes[name]):.1f} MiB",
            f"{sizes[name] / sizes['plain']:.1f}",
        )
        for name, seconds in medians.items()
    ]
    headings = ("step", "processor", "over plain", "temporaries", "over plain")
    return make_table(headings, rows)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
