r"""Train with several policies on the same network and data: score against simulated time.

    python -m experiments.race --config=configs/classification_clinc150.py --workdir=runs/race \
        --policies=dssra,static_pipeline,vanilla_fl

Every policy is a training run of its own in the workdir; what is finished or saved is gone on
with. With ``--rates=1,2,4`` every policy trains once at each multiple of the configured learning
rates, and goes into the race with the one whose last validation score is best. Ends with a table,
the time that each took to a score, and the figures of all runs.
"""

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from collapipe_jax.build import Experiment, build_experiment, build_optimizers
from collapipe_jax.checkpoint import RunRecord
from collapipe_jax.command_line import read_numbers, run_reporting_errors
from collapipe_jax.scheduling.policies import CLIENT_POLICIES, POLICIES, make_policy
from collapipe_jax.train import train
from collapipe_jax.units import bytes_to_mib
from configs import default
from experiments.configuration import read_config
from figures.all import draw_all

ROWS = {
    "simulated time, s": ("simulated_time_s", "{:.0f}"),
    "mean latency of a round, s": ("mean_latency_s", "{:.2f}"),
    "  of it compute alone, s": ("mean_compute_latency_s", "{:.2f}"),
    "mean energy of a round, all nodes, J": ("mean_energy_j", "{:.2f}"),
    "mean energy over budget, worst node": ("worst_energy_over_budget", "{:.2f}"),
    "mean divergence over target": ("mean_divergence_over_target", "{:.3g}"),
    "peak memory of a device, MiB": ("peak_device_memory_bytes", "{:.1f}"),
}
TARGET = 0.9
"""Share of the best final validation score, to which the time of every policy is told."""


def main(argv: Sequence[str]) -> None:
    """Train with every policy, print the table, draw the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="a file with get_config()")
    parser.add_argument("--workdir", required=True, help="where results go")
    parser.add_argument("--policies", default=",".join(POLICIES), help="names, with commas")
    parser.add_argument("--rates", default="1", help="multiples of the learning rates, with commas")
    options, overrides = parser.parse_known_args(argv)
    race(
        read_config(options.config, overrides),
        options.policies.split(","),
        Path(options.workdir),
        Console(),
        read_numbers("--rates", options.rates, zero=False),
    )


class Run(NamedTuple):
    """A training run of a policy.

    Attributes:
      rate: multiple of the configured learning rates.
      record: its history.
      summary: its test scores and means.
    """

    rate: float
    record: RunRecord
    summary: dict[str, Any]

    @property
    def last_score(self) -> float:
        """On the validation set; lowest of all if training broke down."""
        score = float(self.record.history["score"][-1])
        return score if np.isfinite(score) else -np.inf


def race(
    config: ConfigDict,
    policies: Sequence[str],
    root: Path,
    console: Console,
    rates: Sequence[float] = (1.0,),
) -> None:
    """Train with every policy in a folder of its own, then compare.

    Args:
      config: of all runs but for policy and rates.
      policies: their names.
      root: where the folders go: ``NAME``, and ``NAME_x2`` for twice the rates.
      console: where progress and the table are shown.
      rates: multiples of the local learning rates; the best run of a policy by its last
        validation score, of equals the first, is the one that is compared.

    Raises:
      InputError: if the configuration is wrong.
    """
    for name in policies:
        make_policy(name)  # a wrong name is told before any work
    runs = {name: [] for name in policies}
    for name, rate, experiment in _entrants(config, policies, rates):
        folder = root / (name if rate == 1.0 else f"{name}_x{rate:g}")
        console.print(f"[bold]{folder.name}[/bold]")
        record = train(experiment, folder, resume=True, console=console)
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        runs[name].append(Run(rate, record, summary))
    best = {name: max(tried, key=lambda run: run.last_score) for name, tried in runs.items()}
    console.print(race_table(best, told_rates=len(rates) > 1))
    for path in draw_all([run.record for run in best.values()], root / "figures"):
        console.print(f"figure: {path}")


def _entrants(
    config: ConfigDict, policies: Sequence[str], rates: Sequence[float]
) -> Iterator[tuple[str, float, Experiment]]:
    """Every policy at every rate.

    The corpus is read once for each of the two kinds of policies, and what a kind learns with
    at a rate is one object, so that it is compiled once.
    """
    built, optimizers = {}, {}
    for rate, name in itertools.product(rates, policies):
        own = config.copy_and_resolve_references()
        own.policy.name = name
        for key in ("client_learning_rate", "decoder_learning_rate"):
            own.training[key] *= rate
        kind = name in CLIENT_POLICIES
        if kind not in built:
            built[kind] = build_experiment(own, default.get_config())
        if (kind, rate) not in optimizers:
            optimizers[kind, rate] = build_optimizers(own)
        yield (
            name,
            rate,
            dataclasses.replace(
                built[kind],
                config=own.to_dict(),
                policy=make_policy(**own.policy),
                optimizers=optimizers[kind, rate],
            ),
        )


def race_table(runs: Mapping[str, Run], told_rates: bool = False) -> Table:
    """Policies side by side: test scores first, as the objective names them.

    Args:
      runs: by policy.
      told_rates: whether the rates that each run learnt with have a row.
    """
    summaries = {name: run.summary for name, run in runs.items()}
    table = Table(title="Same network, same data, same seeds")
    table.add_column("")
    for name in summaries:
        table.add_column(name, justify="right")
    first = next(iter(summaries.values()))
    scores = [key for key, value in first.items() if key.startswith("test_") and _is_number(value)]
    for key in scores:
        values = [f"{summary[key]:.1f}" for summary in summaries.values()]
        table.add_row(key.replace("_", " "), *values)
    table.add_row(*_time_to_score({name: run.record for name, run in runs.items()}))
    if told_rates:
        rates = [f"{run.rate:g}" for run in runs.values()]
        table.add_row("learning rates, of those configured", *rates)
    for label, (key, form) in ROWS.items():
        values = [summary[key] for summary in summaries.values()]
        if key.endswith("_bytes"):
            values = [bytes_to_mib(value) for value in values]
        table.add_row(label, *(form.format(value) for value in values))
    return table


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _time_to_score(records: Mapping[str, RunRecord]) -> list[str]:
    """When each run's validation score first reached a share of the best final one."""
    finals = [record.history["score"][-1] for record in records.values()]
    goal = TARGET * max(finals)
    row = [f"simulated time to a validation score of {goal:.1f}, s"]
    for record in records.values():
        reached = np.flatnonzero(record.history["score"] >= goal)
        time_s = record.history["simulated_time_s"]
        row.append(f"{time_s[reached[0]]:.0f}" if reached.size else "never")
    return row


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
