"""How good the solver's shares and powers are, partitions given.

    python -m experiments.benchmarks.solver.continuous_gap --networks=200 --workdir=DIR

Random networks, half with the partition of a static pipeline and half with that of
``dssra``, all from equal shares and full power. The solver in either precision, against the
best of several runs of SciPy's SLSQP, and against a lower bound by CVXPY. Ends with status 1
if an objective is below its bound, or the solver's certificate above an objective.
One line for every network in DIR/continuous_gap.jsonl, from which a killed run goes on; the
summary is printed and in DIR/summary.json.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

# Small matrices: two threads would cost SciPy more than they bring.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from collapipe_jax.allocation.allocate import Solution, allocate
from collapipe_jax.command_line import require_positive, run_reporting_errors
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import static_pipeline, with_equal_allocation
from collapipe_jax.policies.dssra import dssra
from experiments.benchmarks.solver.networks import (
    MIXED_SHAPES,
    NetworkShape,
    in_double,
    sample_problems,
)
from experiments.benchmarks.solver.outside_cvxpy import lower_bound_with_cvxpy
from experiments.benchmarks.solver.outside_scipy import solve_with_scipy
from experiments.benchmarks.solver.rows import (
    HEAVY_LOSS,
    judge,
    network_parser,
    run_networks,
    split_by_loss,
    spread,
    spread_table,
    write_summary,
)

_MICRO_BATCHES = (4, 8, 16)
_ORIGINS = ("static_pipeline", "dssra")
_WORSE = 1e-4
_ROUNDING = 2e-6  # of bounds in double precision
_CERTIFICATE_ROUNDING = {"float32": 1e-5, "float64": _ROUNDING}


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write the summary."""
    parser = network_parser(__doc__, "runs/continuous_gap", networks=200, seed=0)
    parser.add_argument("--steps", type=int, default=200, help="of the solver")
    parser.add_argument("--starts", type=int, default=2, help="of SLSQP")
    options = parser.parse_args(argv)
    require_positive(networks=options.networks, steps=options.steps, starts=options.starts)
    console, workdir = Console(), Path(options.workdir)
    settings = {name: getattr(options, name) for name in ("seed", "steps", "starts")}
    rows = run_networks(
        workdir / "continuous_gap.jsonl",
        options.networks,
        settings,
        MIXED_SHAPES,
        lambda *drawn: _cases(*drawn, options.steps),
        lambda case: _compare(case, options.starts),
        console,
    )
    report = {**settings, "networks": len(rows), "summary": summarise(rows)}
    for name, summary in report["summary"].items():
        console.print(spread_table(f"relative differences in {name}", summary))
    report["contradictions"] = contradictions(rows)
    write_summary(workdir, report, console)
    if report["contradictions"]:
        console.print(f"objectives and bounds contradict: {report['contradictions']}")
        raise SystemExit(1)


class _Case(NamedTuple):
    """Networks, stacked, or one of them.

    Attributes:
      problem: of a round.
      start: a partition with equal shares and full power.
      origin: of the partition, a place in :data:`_ORIGINS`.
      ours: solutions of the solver, by precision.
    """

    problem: RoundProblem
    start: Decision
    origin: np.ndarray
    ours: dict[str, Solution]


def _cases(seed: int, count: int, shape: NetworkShape, steps: int) -> _Case:
    """All networks of a shape, stacked."""
    problems, origin = sample_problems(seed, count, shape), np.arange(count) % 2
    micro_batches = jnp.asarray(np.resize(_MICRO_BATCHES, count))

    def start(problem, micro_batches, origin):
        static, found = static_pipeline(problem, micro_batches), dssra(problem).decision
        chosen = jax.tree.map(lambda a, b: jnp.where(origin == 0, a, b), static, found)
        return with_equal_allocation(problem, chosen.segments, chosen.micro_batches)

    starts = jax.jit(jax.vmap(start))(problems, micro_batches, origin)
    solve = jax.jit(jax.vmap(lambda problem, start: allocate(problem, start, steps)))
    single = jax.device_get(solve(problems, starts))
    with jax.enable_x64(True):
        double = jax.device_get(solve(in_double(problems), in_double(starts)))
    return _Case(problems, starts, origin, {"float32": single, "float64": double})


def _compare(case: _Case, starts: int) -> dict:
    """All solvers on one network, in double precision."""
    problem, start = case.problem, case.start
    best = solve_with_scipy(problem, start, starts)
    with jax.enable_x64(True):
        wide = in_double(problem)
        return {
            "segments_by": _ORIGINS[case.origin],
            "start": float(judge(wide, in_double(start)).objective),
            "scipy": best.objective,
            "bound": lower_bound_with_cvxpy(problem, best.decision).lower_bound,
            "loss": float(judge(wide, best.decision).loss),
            **{name: _judged(wide, solution) for name, solution in case.ours.items()},
        }


def _judged(problem: RoundProblem, solution: Solution) -> dict:
    """A solution of the solver, its objective evaluated anew."""
    ours = judge(problem, in_double(solution.decision))
    return {
        "objective": float(ours.objective),
        "feasible": bool(ours.feasible),
        "lower_bound": float(solution.lower_bound),
        "residual": float(solution.residual),
        "status": int(solution.status),
    }


def contradictions(rows: Sequence[dict]) -> list[dict]:
    """Solutions that are not feasible, below a bound, or certified above an objective."""
    found = []
    for row in rows:
        for name, rounding in _CERTIFICATE_ROUNDING.items():
            ours = row[name]
            best = min(row["scipy"], ours["objective"])
            if not ours["feasible"]:
                found.append({"network": row["network"], name: "not feasible"})
            if best < row["bound"] * (1.0 - _ROUNDING):
                found.append({"network": row["network"], name: "objective below the bound"})
            if ours["lower_bound"] > best * (1.0 + rounding):
                found.append({"network": row["network"], name: "certificate above an objective"})
    return found


def summarise(rows: Sequence[dict]) -> dict[str, dict]:
    """Summaries by precision, networks with heavy losses apart."""
    groups = zip(("", f", loss above {HEAVY_LOSS}"), split_by_loss(rows), strict=True)
    return {
        name + suffix: _summary(group, name)
        for suffix, group in groups
        if group
        for name in _CERTIFICATE_ROUNDING
    }


def _summary(rows: list[dict], name: str) -> dict:
    """Relative differences over networks; positive where the first is larger."""
    ours, certificate, residual = (
        np.array([row[name][key] for row in rows])
        for key in ("objective", "lower_bound", "residual")
    )
    scipy, bound = (np.array([row[key] for row in rows]) for key in ("scipy", "bound"))
    gap = ours / scipy - 1.0
    statuses = np.unique([row[name]["status"] for row in rows], return_counts=True)
    return {
        "networks": len(rows),
        "ours_over_scipy": spread(gap),
        "worse_than_scipy": int(np.sum(gap > _WORSE)),
        "better_than_scipy": int(np.sum(gap < -_WORSE)),
        "ours_over_bound_least": float(np.min(ours / bound - 1.0)),
        "scipy_over_bound": spread(scipy / bound - 1.0),
        "ours_over_certificate": spread(1.0 - certificate / ours),
        "certificate_over_scipy_most": float(np.max(certificate / scipy - 1.0)),
        "residual": spread(residual),
        "status": {str(status): int(count) for status, count in zip(*statuses, strict=True)},
    }


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
