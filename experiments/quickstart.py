"""The first five minutes: train with DSSRA and with a static pipeline, compare, draw.

    make quickstart

Results go to ``runs/quickstart``; a second call goes on where the first stopped.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from collapipe_jax.build import build_experiment
from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.scheduling.policies import make_policy
from collapipe_jax.train import train
from collapipe_jax.units import bytes_to_mib
from configs import default, quickstart
from figures.all import draw_all

POLICIES = ("dssra", "static_pipeline")

ROWS = {
    "test BLEU, greedy": ("test_bleu_greedy", "{:.1f}"),
    "test BLEU, beam of 4": ("test_bleu_beam", "{:.1f}"),
    "test BLEU of copying the source": ("test_bleu_copy", "{:.1f}"),
    "simulated time, s": ("simulated_time_s", "{:.0f}"),
    "mean latency of a round, s": ("mean_latency_s", "{:.2f}"),
    "  of it compute alone, s": ("mean_compute_latency_s", "{:.2f}"),
    "mean energy of a round, all nodes, J": ("mean_energy_j", "{:.2f}"),
    "mean energy over budget, worst node": ("worst_energy_over_budget", "{:.2f}"),
    "mean divergence over target": ("mean_divergence_over_target", "{:.3g}"),
    "peak memory of a device, MiB": ("peak_device_memory_bytes", "{:.1f}"),
}


def main(argv: Sequence[str]) -> None:
    """Train twice on the same network and data, print the table, draw the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", default="runs/quickstart", help="where results go")
    root = Path(parser.parse_args(argv).workdir)
    console = Console()
    config = quickstart.get_config()
    base = build_experiment(config, default.get_config())
    records, summaries = [], {}
    for name in POLICIES:
        console.print(f"[bold]{name}[/bold]")
        config.policy.name = name
        experiment = dataclasses.replace(
            base,
            config=config.to_dict(),
            policy=make_policy(name, config.policy.micro_batches),
        )
        records.append(train(experiment, root / name, resume=True, console=console))
        summaries[name] = json.loads((root / name / "summary.json").read_text(encoding="utf-8"))
    console.print(_table(summaries))
    for path in draw_all(records, root / "figures"):
        console.print(f"figure: {path}")


def _table(summaries: dict[str, dict]) -> Table:
    """Policies side by side."""
    table = Table(title="Same network, same data, same seeds")
    table.add_column("")
    for name in summaries:
        table.add_column(name, justify="right")
    for label, (key, form) in ROWS.items():
        values = [summary[key] for summary in summaries.values()]
        if key.endswith("_bytes"):
            values = [bytes_to_mib(value) for value in values]
        table.add_row(label, *(form.format(value) for value in values))
    return table


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
