"""The convergence bound against descents whose constants are known.

    python -m experiments.bound --out=runs/bound/bound.json

A grid of descents on a quadratic and on logistic regression: local steps, losses,
micro-batches and weights. The mean of the squared gradient over all steps, with a one-sided
95 % limit from the repeats, is set against the bound, docs/system-model.md (18) and
docs/theory.md. So are a server with momentum and clusters that sit out; and descents that
break what the bound assumes: a mean over all survivors, and micro-batches that are lost
together. Constants are exact, or the largest that the descents met. Takes some minutes.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from experiments import bound_cases
from experiments.bound_problems import CLUSTERS
from experiments.bound_rows import as_assumed, measure, work


def main(argv: Sequence[str]) -> None:
    """Run all descents, print the tables and write what came out."""
    options = _options(argv)
    out, console = Path(options.out), Console()
    out.parent.mkdir(parents=True, exist_ok=True)
    cases = {
        "settings": bound_cases.grid(options.rounds),
        "extensions": bound_cases.extensions(options.rounds),
        "ablations": bound_cases.ablations(options.rounds),
    }
    total = sum(work(some) for some in (*cases.values(), as_assumed(cases["ablations"])))
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("descents", total=total)
        report = measure(
            cases, options.repeats, options.seed, lambda steps: progress.advance(task, steps)
        )
    report = {"seed": options.seed, "repeats": options.repeats, **report}
    write_text(out, json.dumps(report, indent=1, allow_nan=False) + "\n")
    console.print(_summary_table(report["summary"]))
    console.print(_extensions_table(report["extensions"]))
    console.print(_ablations_table(report["ablations"]))
    console.print(f"written: {out}")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="runs/bound/bound.json", help="file for what came out")
    parser.add_argument("--repeats", type=int, default=32, help="of every descent")
    parser.add_argument("--rounds", type=int, default=200, help="of most descents")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.repeats < 2:
        raise InputError("--repeats", options.repeats, "tell no interval", "Give 2 or more")
    if options.rounds < CLUSTERS or options.rounds % CLUSTERS:
        remedy = f"Give a multiple of {CLUSTERS}, so that clusters sit out equally often"
        raise InputError("--rounds", options.rounds, "no whole number of turns", remedy)
    return options


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _summary_table(summary: dict) -> Table:
    headings = ("local steps", "losses", "holds", "factor, median", "smallest", "largest")
    table = _table("bound over measured", headings)
    for steps, parts in summary.items():
        for name, part in parts.items():
            holds = f"{part['holds']} of {part['settings']}"
            factors = (f"{part[f'factor_{which}']:.1f}" for which in ("median", "min", "max"))
            table.add_row(steps, name, holds, *factors)
    return table


def _extensions_table(rows: Sequence[dict]) -> Table:
    table = _table("extensions, bound over measured", ("of", "holds", "smallest", "largest"))
    names = [
        row["presence"] if row["kind"] == "absence" else f"momentum {row['momentum']}"
        for row in rows
    ]
    for name in dict.fromkeys(names):
        some = [row for row, its in zip(rows, names, strict=True) if its == name]
        holds = sum(row["measured_high"] <= row["bound"] for row in some)
        factors = [row["factor"] for row in some]
        ends = f"{min(factors):.1f}", f"{max(factors):.1f}"
        table.add_row(name, f"{holds} of {len(some)}", *ends)
    return table


def _ablations_table(rows: Sequence[dict]) -> Table:
    headings = ("losses", "H", "M", "eta L", "bound", "measured", "assumed", "away", "formula")
    table = _table("against the assumptions", headings)
    for row in rows:
        numbers = (row[key] for key in ("bound", "measured", "measured_as_assumed"))
        away = (
            f"{row[key]:.3f}" if key in row else "" for key in ("distance", "distance_predicted")
        )
        sizes = row["local_steps"], row["micro_batches"], row["step_smoothness"]
        table.add_row(row["kind"], *map(str, sizes), *(f"{x:.3g}" for x in numbers), *away)
    return table


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
