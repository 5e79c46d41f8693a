r"""Who wins where: policies side by side over a plane of two keys of the configuration.

    collapipe map --config=paper --workdir=DIR \
        --x radio.d2e_bandwidth_hz=5e6,20e6,80e6 --y devices.memory_share=0.2,0.25,0.5,1

In every cell the winner has the lowest median latency among the policies that keep memory,
energy budgets and divergence target in at least 1 - TOLERANCE of the networks, with as large
a share of clusters or clients. Where training.local_steps is an axis, energy budgets follow it.
A map is a sweep of two axes: one that was killed goes on with the same arguments, --shard and
--cluster share its work, and another tolerance simulates nothing anew. collapipe figures draws it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from collapipe_jax.cli.options import make_parser
from collapipe_jax.cli.shards import CLUSTER, SHARD, run_shards
from collapipe_jax.core.console import console_for_tables, make_table, setting_text
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.edge.policies.registry import POLICIES
from collapipe_jax.runs.config.files import parse_overrides
from collapipe_jax.runs.config.sweeps import read_axis
from collapipe_jax.runs.results.realisations import load_points
from collapipe_jax.runs.studies.comparison import find_winner, margin_text
from collapipe_jax.runs.studies.montecarlo import policy_options
from collapipe_jax.runs.studies.sweep_records import read_comparisons

_WIDTH = 100


def main(argv: Sequence[str]) -> None:
    """Compare in every cell, and write who wins."""
    required = ("config", "workdir", "x", "y")
    defaults = {"networks": 64, "rounds": 20, "chunk": 64, "tolerance": 0.25}
    defaults |= {"policies": ",".join(POLICIES), **SHARD, **CLUSTER}
    given, overrides = make_parser(__doc__, *required, **defaults).parse_known_args(argv)
    if not 0.0 <= given.tolerance < 1.0:
        remedy = "Give 0 or more, and less than 1"
        raise InputError("--tolerance", given.tolerance, "no share of networks", remedy)
    require_positive(networks=given.networks)
    sizes = {"rounds": given.rounds, "realisations": given.networks}
    options = policy_options(given.policies.split(","), **sizes, chunk=given.chunk)
    axes = [read_axis("--y", given.y), read_axis("--x", given.x)]
    keys = parse_overrides(overrides)
    made = read_comparisons("map", given.config, keys, options, axes)
    console = console_for_tables(_WIDTH)
    results = run_shards("map", argv, given, made, console)
    if results is None:
        return
    y, x = made.sweep.axes
    plane = {"x": x.name, "x_values": x.values, "y": y.name, "y_values": y.values}
    points = load_points(results.folder, "map")
    cells = [find_winner(point, given.tolerance) for point in points]
    summary = {**plane, **sizes, "tolerance": given.tolerance, "cells": cells}
    path = results.write_summary(summary)
    console.print(_winner_table(summary))
    print(f"written: {path}")


def _winner_table(summary: Mapping[str, Any]) -> Table:
    """The winner of every cell, the largest index of y on top."""
    columns = len(summary["x_values"])
    rows = []
    for index, value in reversed(list(enumerate(summary["y_values"]))):
        cells = summary["cells"][index * columns : (index + 1) * columns]
        rows.append((setting_text(value), *map(_text, cells)))
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
    return make_table(("", *map(setting_text, summary["x_values"])), rows, **style)


def _text(cell: Mapping[str, Any]) -> str:
    if cell["winner"] is None:
        return "nobody"
    return f"{cell['winner']}\n{margin_text(cell)}"
