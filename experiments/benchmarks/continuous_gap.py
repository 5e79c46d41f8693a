"""How good the shares and powers are that the solver finds, segments given.

    python -m experiments.benchmarks.continuous_gap --networks=200 --out=gap.json

Random networks, half with the segments of a static pipeline and half with those of
``dssra``, all from equal shares and full power. The package's solver in either precision
against the best that SciPy finds by two methods and several starts, and against a lower
bound by CVXPY. Ends with status 1 if a price lies below its bound, or the solver's own
certificate above a price. About 15 minutes on 2 cores, nearly all of it SciPy.
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
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import price
from collapipe_jax.errors import InputError
from collapipe_jax.files import write_text
from collapipe_jax.scheduling.baselines import static_pipeline, with_equal_resources
from collapipe_jax.scheduling.dssra import dssra
from collapipe_jax.scheduling.feasibility import is_feasible
from collapipe_jax.scheduling.resources import tune_resources
from experiments.benchmarks.outside_bound import lower_bound_with_cvxpy
from experiments.benchmarks.outside_solvers import in_double, solve_with_scipy
from experiments.benchmarks.solver_networks import SMALL_SHAPES, NetworkShape, sample_problems

SHAPES = (*SMALL_SHAPES, NetworkShape(3, 4, 8))

_PRECISIONS = ("float32", "float64")
_MICRO_BATCHES = (4, 8, 16)
_WORSE = 1e-4
_ROUNDING = 2e-6
_HOPELESS_LOSS = 0.9


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write what came out."""
    options = _options(argv)
    console = Console()
    rows = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("networks", total=options.networks)
        for place, shape in enumerate(SHAPES):
            count = len(range(place, options.networks, len(SHAPES)))
            if count == 0:
                continue
            problems, starts = _cases(options.seed + place, count, shape)
            ours = _ours(problems, starts, options.steps)
            for index in range(count):
                problem, start = _pick(problems, index), _pick(starts, index)
                row = {"shape": list(shape), "segments_by": _ORIGINS[index % 2]}
                row |= _outside(problem, start, options)
                row |= {name: _checked(problem, _pick(ours[name], index)) for name in ours}
                rows.append(row)
                progress.advance(task)
    report = {"options": vars(options), **_report(rows), "networks": rows}
    for name, summary in report["summary"].items():
        console.print(_table(name, summary))
    if options.out:
        write_text(Path(options.out), json.dumps(report, indent=1) + "\n")
        console.print(f"written: {options.out}")
    if report["contradictions"]:
        console.print(f"prices and bounds contradict each other: {report['contradictions']}")
        raise SystemExit(1)


_ORIGINS = ("static_pipeline", "dssra")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200, help="of the package's solver")
    parser.add_argument("--starts", type=int, default=2, help="of SLSQP")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="where to write the figures as JSON")
    options = parser.parse_args(argv)
    for name in ("networks", "steps", "starts"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name}", getattr(options, name), "not positive", "Give 1 or more")
    return options


def _pick(tree, index: int):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _cases(seed: int, count: int, shape: NetworkShape) -> tuple[RoundProblem, Decision]:
    """Problems, and layouts with equal shares and full power, stacked."""
    problems = sample_problems(seed, count, shape)
    micro_batches = jnp.asarray(np.resize(_MICRO_BATCHES, count))

    def layouts(problem, micro_batches, index):
        static = static_pipeline(problem, micro_batches)
        found = dssra(problem).decision
        layout = jax.tree.map(lambda a, b: jnp.where(index % 2 == 0, a, b), static, found)
        return with_equal_resources(problem, layout.segments, layout.micro_batches)

    return problems, jax.jit(jax.vmap(layouts))(problems, micro_batches, jnp.arange(count))


def _ours(problems: RoundProblem, starts: Decision, steps: int) -> dict:
    """The package's solver in either precision, all networks at once."""

    def tune(problem, start):
        return tune_resources(problem, start, steps)

    single = jax.jit(jax.vmap(tune))(problems, starts)
    with jax.enable_x64(True):
        double = jax.jit(jax.vmap(tune))(in_double(problems), in_double(starts))
    return dict(zip(_PRECISIONS, jax.tree.map(np.asarray, (single, double)), strict=True))


@jax.jit
def _judge(problem, decision):
    cost = price(problem, decision)
    return cost.objective, jnp.max(cost.loss_probability), is_feasible(problem, decision)


