r"""Policies side by side at all combinations of values of keys.

    collapipe sweep --config=paper --workdir=DIR --rounds=20 --realisations=32 \
        --sweep radio.d2e_bandwidth_hz=5e6,10e6 --sweep devices.memory_share=0.25,0.5 --seeds=2
    collapipe sweep --config=configs/sweeps.py:devices --workdir=DIR

Several --sweep make all combinations. Keys in one --sweep, as in --sweep "a=1,2 b=3,4", go
together. A configuration may have axes too, as ``get_sweep()`` (see configs/sweeps.py). Energy
budgets follow training.local_steps where this is swept. A sweep that was killed goes on with
the same arguments. Several processes share the work with --shard=i/n, or with --cluster, which
starts them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from collapipe_jax.cli.options import add_sweep, make_parser
from collapipe_jax.cli.shards import CLUSTER, SHARD, run_shards
from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.statistics import number_text
from collapipe_jax.edge.policies.registry import POLICIES
from collapipe_jax.runs.config.files import parse_overrides
from collapipe_jax.runs.config.sweeps import file_axes, read_axis
from collapipe_jax.runs.results.realisations import load_points
from collapipe_jax.runs.studies.comparison import summarise
from collapipe_jax.runs.studies.montecarlo import policy_options
from collapipe_jax.runs.studies.sweep_records import read_comparisons

_STYLE = {"box": box.SIMPLE, "padding": (0, 1, 0, 0)}
_WIDTH = 100


def main(argv: Sequence[str]) -> None:
    """Compare at every point, and write one summary."""
    defaults = {"rounds": 20, "realisations": 32, "chunk": 64, "policies": ",".join(POLICIES)}
    parser = make_parser(
        __doc__, "config", "workdir", **defaults, seeds=(1, "number of seeds"), **SHARD, **CLUSTER
    )
    add_sweep(parser)
    given, overrides = parser.parse_known_args(argv)
    options = policy_options(
        given.policies.split(","),
        rounds=given.rounds,
        realisations=given.realisations,
        chunk=given.chunk,
    )
    axes = [*file_axes(given.config), *(read_axis("--sweep", text) for text in given.sweep)]
    if not axes and given.seeds == 1:
        remedy = "Give --sweep KEY=v1,v2,... or a --config with get_sweep()"
        raise InputError("--sweep", given.sweep, "nothing is swept", remedy)
    keys = parse_overrides(overrides)
    made = read_comparisons("sweep", given.config, keys, options, axes, given.seeds)
    console = console_for_tables(_WIDTH)
    results = run_shards("sweep", argv, given, made, console)
    if results is None:
        return
    comparisons = map(summarise, load_points(results.folder, "sweep"))
    labels = [point.labels for point in made.sweep.points]
    points = [{"at": at} | own for at, own in zip(labels, comparisons, strict=True)]
    path = results.write_summary({"axes": results.options["axes"], "points": points})
    console.print(_latency_table(points))
    if points[0]["reduction_percent"]:
        console.print(_reduction_table(points))
    print(f"written: {path}")


def _latency_table(points: Sequence[Mapping[str, Any]]) -> Table:
    """Median and mean latency of every policy at every point."""
    rows = []
    for point in points:
        latency = (policy["latency_s"] for policy in point["policies"].values())
        rows.append((*map(_text, point["at"].values()), *map(_median_and_mean, latency)))
    headings = (*points[0]["at"], *points[0]["policies"])
    title = "Latency of a round: median (mean) over networks, s"
    return make_table(headings, rows, left=0, title=title, **_STYLE)


def _reduction_table(points: Sequence[Mapping[str, Any]]) -> Table:
    """Latency saved by ``dssra`` over every other policy, at every point."""
    saved = [point["reduction_percent"]["latency_s"] for point in points]
    rows = [
        (
            *map(_text, point["at"].values()),
            *map(_median_and_mean, own.values()),
        )
        for point, own in zip(points, saved, strict=True)
    ]
    headings = (*points[0]["at"], *saved[0])
    title = "Latency saved by dssra in the same network: median (mean) over networks, %"
    return make_table(headings, rows, left=0, title=title, **_STYLE)


def _median_and_mean(estimate: Mapping[str, Any]) -> str:
    """Both to three digits; few networks with bad links may set them far apart."""
    return f"{number_text(estimate['median'])} ({number_text(estimate['mean'])})"


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
