"""Benchmarks network by network: one line each on file, from which a stopped run goes on."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from collapipe_jax.cost.round import price
from jax import Array
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.feasibility import is_feasible
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from experiments.benchmarks.solver.solver_networks import NetworkShape

HOPELESS_LOSS = 0.9
"""Loss above which no decision can serve a network; such ones are reported apart."""


def run_networks(
    path: Path,
    networks: int,
    settings: dict[str, Any],
    shapes: Sequence[NetworkShape],
    draw: Callable[[int, int, NetworkShape], Any],
    measure: Callable[[Any], dict],
    console: Console,
) -> list[dict]:
    """Measure the networks that are not on file yet.

    Args:
      path: of the lines; its folder is made.
      networks: how many in all, shapes taking turns.
      settings: all that the rows depend on, by the names of their options; has a ``seed``.
      shapes: of the networks.
      draw: all networks of a shape, stacked, from a seed, their number and the shape.
      measure: what a row says of one of them.
      console: where progress is shown.

    Returns:
      The rows, by number.

    Raises:
      InputError: if the file was written with other settings.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _rows_so_far(path, settings)
    with Progress(console=console, transient=True) as progress:
        done = sum(number < networks for number in rows)
        task = progress.add_task("networks", total=networks, completed=done)
        for place, shape in enumerate(shapes):
            numbers = range(place, networks, len(shapes))
            left = [number for number in numbers if number not in rows]
            if not left:
                continue
            drawn = draw(settings["seed"] + place, len(numbers), shape)
            for number in left:
                row = {"network": number, **settings, "shape": list(shape)}
                rows[number] = row | measure(pick(drawn, numbers.index(number)))
                append_row(path, rows[number])
                progress.advance(task)
    return [rows[number] for number in sorted(rows) if number < networks]


def _rows_so_far(path: Path, settings: dict[str, Any]) -> dict[int, dict]:
    """Networks already done, by number; a line cut off by a kill is dropped."""
    if not path.exists():
        return {}
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        for name, value in settings.items():
            if row.get(name) != value:
                was = f"{path} was written with {row.get(name)}"
                key = f"--{name.replace('_', '-')}"
                raise InputError(key, value, was, "Give another --workdir")
        rows[row["network"]] = row
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows.values()))
    return rows


def append_row(path: Path, row: dict) -> None:
    """Write a line so that it survives what comes next."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def pick(tree, index: int):
    """One network of a stack."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


class Judgement(NamedTuple):
    """A decision's price, the largest loss of a micro-batch, and whether it is allowed."""

    objective: Array
    loss: Array
    feasible: Array


@jax.jit
def judge(problem: RoundProblem, decision: Decision) -> Judgement:
    """Price a decision."""
    cost = price(problem, decision)
    return Judgement(cost.objective, jnp.max(cost.loss_probability), is_feasible(problem, decision))


def by_hope(rows: Sequence[dict]) -> tuple[list[dict], list[dict]]:
    """Rows whose loss can be lived with, and the others."""
    usable = [row for row in rows if row["loss"] <= HOPELESS_LOSS]
    return usable, [row for row in rows if row["loss"] > HOPELESS_LOSS]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and maximum."""
    middle, high = np.quantile(values, (0.5, 0.95))
    return {"median": float(middle), "p95": float(high), "max": float(np.max(values))}


def spread_table(title: str, summary: dict[str, Any]) -> Table:
    """Spreads by name; what is one number alone stands in the first column."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in ("median", "95 %", "largest"):
        table.add_column(heading, justify="right")
    for key, value in summary.items():
        numbers = value.values() if isinstance(value, dict) else [value]
        texts = [f"{x:.1e}" if isinstance(x, float) else str(x) for x in numbers]
        table.add_row(key.replace("_", " "), *texts)
    return table
