"""How far ``dssra`` is from the best decision of all, on small networks.

    python -m experiments.benchmarks.solver.gap --networks=200 --workdir=runs/gap

Random networks of the small shapes in turn. ``dssra`` decides in single precision at its
default settings; exhaustive search, in double precision, covers every partition and ends with
a lower bound. One line for every network in DIR/gap.jsonl, from which a killed run goes on;
the summary is printed and in DIR/summary.json. ``--law=wide`` draws other networks. Seeds below 200
were for tuning the solver, so state figures from others. With ``--allocation-steps=12,8,24
--candidates=2 --cluster-candidates=4 --cluster-steps=5`` it searches less and decides faster.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.solver.allocate import allocate
from collapipe_jax.edge.solver.exhaustive import exhaustive
from experiments.benchmarks.solver import networks
from experiments.benchmarks.solver.options import SEARCH_OPTIONS, search_config
from experiments.benchmarks.timing import timed
from experiments.double_precision import in_double, judge

_ALLOCATION_STEPS = 500
_WORST = 10


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write the summary."""
    own = {"networks": 200, "seed": 1000, "workdir": "runs/gap"}
    own["law"] = ("tight", f"of the networks: {', '.join(networks.LAWS)}")
    options = make_parser(__doc__, **own, **SEARCH_OPTIONS).parse_args(argv)
    require_positive(networks=options.networks)
    config = search_config(options)
    console, workdir = Console(), Path(options.workdir)
    settings = {"seed": options.seed, "law": options.law, **config._asdict()}
    settings["allocation_steps"] = list(config.allocation_steps)  # as JSON has them
    draw, shapes = functools.partial(_cases, config, options.law), networks.SMALL_SHAPES
    path, count = workdir / "gap.jsonl", options.networks
    rows = networks.run_networks(path, count, settings, shapes, draw, _compare, console)
    report = {**settings, "networks": options.networks, **summarise(rows)}
    for name in ("usable", "heavy_loss"):
        if report[name]["networks"]:
            title = f"{name.replace('_', ' ')}, {options.law} law, seed {options.seed}"
            console.print(networks.spread_table(title, report[name]))
    console.print(_worst_table(report["worst"]))
    write_json(workdir / "summary.json", report)
    console.print(f"written: {workdir / 'summary.json'}")


def _cases(config, law: str, seed: int, count: int, shape: networks.NetworkShape) -> tuple:
    """Problems and decisions of ``dssra``, stacked."""
    problems = networks.sample_problems(seed, count, shape, law)
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

    Networks whose every decision costs infinitely much, as under the law "unusable", only count.
    """
    finite = [row for row in rows if np.isfinite(row["exhaustive"])]
    usable, heavy = networks.split_by_loss(finite)
    worst = sorted(finite, key=lambda row: -_gap(row))[:_WORST]
    return {
        "never_finite": len(rows) - len(finite),
        "usable": _summary(usable),
        "heavy_loss": _summary(heavy),
        "worst": [{"gap": _gap(row), "partition_gap": _partition_gap(row), **row} for row in worst],
    }


def _gap(row: dict) -> float:
    return _above(row["dssra"], row["exhaustive"])


def _partition_gap(row: dict) -> float:
    """The part of the gap that better shares and powers do not close."""
    return _above(row["dssra_tuned"], row["exhaustive"])


def _above(objective: float, least: float) -> float:
    """Relative; 0 where no cluster can run, so that every objective is 0."""
    return objective / least - 1.0 if least > 0 else objective


def _summary(rows: Sequence[dict]) -> dict:
    if not rows:
        return {"networks": 0}
    return {
        "networks": len(rows),
        "gap": networks.spread([_gap(row) for row in rows]),
        "gap_of_partition": networks.spread([_partition_gap(row) for row in rows]),
        "left_by_search": networks.spread(
            [-_above(row["lower_bound"], row["exhaustive"]) for row in rows]
        ),
        "search_s": networks.spread([row["search_s"] for row in rows]),
        "solved": sum(row["solved"] for row in rows) / sum(row["partitions"] for row in rows),
        "other_partition": sum(row["dssra_partition"] != row["best_partition"] for row in rows),
        "infeasible": sum(not row["feasible"] for row in rows),
    }


def _worst_table(rows: Sequence[dict]) -> Table:
    cells = []
    for row in rows:
        partitions = row["dssra_partition"], row["best_partition"]
        texts = (f"{each['segments']} x {each['micro_batches']}" for each in partitions)
        gaps = f"{row['gap']:.1e}", f"{row['partition_gap']:.1e}"
        cells.append((*texts, str(row["network"]), *gaps))
    headings = ("dssra", "best", "network", "gap", "of partition")
    return make_table(headings, cells, left=2, title="largest gaps")


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
