"""All policies side by side on the same networks, under the same fading; no learning.

    collapipe compare --config=paper --workdir=DIR \
        --rounds=50 --realisations=256

Results are in ``summary.json``; figures are drawn from ``results/``. A run that was killed
goes on with the same arguments, chunk by chunk, and ends with the same bytes. Networks in
which no cluster can ever hold the encoder are left out of the summary, and counted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from collapipe_jax.cli.options import make_parser
from collapipe_jax.config.files import parse_overrides, read_config
from collapipe_jax.config.system import build_system_params
from collapipe_jax.policies.registry import POLICIES
from collapipe_jax.simulation.comparison import compare
from collapipe_jax.simulation.montecarlo import policy_options
from collapipe_jax.statistics import interval_text
from collapipe_jax.tables import COMPACT, make_table
from collapipe_jax.units import bytes_to_mib


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
    )
    given, overrides = parser.parse_known_args(argv)
    console, config = Console(), read_config(given.config, parse_overrides(overrides))
    options = policy_options(
        given.policies.split(","),
        [config.control.v],
        rounds=given.rounds,
        realisations=given.realisations,
        chunk=given.chunk,
    )
    build_system_params(config)  # what is wrong with it is told before there is a workdir
    summary = compare(config, options, given.workdir, console)
    console.print(summary_table(summary))
    console.print(f"written: {given.workdir}/summary.json")


def summary_table(summary: Mapping[str, Any]) -> Table:
    """One row for every policy."""
    rows = []
    for name, policy in summary["policies"].items():
        memory, broken = policy["device_memory_bytes"]["mean"], policy["violations"]
        numbers = (
            policy["compute_latency_s"]["mean"],
            None if memory is None else bytes_to_mib(memory),
            policy["energy_j"]["mean"],
            policy["divergence"]["median"],
        )
        texts = ("?" if number is None else f"{number:.3g}" for number in numbers)
        shares = (f"{100 * broken[key]:.0f} %" for key in ("memory", "energy", "divergence"))
        rows.append((name, interval_text(policy["latency_s"]), *texts, ", ".join(shares)))
    headings = ("policy", "latency\ns", "compute\ns", "memory\nMiB", "energy\nJ", "diverg.\nmedian")
    return make_table(
        (*headings, "broken: memory,\nenergy, diverg."),
        rows,
        title=f"{summary['realisations']} networks, {summary['rounds']} rounds",
        caption="Means over rounds and networks, latency with its 95 % interval. Broken: share of "
        "rounds over a device's memory, of nodes over their mean energy, of networks over their "
        f"mean divergence. {summary['realisations_left_out']} networks that can run no round are "
        "left out.",
        **COMPACT,
    )
