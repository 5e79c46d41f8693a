"""How far ``dssra`` is from the best decision there is, on small networks.

    python -m experiments.benchmarks.solver.gap --networks=200 --workdir=runs/gap

Random networks of the small shapes by turn. ``dssra`` decides in single precision at its
default settings; exhaustive search, in double precision, looks at every layout and ends
with a lower bound. One line for every network in DIR/gap.jsonl, from which a run that was
stopped goes on; what came out is printed and in DIR/summary.json. Seeds below 100 were for
tuning the solver, so state figures from others. With ``--joint-steps=12,8,24 --plans=2
--layouts=4 --cluster-steps=8`` ``dssra`` searches less and decides faster.
"""

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from collapipe_jax.allocation.allocate import tune_resources
from collapipe_jax.command_line import require_positive, run_reporting_errors
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.files.atomic import write_text
from collapipe_jax.policies.dssra import Effort, dssra
from collapipe_jax.policies.exhaustive import exhaustive
from experiments.benchmarks.solver.effort import add_effort_options, effort_of
from experiments.benchmarks.solver.network_rows import (
    by_hope,
    judge,
    run_networks,
    spread,
    spread_table,
)
from experiments.benchmarks.solver.outside_solvers import in_double
from experiments.benchmarks.solver.solver_networks import (
    SMALL_SHAPES,
    NetworkShape,
    sample_problems,
)
from experiments.benchmarks.timing import timed

_TUNING_STEPS = 500
_WORST = 10


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write what came out."""
    options = _options(argv)
    console = Console()
    workdir = Path(options.workdir)
    effort = effort_of(options)
    effort_on_file = {**effort._asdict(), "joint_steps": list(effort.joint_steps)}
    settings = {"seed": options.seed, **effort_on_file}
    rows = run_networks(
        workdir / "gap.jsonl",
        options.networks,
        settings,
        SMALL_SHAPES,
        functools.partial(_cases, effort),
        lambda case: _compare(*case),
        console,
    )
    report = {**settings, "networks": options.networks, **summarise(rows)}
    write_text(workdir / "summary.json", json.dumps(report, indent=1) + "\n")
    _show(console, report)
    console.print(f"written: {workdir / 'summary.json'}")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--workdir", default="runs/gap")
    add_effort_options(parser)
    options = parser.parse_args(argv)
    require_positive(networks=options.networks)
    return options


def _cases(
    effort: Effort, seed: int, count: int, shape: NetworkShape
) -> tuple[RoundProblem, Decision]:
    """Problems and what ``dssra`` decides, stacked."""
    problems = sample_problems(seed, count, shape)
    decide = jax.jit(jax.vmap(functools.partial(dssra, effort=effort)))
    return problems, jax.device_get(decide(problems).decision)


@jax.jit
def _tune(problem, decision):
    return tune_resources(problem, decision, _TUNING_STEPS)


def _compare(problem: RoundProblem, decided: Decision) -> dict:
    """Both decisions for a network, priced in double precision."""
    with jax.enable_x64(True):
        problem, decided = in_double(problem), in_double(decided)
        ours = judge(problem, decided)
        search_s, best = timed(lambda: exhaustive(problem, decided))
        loss = judge(problem, best.decision).loss
        layout_objective = _tune(problem, decided).objective
    return {
        "dssra": float(ours.objective),
        "feasible": bool(ours.feasible),
        "dssra_tuned": min(float(layout_objective), float(ours.objective)),
        "exhaustive": best.objective,
        "lower_bound": best.lower_bound,
        "loss": float(loss),
        "layouts": best.layouts,
        "solved": best.solved,
        "search_s": search_s,
        "dssra_layout": _layout(decided),
        "best_layout": _layout(best.decision),
    }


def _layout(decision: Decision) -> dict:
    return {
        "segments": np.asarray(decision.segments).tolist(),
        "micro_batches": np.asarray(decision.micro_batches).tolist(),
    }


def summarise(rows: list[dict]) -> dict:
    """Gaps of ``dssra``, networks with hopeless losses apart, and the worst cases.

    Args:
      rows: lines of gap.jsonl.
    """
    usable, hopeless = by_hope(rows)
    worst = sorted(rows, key=lambda row: -_gap(row))[:_WORST]
    return {
        "usable": _figures(usable),
        "hopeless": _figures(hopeless),
        "worst": [{"gap": _gap(row), "layout_gap": _layout_gap(row), **row} for row in worst],
    }


def _gap(row: dict) -> float:
    return row["dssra"] / row["exhaustive"] - 1.0


def _layout_gap(row: dict) -> float:
    """The part of the gap that better shares and powers do not close."""
    return row["dssra_tuned"] / row["exhaustive"] - 1.0


def _figures(rows: list[dict]) -> dict:
    if not rows:
        return {"networks": 0}
    differ = [row for row in rows if row["dssra_layout"] != row["best_layout"]]
    return {
        "networks": len(rows),
        "gap": spread([_gap(row) for row in rows]),
        "gap_of_layout": spread([_layout_gap(row) for row in rows]),
        "left_by_search": spread([1.0 - row["lower_bound"] / row["exhaustive"] for row in rows]),
        "search_s": spread([row["search_s"] for row in rows]),
        "solved_of_layouts": sum(row["solved"] for row in rows)
        / sum(row["layouts"] for row in rows),
        "other_layout": len(differ),
        "infeasible": sum(not row["feasible"] for row in rows),
    }


def _show(console: Console, report: dict) -> None:
    for name in ("usable", "hopeless"):
        if report[name]["networks"]:
            title = f"{name} networks, seed {report['seed']}"
            console.print(spread_table(title, report[name]))
    console.print(_worst_table(report["worst"]))


def _worst_table(rows: list[dict]) -> Table:
    table = Table(title="largest gaps", title_justify="left")
    for heading in ("network", "gap", "of layout", "dssra", "best"):
        table.add_column(heading, justify="left" if heading in ("dssra", "best") else "right")
    for row in rows:
        layouts = (row["dssra_layout"], row["best_layout"])
        texts = [f"{each['segments']} x {each['micro_batches']}" for each in layouts]
        gaps = f"{row['gap']:.1e}", f"{row['layout_gap']:.1e}"
        table.add_row(str(row["network"]), *gaps, *texts)
    return table


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
