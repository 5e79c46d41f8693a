"""How good the shares and powers of ``greedy`` are under its caps, partitions given.

    python -m experiments.benchmarks.solver.greedy_gap --networks=112 --workdir=DIR

Random networks with the budgets that the static pipeline needs at a tenth of full power, so
that caps bind. SciPy's SLSQP starts from greedy's decision and from points near it, under the
same caps. Networks on which greedy cannot keep all caps, or loses over 90 % of a micro-batch,
are apart. One line for every network in DIR/greedy_gap.jsonl, from which a killed run goes on;
the summary is printed and in DIR/summary.json.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.edge.cost.decision import Decision, active_nodes
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.policies.greedy import greedy
from experiments.benchmarks.solver import networks
from experiments.benchmarks.solver.outside_scipy import evaluate_compiled, solve_with_scipy
from experiments.double_precision import in_double

_MICRO_BATCHES = 8
_POWER = 0.1  # of the full one, at which the static pipeline sets the budgets
_KEPT = 2e-3  # excess over a cap, in budgets, up to which greedy kept it
_BINDS = 0.99  # of a budget


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write the summary."""
    own = {"networks": 112, "seed": 0, "workdir": "runs/greedy_gap", "starts": (3, "of SLSQP")}
    options = make_parser(__doc__, **own).parse_args(argv)
    require_positive(networks=options.networks, starts=options.starts)
    console, workdir = Console(), Path(options.workdir)
    settings = {"seed": options.seed, "starts": options.starts}
    path, shapes = workdir / "greedy_gap.jsonl", networks.MIXED_SHAPES
    measure = functools.partial(_compare, starts=options.starts)
    rows = networks.run_networks(path, options.networks, settings, shapes, _cases, measure, console)
    report = {**settings, **summarise(rows)}
    for name, summary in report["summary"].items():
        console.print(networks.spread_table(f"relative differences, {name}", summary))
    console.print(f"caps out of reach: {report['caps_out_of_reach']} of {report['networks']}")
    write_json(workdir / "summary.json", report)
    console.print(f"written: {workdir / 'summary.json'}")


def _cases(seed: int, count: int, shape: networks.NetworkShape) -> tuple[RoundProblem, Decision]:
    """Problems with tight budgets and no energy queues, and decisions of greedy, stacked."""
    problems = jax.jit(jax.vmap(with_tight_budgets))(networks.sample_problems(seed, count, shape))
    return problems, jax.jit(jax.vmap(lambda problem: greedy(problem).decision))(problems)


def with_tight_budgets(problem: RoundProblem) -> RoundProblem:
    """The problem with budgets of the static pipeline at a tenth of full power."""
    control, low = problem.control, static_pipeline(problem, _MICRO_BATCHES)
    low = low.replace(d2d_power_w=_POWER * low.d2d_power_w, d2e_power_w=_POWER * low.d2e_power_w)
    energy_j = evaluate(problem, low).energy_j
    budget_j = jnp.where(energy_j > 0, energy_j, control.energy_budget_j)
    empty = jnp.zeros_like(control.energy_queue)
    return problem.replace(control=control.replace(energy_budget_j=budget_j, energy_queue=empty))


def _compare(problem: RoundProblem, decision: Decision, starts: int) -> dict:
    """Greedy and SLSQP on one network, under the same caps up to greedy's rounding."""
    with jax.enable_x64(True):
        wide = in_double(problem)
        cost = evaluate_compiled(wide, in_double(decision))
        budget_j = wide.control.energy_budget_j
        use = np.asarray(cost.energy_j / budget_j)[np.asarray(active_nodes(decision.segments))]
        kept_j = jnp.maximum(budget_j, cost.energy_j)
        wide = wide.replace(control=wide.control.replace(energy_budget_j=kept_j))
    row = {
        "greedy": float(cost.objective),
        "largest_use": float(use.max()),
        "binding": float(np.mean(use > _BINDS)),
        "loss": float(cost.loss_probability.max()),
    }
    if use.max() > 1.0 + _KEPT:
        return row | {"slsqp": None}
    return row | {"slsqp": solve_with_scipy(wide, decision, starts, capped=True).objective}


def summarise(rows: Sequence[dict]) -> dict:
    """Summaries of networks whose caps were kept, heavy losses apart.

    Raises:
      InputError: if there is no such network.
    """
    kept = [row for row in rows if row["slsqp"] is not None]
    if not kept:
        raise InputError("--networks", len(rows), "no caps that can be kept", "Give more")
    names = "usable", f"loss above {networks.HEAVY_LOSS}"
    groups = zip(names, networks.split_by_loss(kept), strict=True)
    return {
        "networks": len(rows),
        "caps_out_of_reach": len(rows) - len(kept),
        "summary": {name: _summary(group) for name, group in groups if group},
    }


def _summary(rows: Sequence[dict]) -> dict:
    return {
        "networks": len(rows),
        "greedy_over_slsqp": networks.spread([row["greedy"] / row["slsqp"] - 1.0 for row in rows]),
        "nodes_at_their_caps": float(np.mean([row["binding"] for row in rows])),
    }


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
