"""Who wins where: policies side by side over a plane of two keys of the configuration.

    collapipe map --config=paper --workdir=DIR \
        --x radio.d2e_bandwidth_hz=5e6,20e6,80e6 --y devices.memory_share=0.2,0.25,0.5,1

In every cell the winner has the lowest median latency among the policies that keep memory,
energy budgets and divergence target in at least 1 - TOLERANCE of the networks, with as large
a share of clusters or clients. Where training.local_steps is an axis, energy budgets follow it.
Every cell is a comparison on file; a map that was killed goes on with the same arguments, and
another tolerance simulates nothing anew. collapipe figures draws it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from collapipe_jax.cli.options import make_parser
from collapipe_jax.config.files import parse_overrides
from collapipe_jax.config.plane import axis_values, plane_configs, read_axis
from collapipe_jax.errors import InputError, require_positive
from collapipe_jax.files.realisations import load_realisations, point_folder
from collapipe_jax.policies.registry import POLICIES
from collapipe_jax.simulation.points import compare_points, make_point
from collapipe_jax.simulation.winners import find_winner, margin_text
from collapipe_jax.tables import console_for_tables, make_table

_WIDTH = 100


def main(argv: Sequence[str]) -> None:
    """Compare in every cell, and write who wins."""
    required = ("config", "workdir", "x", "y")
    defaults = {"networks": 64, "rounds": 20, "tolerance": 0.25, "policies": ",".join(POLICIES)}
    given, overrides = make_parser(__doc__, *required, **defaults).parse_known_args(argv)
    if not 0.0 <= given.tolerance < 1.0:
        remedy = "Give 0 or more, and less than 1"
        raise InputError("--tolerance", given.tolerance, "no share of networks", remedy)
    require_positive(networks=given.networks, rounds=given.rounds)
    x, y = read_axis("--x", given.x), read_axis("--y", given.y)
    configs = plane_configs(given.config, parse_overrides(overrides), x, y)
    labels = [f"{x.key}={one}, {y.key}={other}" for other in y.texts for one in x.texts]
    sizes = {"rounds": given.rounds, "realisations": given.networks}
    points = [
        make_point(label, config, given.policies.split(","), **sizes)
        for label, config in zip(labels, configs, strict=True)
    ]
    plane = {"x": x.key, "x_values": axis_values(x, configs)}
    plane |= {"y": y.key, "y_values": axis_values(y, configs)}
    console = console_for_tables(_WIDTH)
    results, _ = compare_points(given.workdir, "map", plane, points, console)
    folders = [point_folder(results.folder, index) for index in range(len(points))]
    cells = [
        find_winner(load_realisations(folder, "compare"), given.tolerance) for folder in folders
    ]
    summary = {**plane, **sizes, "tolerance": given.tolerance, "cells": cells}
    path = results.write_summary(summary)
    console.print(winner_table(summary))
    print(f"written: {path}")


def winner_table(summary: Mapping[str, Any]) -> Table:
    """The winner of every cell, the largest index of y on top."""
    columns = len(summary["x_values"])
    rows = []
    for index, value in reversed(list(enumerate(summary["y_values"]))):
        cells = summary["cells"][index * columns : (index + 1) * columns]
        rows.append((_number(value), *map(_text, cells)))
    share = f"{100 * summary['tolerance']:g} %"
    style = {
        "box": box.SIMPLE,
        "padding": (0, 1, 0, 0),
        "title": f"Lowest median latency: {summary['y']} by {summary['x']}",
        "caption": "First number: saving of the median over the runner-up's. ~: its 95 % interval "
        "includes 0. alone: no runner-up. Second: share of networks with the lower latency of "
        "the two. Policies qualify that are over a limit of memory, energy or "
        f"divergence in at most {share} of networks.",
    }
    return make_table(("", *map(_number, summary["x_values"])), rows, **style)


def _text(cell: Mapping[str, Any]) -> str:
    if cell["winner"] is None:
        return "nobody"
    return f"{cell['winner']}\n{margin_text(cell)}"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
