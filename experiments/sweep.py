"""One key after another: policies side by side at every point of a sweep.

    python -m experiments.sweep --config=configs/sweep_devices.py --workdir=DIR \
        --rounds=20 --realisations=32

The configuration has, besides ``get_config()``, ``get_sweep()`` with the axis and the points
(see configs/sweep_devices.py). Every point is a comparison on file; a sweep that was killed
goes on with the same arguments.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from collapipe_jax.files.checkpoints import open_workdir
from collapipe_jax.policies.registry import POLICIES
from experiments.compare import compare, comparison_settings
from experiments.configuration import read_checked_config, read_sweep
from experiments.sweep_files import point_folder


def main(argv: Sequence[str]) -> None:
    """Compare at every point, and write one summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="a file with get_config() and get_sweep()")
    parser.add_argument("--workdir", required=True, help="where results go")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--realisations", type=int, default=32)
    parser.add_argument("--policies", default=",".join(POLICIES), help="names, with commas")
    options, overrides = parser.parse_known_args(argv)

    sweep = checked_sweep(options.config, read_sweep(options.config))
    points = [
        comparison_settings(
            read_checked_config(options.config, [*overrides, *as_overrides(keys)]),
            options.rounds,
            options.realisations,
            options.realisations,
            options.policies.split(","),
        )
        for _, keys in sweep["points"]
    ]
    values = [value for value, _ in sweep["points"]]
    told = {"axis": sweep["axis"], "log": sweep["log"], "values": values}
    workdir = open_workdir(options.workdir, {"sweep": told, "points": points}, resume=True)
    console = Console()
    found = []
    for index, (value, settings) in enumerate(zip(values, points, strict=True)):
        console.print(f"{sweep['axis']}: {_text(value)}")
        found.append({"value": value} | compare(settings, point_folder(workdir, index), console))
    write_text(workdir / "summary.json", json.dumps(told | {"points": found}, indent=1) + "\n")
    console.print(latency_table(sweep["axis"], found))
    if found[0]["reduction_percent"]:
        console.print(reduction_table(sweep["axis"], found))
    console.print(f"written: {workdir / 'summary.json'}")


def checked_sweep(path: str, sweep: Any) -> dict[str, Any]:
    """A sweep with all that it must have.

    Args:
      path: of the file it comes from.
      sweep: ``axis``, ``log`` and ``points``, pairs of a number, or of a name throughout, and
        the keys it sets.

    Raises:
      InputError: if something is missing or of the wrong kind.
    """
    remedy = "Return {'axis': str, 'log': bool, 'points': [(number, {key: value}), ...]}"
    if not isinstance(sweep, Mapping) or set(sweep) != {"axis", "log", "points"}:
        raise InputError("--config", path, "its get_sweep() is no sweep", remedy)
    for point in sweep["points"]:
        if len(point) != 2 or not isinstance(point[1], Mapping):
            raise InputError("--config", path, f"get_sweep() has the point {point!r}", remedy)
    named = [isinstance(value, str) for value, _ in sweep["points"]]
    if any(named) and not all(named):
        raise InputError("--config", path, "get_sweep() mixes names and numbers", remedy)
    kind = str if all(named) else float
    return {**sweep, "points": [(kind(value), dict(keys)) for value, keys in sweep["points"]]}


def as_overrides(keys: Mapping[str, Any]) -> list[str]:
    """Keys of a point as they stand on a command line."""
    return [f"--config.{name}={value}" for name, value in keys.items()]


def latency_table(axis: str, points: Sequence[Mapping[str, Any]]) -> Table:
    """Mean latency of every policy at every point."""
    table = Table(title="Mean latency of a round, s", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(axis, justify="right")
    for name in points[0]["policies"]:
        table.add_column(name, justify="right")
    for point in points:
        means = [told["latency_s"]["mean"] for told in point["policies"].values()]
        row = ["?" if mean is None else f"{mean:.3g}" for mean in means]
        table.add_row(_text(point["value"]), *row)
    return table


def reduction_table(axis: str, points: Sequence[Mapping[str, Any]]) -> Table:
    """By how much ``dssra`` takes less time than every other policy, at every point."""
    table = Table(title="Latency saved by dssra, %", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(axis, justify="right")
    others = points[0]["reduction_percent"]["latency_s"]
    for name in others:
        table.add_column(name, justify="right")
    for point in points:
        told = point["reduction_percent"]["latency_s"]
        table.add_row(_text(point["value"]), *(_interval(told[name]) for name in others))
    return table


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _interval(told: Mapping[str, float | None]) -> str:
    if told["mean"] is None:
        return "?"
    return f"{told['mean']:.0f}" + ("" if told["ci95"] is None else f" ± {told['ci95']:.0f}")


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
