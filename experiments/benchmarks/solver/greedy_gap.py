"""How good the shares and powers are that ``greedy`` finds under its caps, segments given.

    python -m experiments.benchmarks.solver.greedy_gap --networks=112 --workdir=runs/greedy_gap

Random networks whose budgets are what the static pipeline spends at a tenth of full power,
so that caps bind. SciPy's SLSQP tunes shares and powers of greedy's layout under the same
caps, from what greedy found and from points around. Networks on which greedy cannot keep all
caps, or loses over 90 % of a micro-batch, are told apart. One line for every network in
DIR/greedy_gap.jsonl, from which a run that was stopped goes on; what came out is printed and in
DIR/summary.json.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Small matrices: two threads would cost SciPy more than they bring.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
from collapipe_jax.cost.round import price
from rich.console import Console

from collapipe_jax.command_line import require_positive, run_reporting_errors
from collapipe_jax.cost.decision import Decision, active_nodes
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import static_pipeline
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from collapipe_jax.policies.greedy import greedy
from experiments.benchmarks.solver.network_rows import (
    HOPELESS_LOSS,
    by_hope,
    run_networks,
    spread,
    spread_table,
)
from experiments.benchmarks.solver.outside_solvers import in_double, solve_with_scipy
from experiments.benchmarks.solver.solver_networks import (
    SMALL_SHAPES,
    NetworkShape,
    sample_problems,
)

SHAPES = (*SMALL_SHAPES, NetworkShape(3, 4, 8))

_MICRO_BATCHES = 8
_POWER = 0.1  # of the full one, at which the static pipeline sets the budgets
_KEPT = 2e-3  # excess over a cap, in budgets, up to which greedy kept it
_BINDS = 0.99  # of a budget


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write what came out."""
    options = _options(argv)
    console = Console()
    workdir = Path(options.workdir)
    settings = {"seed": options.seed, "starts": options.starts}
    rows = run_networks(
        workdir / "greedy_gap.jsonl",
        options.networks,
        settings,
        SHAPES,
        _cases,
        lambda case: _compared(*case, options.starts),
        console,
    )
    report = {**settings, **_report(rows)}
    for name, summary in report["summary"].items():
        console.print(spread_table(f"relative differences, {name}", summary))
    console.print(f"caps out of reach: {report['caps_out_of_reach']} of {report['networks']}")
    write_text(workdir / "summary.json", json.dumps(report, indent=1) + "\n")
    console.print(f"written: {workdir / 'summary.json'}")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=112)
    parser.add_argument("--starts", type=int, default=3, help="of SLSQP")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workdir", default="runs/greedy_gap")
    options = parser.parse_args(argv)
    require_positive(networks=options.networks, starts=options.starts)
    return options


def _cases(seed: int, count: int, shape: NetworkShape) -> tuple[RoundProblem, Decision]:
    """Problems with tight budgets and no debts of energy, and what greedy decides, stacked."""
    problems = jax.jit(jax.vmap(_with_tight_budgets))(sample_problems(seed, count, shape))
    return problems, jax.jit(jax.vmap(lambda problem: greedy(problem).decision))(problems)


def _with_tight_budgets(problem: RoundProblem) -> RoundProblem:
    control, low = problem.control, static_pipeline(problem, _MICRO_BATCHES)
    low = low.replace(d2d_power_w=_POWER * low.d2d_power_w, d2e_power_w=_POWER * low.d2e_power_w)
    spent_j = price(problem, low).energy_j
    budget_j = jnp.where(spent_j > 0, spent_j, control.energy_budget_j)
    no_debt = jnp.zeros_like(control.energy_queue)
    return problem.replace(control=control.replace(energy_budget_j=budget_j, energy_queue=no_debt))


def _compared(problem: RoundProblem, decision: Decision, starts: int) -> dict:
    """Greedy and SLSQP on one network, both under what greedy's rounding left of the caps."""
    with jax.enable_x64(True):
        wide = in_double(problem)
        cost = jax.jit(price)(wide, in_double(decision))
        budget_j = wide.control.energy_budget_j
        use = np.asarray(cost.energy_j / budget_j)[np.asarray(active_nodes(decision.segments))]
        row = {"greedy": float(cost.objective), "largest_use": float(use.max())}
        row |= {"binding": float(np.mean(use > _BINDS)), "loss": float(cost.loss_probability.max())}
        if use.max() > 1.0 + _KEPT:
            return row | {"slsqp": None}
        control = wide.control.replace(energy_budget_j=jnp.maximum(budget_j, cost.energy_j))
        wide = wide.replace(control=control)
    found = solve_with_scipy(wide, decision, "SLSQP", starts, capped=True)
    return row | {"slsqp": found.objective}


def _report(rows: list[dict]) -> dict:
    """Summaries of networks whose caps were kept, hopeless losses apart."""
    kept = [row for row in rows if row["slsqp"] is not None]
    if not kept:
        raise InputError("--networks", len(rows), "no caps that can be kept", "Give more")
    usable, hopeless = by_hope(kept)
    groups = {"usable": usable, f"loss above {HOPELESS_LOSS}": hopeless}
    return {
        "networks": len(rows),
        "caps_out_of_reach": len(rows) - len(kept),
        "summary": {name: _summary(group) for name, group in groups.items() if group},
    }


def _summary(rows: list[dict]) -> dict:
    return {
        "networks": len(rows),
        "greedy_over_slsqp": spread([row["greedy"] / row["slsqp"] - 1.0 for row in rows]),
        "nodes_at_their_caps": float(np.mean([row["binding"] for row in rows])),
    }


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
