"""How far ``dssra`` is from the best decision of all, on small networks.

    python -m experiments.benchmarks.solver.gap --networks=200 --workdir=runs/gap

Random networks of the small shapes in turn. ``dssra`` decides in single precision at its
default settings; exhaustive search, in double precision, covers every partition and ends with
a lower bound. One line for every network in DIR/gap.jsonl, from which a killed run goes on;
the summary is printed and in DIR/summary.json. Seeds below 100 were for tuning the solver, so
state figures from others. With ``--allocation-steps=12,8,24 --candidates=2
--cluster-candidates=4 --cluster-steps=8`` ``dssra`` searches less and decides faster.
"""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from collapipe_jax.allocation.allocate import allocate
from collapipe_jax.command_line import require_positive, run_reporting_errors
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.policies.dssra import dssra
from collapipe_jax.policies.exhaustive import exhaustive
from experiments.benchmarks.solver.networks import (
    SMALL_SHAPES,
    NetworkShape,
    in_double,
    sample_problems,
)
from experiments.benchmarks.solver.options import add_search_options, search_config
from experiments.benchmarks.solver.rows import (
    judge,
    network_parser,
    run_networks,
    split_by_loss,
    spread,
    spread_table,
    write_summary,
)
from experiments.benchmarks.timing import timed

_ALLOCATION_STEPS = 500
_WORST = 10


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write the summary."""
    parser = network_parser(__doc__, "runs/gap", networks=200, seed=1000)
    add_search_options(parser)
    options = parser.parse_args(argv)
    require_positive(networks=options.networks)
    config = search_config(options)
    console, workdir = Console(), Path(options.workdir)
    settings = {"seed": options.seed, **config._asdict()}
    settings["allocation_steps"] = list(config.allocation_steps)  # as JSON has them
    rows = run_networks(
        workdir / "gap.jsonl",
        options.networks,
        settings,
        SMALL_SHAPES,
        functools.partial(_cases, config),
        lambda case: _compare(*case),
        console,
    )
    report = {**settings, "networks": options.networks, **summarise(rows)}
    for name in ("usable", "heavy_loss"):
        if report[name]["networks"]:
            title = f"{name.replace('_', ' ')}, seed {options.seed}"
            console.print(spread_table(title, report[name]))
    console.print(_worst_table(report["worst"]))
    write_summary(workdir, report, console)


def _cases(config, seed: int, count: int, shape: NetworkShape) -> tuple[RoundProblem, Decision]:
    """Problems and decisions of ``dssra``, stacked."""
    problems = sample_problems(seed, count, shape)
    decide = jax.jit(jax.vmap(functools.partial(dssra, config=config)))
    return problems, jax.device_get(decide(problems).decision)


_allocate = jax.jit(functools.partial(allocate, steps=_ALLOCATION_STEPS))


def _compare(problem: RoundProblem, decided: Decision) -> dict:
    """Both decisions for a network, evaluated in double precision."""
    with jax.enable_x64(True):
        problem, decided = in_double(problem), in_double(decided)
        ours = judge(problem, decided)
        search_s, best = timed(lambda: exhaustive(problem, decided))
        return {
            "dssra": float(ours.objective),
            "feasible": bool(ours.feasible),
            "dssra_tuned": float(_allocate(problem, decided).objective),
            "exhaustive": best.objective,
            "lower_bound": best.lower_bound,
            "loss": float(judge(problem, best.decision).loss),
            "partitions": best.partitions,
            "solved": best.solved,
            "search_s": search_s,
            "dssra_partition": _partition(decided),
            "best_partition": _partition(best.decision),
        }


def _partition(decision: Decision) -> dict:
    return {
        "segments": np.asarray(decision.segments).tolist(),
        "micro_batches": np.asarray(decision.micro_batches).tolist(),
    }


def summarise(rows: Sequence[dict]) -> dict:
    """Gaps of ``dssra``, networks with heavy losses apart, and the worst cases.

    Args:
      rows: lines of gap.jsonl.
    """
    usable, heavy = split_by_loss(rows)
    worst = sorted(rows, key=lambda row: -_gap(row))[:_WORST]
    return {
        "usable": _summary(usable),
        "heavy_loss": _summary(heavy),
        "worst": [{"gap": _gap(row), "partition_gap": _partition_gap(row), **row} for row in worst],
    }


def _gap(row: dict) -> float:
    return row["dssra"] / row["exhaustive"] - 1.0


def _partition_gap(row: dict) -> float:
    """The part of the gap that better shares and powers do not close."""
    return row["dssra_tuned"] / row["exhaustive"] - 1.0


def _summary(rows: Sequence[dict]) -> dict:
    if not rows:
        return {"networks": 0}
    return {
        "networks": len(rows),
        "gap": spread([_gap(row) for row in rows]),
        "gap_of_partition": spread([_partition_gap(row) for row in rows]),
        "left_by_search": spread([1.0 - row["lower_bound"] / row["exhaustive"] for row in rows]),
        "search_s": spread([row["search_s"] for row in rows]),
        "solved": sum(row["solved"] for row in rows) / sum(row["partitions"] for row in rows),
        "other_partition": sum(row["dssra_partition"] != row["best_partition"] for row in rows),
        "infeasible": sum(not row["feasible"] for row in rows),
    }


def _worst_table(rows: Sequence[dict]) -> Table:
    table = Table(title="largest gaps", title_justify="left")
    for heading in ("network", "gap", "of partition"):
        table.add_column(heading, justify="right")
    for heading in ("dssra", "best"):
        table.add_column(heading)
    for row in rows:
        partitions = row["dssra_partition"], row["best_partition"]
        texts = [f"{each['segments']} x {each['micro_batches']}" for each in partitions]
        gaps = f"{row['gap']:.1e}", f"{row['partition_gap']:.1e}"
        table.add_row(str(row["network"]), *gaps, *texts)
    return table


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