def _checked(problem: RoundProblem, tuned) -> dict:
    """What the solver says, and what its decision costs in double precision."""
    with jax.enable_x64(True):
        objective, _, feasible = _judge(in_double(problem), in_double(tuned.decision))
        return {
            "objective": float(objective),
            "feasible": bool(feasible),
            "lower_bound": float(tuned.lower_bound),
            "residual": float(tuned.residual),
            "status": int(tuned.status),
        }


def _outside(problem: RoundProblem, start: Decision, options: argparse.Namespace) -> dict:
    """The best of SciPy, and the lower bound."""
    found = {
        "slsqp": solve_with_scipy(problem, start, "SLSQP", options.starts),
        "trust_constr": solve_with_scipy(problem, start, "trust-constr"),
    }
    best = min(found.values(), key=lambda solution: solution.objective)
    bound = lower_bound_with_cvxpy(problem, best.decision)
    with jax.enable_x64(True):
        start_objective, _, _ = _judge(in_double(problem), in_double(start))
        _, loss, _ = _judge(in_double(problem), best.decision)
        return {
            "start": float(start_objective),
            **{name: solution.objective for name, solution in found.items()},
            "scipy": best.objective,
            "bound": bound.lower_bound,
            "loss": float(loss),
        }


def _report(rows: list[dict]) -> dict:
    """Summaries by precision, networks with hopeless losses apart, and contradictions."""
    usable = [row for row in rows if row["loss"] <= _HOPELESS_LOSS]
    hopeless = [row for row in rows if row["loss"] > _HOPELESS_LOSS]
    summary, contradictions = {}, []
    for name in _PRECISIONS:
        if usable:
            summary[name] = _summary(usable, name)
        if hopeless:
            summary[f"{name}, loss above {_HOPELESS_LOSS}"] = _summary(hopeless, name)
    for index, row in enumerate(rows):
        for name in _PRECISIONS:
            ours = row[name]
            best = min(row["scipy"], ours["objective"])
            if not ours["feasible"]:
                contradictions.append({"network": index, name: "not feasible"})
            if ours["objective"] < row["bound"] * (1.0 - _ROUNDING):
                contradictions.append({"network": index, name: "price below the bound"})
            if ours["lower_bound"] > best * (1.0 + _slack(name)):
                contradictions.append({"network": index, name: "certificate above a price"})
    return {"summary": summary, "contradictions": contradictions}


def _slack(precision: str) -> float:
    """What rounding may put on a certificate."""
    return 1e-5 if precision == "float32" else _ROUNDING


def _summary(rows: list[dict], name: str) -> dict:
    """Relative differences over networks; positive where the first is larger."""
    ours = np.array([row[name]["objective"] for row in rows])
    certificate = np.array([row[name]["lower_bound"] for row in rows])
    scipy, bound = (np.array([row[key] for row in rows]) for key in ("scipy", "bound"))
    gap = ours / scipy - 1.0
    return {
        "networks": len(rows),
        "ours_over_scipy": _spread(gap),
        "worse_than_scipy": int(np.sum(gap > _WORSE)),
        "better_than_scipy": int(np.sum(gap < -_WORSE)),
        "ours_over_bound_least": float(np.min(ours / bound - 1.0)),
        "scipy_over_bound": _spread(scipy / bound - 1.0),
        "ours_over_certificate": _spread(1.0 - certificate / ours),
        "certificate_over_scipy_most": float(np.max(certificate / scipy - 1.0)),
        "residual": _spread(np.array([row[name]["residual"] for row in rows])),
        "status": {
            str(status): int(count)
            for status, count in zip(
                *np.unique([row[name]["status"] for row in rows], return_counts=True), strict=True
            )
        },
    }


def _table(name: str, summary: dict) -> Table:
    """A summary: numbers that are one alone in the first column."""
    table = Table(title=name, title_justify="left")
    table.add_column("relative difference")
    for heading in ("median", "95 %", "largest"):
        table.add_column(heading, justify="right")
    for key, value in summary.items():
        numbers = value.values() if key != "status" and isinstance(value, dict) else [value]
        texts = [f"{x:.1e}" if isinstance(x, float) else str(x) for x in numbers]
        table.add_row(key.replace("_", " "), *texts)
    return table


def _spread(values: np.ndarray) -> dict:
    middle, high = np.quantile(values, (0.5, 0.95))
    return {"median": float(middle), "p95": float(high), "max": float(np.max(values))}


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
