"""One key after another: policies side by side at every point of a sweep.

    collapipe sweep --config=configs/sweeps.py:devices --workdir=DIR \
        --rounds=20 --realisations=32

The configuration has, besides ``get_config()``, ``get_sweep()`` with the axis and the points
(see configs/sweeps.py). Every point is a comparison on file; a sweep that was killed goes on
with the same arguments.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from collapipe_jax.cli.options import make_parser
from collapipe_jax.config.files import parse_overrides, read_config, read_sweep
from collapipe_jax.policies.registry import POLICIES
from collapipe_jax.simulation.points import compare_points, make_point
from collapipe_jax.statistics import interval_text
from collapipe_jax.tables import make_table

_STYLE = {"box": box.SIMPLE, "padding": (0, 1, 0, 0)}


def main(argv: Sequence[str]) -> None:
    """Compare at every point, and write one summary."""
    parser = make_parser(
        __doc__, "config", "workdir", rounds=20, realisations=32, policies=",".join(POLICIES)
    )
    given, overrides = parser.parse_known_args(argv)
    sweep, keys = read_sweep(given.config), parse_overrides(overrides)
    sizes = {"rounds": given.rounds, "realisations": given.realisations}
    policies = given.policies.split(",")
    points = [
        make_point(
            f"{sweep['axis']}: {_text(value)}",
            read_config(given.config, keys | own),
            policies,
            **sizes,
        )
        for value, own in sweep["points"]
    ]
    swept = {"axis": sweep["axis"], "log": sweep["log"]}
    swept["values"] = [value for value, _ in sweep["points"]]
    console = Console()
    results, summaries = compare_points(given.workdir, "sweep", swept, points, console)
    found = [{"value": value} | own for value, own in zip(swept["values"], summaries, strict=True)]
    path = results.write_summary({**swept, "points": found})
    console.print(latency_table(sweep["axis"], found))
    if found[0]["reduction_percent"]:
        console.print(reduction_table(sweep["axis"], found))
    print(f"written: {path}")


def latency_table(axis: str, points: Sequence[Mapping[str, Any]]) -> Table:
    """Mean latency of every policy at every point."""
    rows = []
    for point in points:
        latency = (policy["latency_s"] | {"ci95": None} for policy in point["policies"].values())
        rows.append((_text(point["value"]), *map(interval_text, latency)))
    headings = (axis, *points[0]["policies"])
    return make_table(headings, rows, left=0, title="Mean latency of a round, s", **_STYLE)


def reduction_table(axis: str, points: Sequence[Mapping[str, Any]]) -> Table:
    """Latency saved by ``dssra`` over every other policy, at every point."""
    saved = [point["reduction_percent"]["latency_s"] for point in points]
    rows = [
        (_text(point["value"]), *(interval_text(interval, "{:.0f}") for interval in own.values()))
        for point, own in zip(points, saved, strict=True)
    ]
    return make_table((axis, *saved[0]), rows, left=0, title="Latency saved by dssra, %", **_STYLE)


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
