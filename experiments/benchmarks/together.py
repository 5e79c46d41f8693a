"""Wall time of training runs in one program, and of the same runs one after another.

    python -m experiments.benchmarks.together --config=quickstart --seeds=4 \
        --rates=4e-3,8e-3,16e-3,32e-3

Both ways use the command line: ``collapipe train`` with a sweep, and ``collapipe train`` for
every run. Each way starts without compiled programs; runs one after another find those of the
runs before them. The last line is the largest difference of a training loss in any round.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, read_numbers, run_reporting_errors
from collapipe_jax.compilation import CACHE_VARIABLE
from collapipe_jax.files.checkpoints import load_run
from collapipe_jax.tables import make_table

KEYS = ("training.client_learning_rate", "training.decoder_learning_rate")


def main(argv: Sequence[str]) -> None:
    """Train both ways, and print times and the largest difference."""
    parser = make_parser(
        __doc__,
        config="quickstart",
        seeds=4,
        rates=("4e-3,8e-3,16e-3,32e-3", "learning rates, with commas"),
    )
    given, overrides = parser.parse_known_args(argv)
    rates = read_numbers("--rates", given.rates, zero=False)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        root, words = Path(folder), ",".join(f"{rate:g}" for rate in rates)
        swept = " ".join(f"{key}={words}" for key in KEYS)
        sweep = [f"--sweep={swept}", f"--seeds={given.seeds}"]
        common = [f"--config={given.config}", *overrides]
        together_s = _train(root, "together", [*common, *sweep])
        console.print(f"together: {together_s:.1f} s")
        pairs = [(rate, seed) for rate in rates for seed in range(given.seeds)]
        alone_s = 0.0
        for index, (rate, seed) in enumerate(pairs):
            keys = [f"--config.{key}={rate:g}" for key in KEYS]
            own = [*common, *keys, f"--config.seed={seed}"]
            alone_s += _train(root, f"alone/{index:04d}", own)
            console.print(f"{index + 1} of {len(pairs)} alone: {alone_s:.1f} s")
        losses = [
            [load_run(root / way / f"{index:04d}").history["train_loss"] for way in ways]
            for index in range(len(pairs))
            for ways in [("together/runs", "alone")]
        ]
    difference = max(np.max(np.abs(one - other)) for one, other in losses)
    rows = [
        ("together, s", f"{together_s:.1f}"),
        ("one after another, s", f"{alone_s:.1f}"),
        ("together over one after another", f"{together_s / alone_s:.2f}"),
        ("largest difference of a training loss", f"{difference:.2g}"),
    ]
    console.print(make_table((f"{len(pairs)} runs of {given.config}", ""), rows))


def _train(root: Path, name: str, arguments: Sequence[str]) -> float:
    """Seconds that ``collapipe train`` takes."""
    way = name.partition("/")[0]
    command = [sys.executable, "-m", "collapipe_jax", "train", f"--workdir={root / name}"]
    start_s = time.perf_counter()
    subprocess.run(
        [*command, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {CACHE_VARIABLE: str(root / f"programs_{way}")},
    )
    return time.perf_counter() - start_s


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
