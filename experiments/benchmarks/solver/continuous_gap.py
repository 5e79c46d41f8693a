"""How good the shares and powers are that the solver finds, segments given.

    python -m experiments.benchmarks.solver.continuous_gap --networks=200 \
        --workdir=runs/continuous_gap

Random networks, half with the segments of a static pipeline and half with those of
``dssra``, all from equal shares and full power. The package's solver in either precision
against the best that SciPy finds by two methods and several starts, and against a lower
bound by CVXPY. Ends with status 1 if a price lies below its bound, or the solver's own
certificate above a price. One line for every network in DIR/continuous_gap.jsonl, from
which a run that was stopped goes on; what came out is printed and in DIR/summary.json.
Nearly all of the time is SciPy's.
"""

import argparse
import json
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

from collapipe_jax.allocation.allocate import Tuned, tune_resources
from collapipe_jax.command_line import require_positive, run_reporting_errors
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import static_pipeline, with_equal_allocation
from collapipe_jax.files.atomic import write_text
from collapipe_jax.policies.dssra import dssra
from experiments.benchmarks.solver.network_rows import (
    HOPELESS_LOSS,
    by_hope,
    judge,
    run_networks,
    spread,
    spread_table,
)
from experiments.benchmarks.solver.outside_bound import lower_bound_with_cvxpy
from experiments.benchmarks.solver.outside_solvers import in_double, solve_with_scipy
from experiments.benchmarks.solver.solver_networks import (
    SMALL_SHAPES,
    NetworkShape,
    sample_problems,
)

SHAPES = (*SMALL_SHAPES, NetworkShape(3, 4, 8))

_PRECISIONS = ("float32", "float64")
_MICRO_BATCHES = (4, 8, 16)
_ORIGINS = ("static_pipeline", "dssra")
_WORSE = 1e-4
_ROUNDING = 2e-6


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write what came out."""
    options = _options(argv)
    console = Console()
    workdir = Path(options.workdir)
    settings = {name: getattr(options, name) for name in ("seed", "steps", "starts")}
    rows = run_networks(
        workdir / "continuous_gap.jsonl",
        options.networks,
        settings,
        SHAPES,
        lambda *drawn: _cases(*drawn, options.steps),
        lambda case: _compared(case, options.starts),
        console,
    )
    report = {**settings, "networks": len(rows), **_report(rows)}
    for name, summary in report["summary"].items():
        console.print(spread_table(f"relative differences in {name}", summary))
    write_text(workdir / "summary.json", json.dumps(report, indent=1) + "\n")
    console.print(f"written: {workdir / 'summary.json'}")
    if report["contradictions"]:
        console.print(f"prices and bounds contradict each other: {report['contradictions']}")
        raise SystemExit(1)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200, help="of the package's solver")
    parser.add_argument("--starts", type=int, default=2, help="of SLSQP")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workdir", default="runs/continuous_gap")
    options = parser.parse_args(argv)
    require_positive(networks=options.networks, steps=options.steps, starts=options.starts)
    return options


class _Case(NamedTuple):
    """Networks, stacked, or one of them.

    Attributes:
      problem: of a round.
      start: a layout with equal shares and full power.
      origin: of the layout, its place in :data:`_ORIGINS`.
      ours: what the package's solver makes of it, by precision.
    """

    problem: RoundProblem
    start: Decision
    origin: np.ndarray
    ours: dict[str, Tuned]


def _cases(seed: int, count: int, shape: NetworkShape, steps: int) -> _Case:
    """All networks of a shape, stacked."""
    problems, origin = sample_problems(seed, count, shape), np.arange(count) % 2
    micro_batches = jnp.asarray(np.resize(_MICRO_BATCHES, count))

    def layouts(problem, micro_batches, origin):
        static = static_pipeline(problem, micro_batches)
        found = dssra(problem).decision
        layout = jax.tree.map(lambda a, b: jnp.where(origin == 0, a, b), static, found)
        return with_equal_allocation(problem, layout.segments, layout.micro_batches)

    starts = jax.jit(jax.vmap(layouts))(problems, micro_batches, origin)
    return _Case(problems, starts, origin, _ours(problems, starts, steps))


def _ours(problems: RoundProblem, starts: Decision, steps: int) -> dict[str, Tuned]:
    """The package's solver in either precision, all networks at once."""

    def tune(problem, start):
        return tune_resources(problem, start, steps)

    single = jax.jit(jax.vmap(tune))(problems, starts)
    with jax.enable_x64(True):
        double = jax.jit(jax.vmap(tune))(in_double(problems), in_double(starts))
    return dict(zip(_PRECISIONS, jax.tree.map(np.asarray, (single, double)), strict=True))


def _compared(case: _Case, slsqp_starts: int) -> dict:
    """Everybody on one network."""
    ours = {name: _checked(case.problem, tuned) for name, tuned in case.ours.items()}
    outside = _outside(case.problem, case.start, slsqp_starts)
    return {"segments_by": _ORIGINS[case.origin], **outside, **ours}


def _checked(problem: RoundProblem, tuned: Tuned) -> dict:
    """What the solver says, and what its decision costs in double precision."""
    with jax.enable_x64(True):
        ours = judge(in_double(problem), in_double(tuned.decision))
        return {
            "objective": float(ours.objective),
            "feasible": bool(ours.feasible),
            "lower_bound": float(tuned.lower_bound),
            "residual": float(tuned.residual),
            "status": int(tuned.status),
        }


def _outside(problem: RoundProblem, start: Decision, slsqp_starts: int) -> dict:
    """The best of SciPy, and the lower bound."""
    found = {
        "slsqp": solve_with_scipy(problem, start, "SLSQP", slsqp_starts),
        "trust_constr": solve_with_scipy(problem, start, "trust-constr"),
    }
    best = min(found.values(), key=lambda solution: solution.objective)
    bound = lower_bound_with_cvxpy(problem, best.decision)
    with jax.enable_x64(True):
        before = judge(in_double(problem), in_double(start))
        loss = judge(in_double(problem), best.decision).loss
        return {
            "start": float(before.objective),
            **{name: solution.objective for name, solution in found.items()},
            "scipy": best.objective,
            "bound": bound.lower_bound,
            "loss": float(loss),
        }


def _report(rows: list[dict]) -> dict:
    """Summaries by precision, networks with hopeless losses apart, and contradictions."""
    usable, hopeless = by_hope(rows)
    summary, contradictions = {}, []
    for name in _PRECISIONS:
        if usable:
            summary[name] = _summary(usable, name)
        if hopeless:
            summary[f"{name}, loss above {HOPELESS_LOSS}"] = _summary(hopeless, name)
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
        "ours_over_scipy": spread(gap),
        "worse_than_scipy": int(np.sum(gap > _WORSE)),
        "better_than_scipy": int(np.sum(gap < -_WORSE)),
        "ours_over_bound_least": float(np.min(ours / bound - 1.0)),
        "scipy_over_bound": spread(scipy / bound - 1.0),
        "ours_over_certificate": spread(1.0 - certificate / ours),
        "certificate_over_scipy_most": float(np.max(certificate / scipy - 1.0)),
        "residual": spread(np.array([row[name]["residual"] for row in rows])),
        "status": {
            str(status): int(count)
            for status, count in zip(
                *np.unique([row[name]["status"] for row in rows], return_counts=True), strict=True
            )
        },
    }


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
