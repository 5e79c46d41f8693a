"""Wall time of training runs in one program, and of the same runs one after another.

    python -m experiments.benchmarks.together --config=quickstart --seeds=4 \
        --rates=4e-3,8e-3,16e-3,32e-3

Both ways use the command line: ``collapipe train`` with a sweep, and ``collapipe train`` for
every run. Each way starts without compiled programs; runs one after another find those of the
runs before them. ``--alone=6`` times six runs one after another, spread over all of them, and
counts those left out as the mean of all but the first, which compiles. Processor time is that of
all threads; it says more than wall time where other programs run. The last line is the largest
difference of a training loss in any round.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, read_numbers, run_reporting_errors
from collapipe_jax.core.compilation import CACHE_VARIABLE
from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.results.checkpoints import load_run

KEYS = ("training.client_learning_rate", "training.decoder_learning_rate")


def main(argv: Sequence[str]) -> None:
    """Train both ways, and print times and the largest difference."""
    parser = make_parser(
        __doc__,
        config="quickstart",
        seeds=4,
        rates=("4e-3,8e-3,16e-3,32e-3", "learning rates, with commas"),
        alone=(0, "runs one after another that are timed (default: all)"),
    )
    given, overrides = parser.parse_known_args(argv)
    rates = read_numbers("--rates", given.rates, zero=False)
    pairs = [(rate, seed) for rate in rates for seed in range(given.seeds)]
    timed, console = _evenly(len(pairs), given.alone), Console()
    with tempfile.TemporaryDirectory() as folder:
        root, words = Path(folder), ",".join(f"{rate:g}" for rate in rates)
        swept = " ".join(f"{key}={words}" for key in KEYS)
        sweep = [f"--sweep={swept}", f"--seeds={given.seeds}"]
        common = [f"--config={given.config}", *overrides]
        together_s = _train(root, "together", [*common, *sweep])
        console.print(f"together: {_text(together_s)} s")
        alone_s = []
        for index in timed:
            rate, seed = pairs[index]
            keys = [f"--config.{key}={rate:g}" for key in KEYS]
            own = [*common, *keys, f"--config.seed={seed}"]
            alone_s.append(_train(root, f"alone/{index:04d}", own))
            console.print(f"run {index} alone: {_text(alone_s[-1])} s")
        losses = [
            [load_run(root / way / f"{index:04d}").history["train_loss"] for way in ways]
            for index in timed
            for ways in [("together/runs", "alone")]
        ]
        programs = len(list((root / "programs_together").glob("jit__learn-*-cache")))
    difference = max(np.max(np.abs(one - other)) for one, other in losses)
    sum_s = np.sum(alone_s, axis=0)
    if left_out := len(pairs) - len(timed):
        sum_s += left_out * np.mean(alone_s[1:], axis=0)
    rows = [
        ("together, s", _text(together_s)),
        (f"one after another, s ({len(timed)} of {len(pairs)} timed)", _text(sum_s)),
        ("together over one after another", _text(together_s / sum_s, "{:.2f}")),
        ("programs of learning, compiled together", str(programs)),
        ("largest difference of a training loss", f"{difference:.2g}"),
    ]
    title = f"{len(pairs)} runs of {given.config}; wall / processor time"
    console.print(make_table((title, ""), rows))


def _text(values: np.ndarray, form: str = "{:.1f}") -> str:
    """Wall and processor time."""
    return " / ".join(map(form.format, values))


def _evenly(total: int, count: int) -> list[int]:
    """Numbers of so many runs at equal distances, first and last among them; of all for 0."""
    if not count:
        return list(range(total))
    if not 2 <= count <= total:
        raise InputError("--alone", count, f"not from 2 to {total}", "Give 0 for all runs")
    return [round(index * (total - 1) / (count - 1)) for index in range(count)]


def _train(root: Path, name: str, arguments: Sequence[str]) -> np.ndarray:
    """Seconds of wall and of processor time that ``collapipe train`` takes."""
    way = name.partition("/")[0]
    command = [sys.executable, "-m", "collapipe_jax", "train", f"--workdir={root / name}"]
    before_s = _now_s()
    subprocess.run(
        [*command, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {CACHE_VARIABLE: str(root / f"programs_{way}")},
    )
    return _now_s() - before_s


def _now_s() -> np.ndarray:
    """Wall time, and processor time of all processes that were started and have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([time.perf_counter(), spent.ru_utime + spent.ru_stime])


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
