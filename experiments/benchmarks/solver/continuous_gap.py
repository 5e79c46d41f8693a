"""How good the solver's shares and powers are, partitions given.

    python -m experiments.benchmarks.solver.continuous_gap --networks=200 --workdir=DIR

Random networks, half with the partition of a static pipeline and half with that of
``dssra``, all from equal shares and full power. The solver in either precision, against the
best of several runs of SciPy's SLSQP, and against a lower bound by CVXPY. Ends with status 1
if an objective is below its bound, or the solver's certificate above an objective.
One line for every network in DIR/continuous_gap.jsonl, from which a killed run goes on; the
summary is printed and in DIR/summary.json.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.errors import require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipeline, with_equal_allocation
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.solver.allocate import Solution, allocate
from experiments.benchmarks.solver import networks
from experiments.benchmarks.solver.outside_cvxpy import lower_bound_with_cvxpy
from experiments.benchmarks.solver.outside_scipy import solve_with_scipy
from experiments.double_precision import in_double, judge

_MICRO_BATCHES = (4, 8, 16)
_ORIGINS = ("static_pipeline", "dssra")
_WORSE = 1e-4
_ROUNDING = 2e-6  # of bounds in double precision
_CERTIFICATE_ROUNDING = {"float32": 1e-5, "float64": _ROUNDING}


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write the summary."""
    own = {"networks": 200, "seed": 0, "workdir": "runs/continuous_gap"}
    own |= {"steps": (200, "of the solver"), "starts": (2, "of SLSQP")}
    options = make_parser(__doc__, **own).parse_args(argv)
    require_positive(networks=options.networks, steps=options.steps, starts=options.starts)
    console, workdir = Console(), Path(options.workdir)
    settings = {name: getattr(options, name) for name in ("seed", "steps", "starts")}
    path, shapes = workdir / "continuous_gap.jsonl", networks.MIXED_SHAPES
    draw = functools.partial(_cases, steps=options.steps)
    measure = functools.partial(_compare, starts=options.starts)
    rows = networks.run_networks(path, options.networks, settings, shapes, draw, measure, console)
    report = {**settings, "networks": len(rows), "summary": summarise(rows)}
    for name, summary in report["summary"].items():
        console.print(networks.spread_table(f"relative differences in {name}", summary))
    report["contradictions"] = contradictions(rows)
    write_json(workdir / "summary.json", report)
    console.print(f"written: {workdir / 'summary.json'}")
    if report["contradictions"]:
        console.print(f"objectives and bounds contradict: {report['contradictions']}")
        raise SystemExit(1)


def _cases(seed: int, count: int, shape: networks.NetworkShape, steps: int) -> tuple:
    """All networks of a shape, stacked: the arguments of :func:`_compare` but for the last."""
    problems, origin = networks.sample_problems(seed, count, shape), np.arange(count) % 2
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
    return problems, starts, origin, {"float32": single, "float64": double}


def _compare(
    problem: RoundProblem, start: Decision, origin: int, ours: dict[str, Solution], starts: int
) -> dict:
    """All solvers on one network, in double precision.

    Args:
      problem: of a round.
      start: a partition with equal shares and full power.
      origin: of the partition, a place in :data:`_ORIGINS`.
      ours: solutions of the solver, by precision.
      starts: of SLSQP.
    """
    best = solve_with_scipy(problem, start, starts)
    with jax.enable_x64(True):
        wide = in_double(problem)
        return {
            "segments_by": _ORIGINS[origin],
            "start": float(judge(wide, in_double(start)).objective),
            "scipy": best.objective,
            "bound": lower_bound_with_cvxpy(problem, best.decision).lower_bound,
            "loss": float(judge(wide, best.decision).loss),
            **{name: _judged(wide, solution) for name, solution in ours.items()},
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
            problems = {
                "not feasible": not ours["feasible"],
                "objective below the bound": best < row["bound"] * (1.0 - _ROUNDING),
                "certificate above an objective": ours["lower_bound"] > best * (1.0 + rounding),
            }
            network = row["network"]
            found += [
                {"network": network, name: problem} for problem in problems if problems[problem]
            ]
    return found


def summarise(rows: Sequence[dict]) -> dict[str, dict]:
    """Summaries by precision, networks with heavy losses apart."""
    groups = zip(
        ("", f", loss above {networks.HEAVY_LOSS}"), networks.split_by_loss(rows), strict=True
    )
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
        "ours_over_scipy": networks.spread(gap),
        "worse_than_scipy": int(np.sum(gap > _WORSE)),
        "better_than_scipy": int(np.sum(gap < -_WORSE)),
        "ours_over_bound_least": float(np.min(ours / bound - 1.0)),
        "scipy_over_bound": networks.spread(scipy / bound - 1.0),
        "ours_over_certificate": networks.spread(1.0 - certificate / ours),
        "certificate_over_scipy_most": float(np.max(certificate / scipy - 1.0)),
        "residual": networks.spread(residual),
        "status": {str(status): int(count) for status, count in zip(*statuses, strict=True)},
    }


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
