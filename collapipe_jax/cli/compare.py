r"""All policies side by side on the same networks, under the same fading; no learning.

    collapipe compare --config=paper --workdir=DIR \
        --rounds=50 --realisations=256

Results are in ``summary.json``; figures are drawn from ``results.zarr``. A run that was killed
goes on with the same arguments, chunk by chunk, and ends with the same bytes. Networks in
which no cluster can ever hold the encoder are left out of the summary, and counted. Several
processes share the work with --shard=i/n, or with --cluster, which starts them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from collapipe_jax.cli.options import make_parser
from collapipe_jax.cli.shards import CLUSTER, SHARD, run_shards
from collapipe_jax.core.console import COMPACT, console_for_tables, make_table, name_lines
from collapipe_jax.core.quantity import bytes_to_mib
from collapipe_jax.core.statistics import interval_text, median_text, number_text
from collapipe_jax.edge.policies.registry import POLICIES
from collapipe_jax.runs.config.files import parse_overrides
from collapipe_jax.runs.results.realisations import load_realisations, warn_of_comparison
from collapipe_jax.runs.studies.comparison import summarise
from collapipe_jax.runs.studies.montecarlo import policy_options
from collapipe_jax.runs.studies.sweep_records import read_comparisons

_WIDTH = 100
_LIMITS = ("memory", "server_memory", "networks_over_energy", "divergence")


def main(argv: Sequence[str]) -> None:
    """Simulate what is not on file yet, then summarise all of it."""
    parser = make_parser(
        __doc__,
        "config",
        "workdir",
        rounds=50,
        realisations=256,
        chunk=64,
        policies=",".join(POLICIES),
        **SHARD,
        **CLUSTER,
    )
    given, overrides = parser.parse_known_args(argv)
    console = console_for_tables(_WIDTH)
    options = policy_options(
        given.policies.split(","),
        rounds=given.rounds,
        realisations=given.realisations,
        chunk=given.chunk,
    )
    made = read_comparisons("compare", given.config, parse_overrides(overrides), options)
    results = run_shards("compare", argv, given, made, console)
    if results is None:
        return
    summary = summarise(load_realisations(results.folder, "compare"))
    path = results.write_summary(summary)
    console.print(summary_table(summary))
    if summary["reduction_percent"]:
        console.print(_saving_table(summary))
    print(f"written: {path}")
    warn_of_comparison(summary)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """One row for every policy."""
    rows = []
    for name, policy in summary["policies"].items():
        memory, broken = policy["device_memory_bytes"]["median"], policy["violations"]
        numbers: tuple[Any, ...] = (
            policy["descent_s"]["median"],
            policy["compute_latency_s"]["median"],
            None if memory is None else bytes_to_mib(memory),
            policy["energy_j"]["median"],
        )
        texts = map(number_text, numbers)
        over = "/".join(f"{100 * broken[key]:.0f}" for key in _LIMITS)
        part = f"{100 * policy['participation']['mean']:.0f}"
        latency, mean = median_text(policy["latency_s"]), number_text(policy["latency_s"]["mean"])
        blocks = number_text(policy["blocks"]["median"])
        keeps, wins = (f"{100 * policy[key]:.0f}" for key in ("keeps_limits", "fastest"))
        rows.append((name_lines(name), latency, mean, *texts, blocks, part, over, keeps, wins))
    units = dict.fromkeys(("latency", "mean", "descent", "compute"), "s")
    units |= {"memory": "MiB", "energy": "J", "blocks": ""}
    units |= dict.fromkeys(("part", "over", "keeps", "wins"), "%")
    return make_table(
        ("policy", *(f"{name}\n{unit}" for name, unit in units.items())),
        rows,
        title=f"Medians over {summary['realisations']} networks of {summary['rounds']} rounds",
        caption="Latency with the 95 % interval of its median, and its mean. Descent: time for "
        "what a round at the divergence target descends, by the bound. Memory of the fullest "
        "device, energy of all nodes a round. Blocks: of a device or client that takes part, 0 "
        "where the edge server holds all; of splitfed the cut. Part: clusters or clients that take "
        "part. Over: share of rounds over a device's memory, of rounds over the edge server's, of "
        "networks over a node's mean energy, and of networks over their mean divergence. Keeps: "
        "networks in which it keeps all limits; wins: in which it is the fastest that does. ?: "
        "unknown or infinite. "
        f"{summary['realisations_left_out']} networks that can run no round are left out."
        + "".join(_modes_text(*each) for each in summary["policies"].items()),
        **COMPACT | {"padding": 0},
    )


def _modes_text(policy: str, own: Mapping[str, Any]) -> str:
    """In which share of networks a policy chose which mode; empty where it chose none."""
    shares = own.get("modes", {})
    chosen = ", ".join(f"{mode} in {100 * share:.0f} %" for mode, share in shares.items())
    return f" {policy} chose {chosen} of networks." if shares else ""


def _saving_table(summary: Mapping[str, Any]) -> Table:
    """What ``dssra`` saves against every other policy, network by network."""
    saved = summary["reduction_percent"]
    metrics = {"latency_s": "latency, %", "energy_j": "energy, %"}
    rows = [
        (
            name,
            *(
                text
                for key in metrics
                for text in (
                    interval_text(saved[key][name], "{:.0f}"),
                    median_text(saved[key][name]),
                )
            ),
        )
        for name in saved["latency_s"]
    ]
    headings = [f"{kind}\n{label}" for label in metrics.values() for kind in ("mean", "median")]
    return make_table(
        ("against", *headings), rows, title="Saved by dssra, with 95 % intervals", **COMPACT
    )
