"""Decisions a second of ``dssra``, and of outside solvers on the same networks.

    python -m experiments.benchmarks.solver.speed --networks=2048 --out=solver.json

Networks of 4 clusters, 5 devices, 12 blocks and 6 choices of micro-batches, spread over all
devices of the host (a CPU counts as one a core) along the mesh axis "realisation". Beside it,
in the same run, the continuous part alone, with the partitions of ``dssra``, by SciPy's SLSQP
and by CVXPY with Clarabel, one network after another; and the time of a decision as clusters,
devices or blocks grow.
"""

import argparse
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import PartitionSpec
from rich.console import Console
from rich.table import Table

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import with_equal_allocation
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.solver.allocate import Solution
from collapipe_jax.edge.solver.joint_search import SearchConfig
from experiments.benchmarks.solver.networks import LARGE_SHAPE, sample_problems
from experiments.benchmarks.solver.options import SEARCH_OPTIONS, search_config
from experiments.benchmarks.solver.outside_cvxpy import lower_bound_with_cvxpy
from experiments.benchmarks.solver.outside_scipy import evaluate_compiled, solve_with_scipy
from experiments.benchmarks.timing import timed
from experiments.double_precision import in_double, pick

_REPEATS = 3
_OF = {"mean": np.mean, "worst": np.max}
_SIZES = {"clusters": (2, 4, 8), "devices": (3, 5, 10), "blocks": (6, 12, 24)}


def main(argv: Sequence[str]) -> None:
    """Time everything, print and write the figures."""
    options = _options(argv)
    config = search_config(options)
    # Takes effect only before the first use of a device, and on CPUs alone.
    jax.config.update("jax_num_cpu_devices", options.cpu_devices)
    devices = len(jax.devices())
    for name in ("networks", "sweep_networks"):
        count, key = getattr(options, name), f"--{name.replace('_', '-')}"
        if count % devices:
            raise InputError(key, count, f"not a multiple of the {devices} devices", "Give one")
    console = Console()
    problems = sample_problems(options.seed, options.networks, LARGE_SHAPE)
    figures, solution = time_dssra(problems, options.batch, config)
    report = {
        "device": jax.devices()[0].device_kind,
        "devices": devices,
        "shape": LARGE_SHAPE._asdict(),
        "options": vars(options),
        "dssra": figures,
        "outside": _time_outside(problems, solution, options),
    }
    for row in report["outside"].values():
        row["speedup"] = figures["decisions_per_s"] / row["decisions_per_s"]
    console.print(_comparison(report))
    if options.sweep_networks:
        report["sweep"] = _sweep(options, config)
        console.print(_sizes(report["sweep"]))
    if options.out:
        write_json(Path(options.out), report)
        console.print(f"written: {options.out}")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(
        __doc__,
        networks=2048,
        batch=(256, "networks at a time on a device, to bound memory"),
        scipy_networks=8,
        cvxpy_networks=8,
        sweep_networks=(512, "for every size; 0 for no sweep"),
        cpu_devices=os.cpu_count(),
        seed=0,
        out=(None, "where to write the figures as JSON"),
        **SEARCH_OPTIONS,
    )
    options = parser.parse_args(argv)
    names = "networks", "batch", "scipy_networks", "cvxpy_networks", "cpu_devices"
    require_positive(**{name: getattr(options, name) for name in names})
    compared = max(options.scipy_networks, options.cvxpy_networks)
    if compared > options.networks:
        problem = "fewer than an outside solver gets"
        raise InputError("--networks", options.networks, problem, f"Give {compared} or more")
    return options


def time_dssra(problems: RoundProblem, batch: int, config: SearchConfig) -> tuple[dict, Solution]:
    """Time ``dssra`` on all devices; ``batch`` networks at a time on each.

    Returns:
      Compile time, times of the runs and what follows from their median; the solutions, stacked.
    """
    mesh = jax.make_mesh((len(jax.devices()),), ("realisation",))
    along = PartitionSpec("realisation")
    count = jax.tree.leaves(problems)[0].shape[0]
    batch = min(batch, count // mesh.size)

    def on_device(problems):
        return jax.lax.map(functools.partial(dssra, config=config), problems, batch_size=batch)

    sharded = jax.shard_map(on_device, mesh=mesh, in_specs=along, out_specs=along, check_vma=False)
    problems = jax.device_put(problems, jax.sharding.NamedSharding(mesh, along))
    compile_s, compiled = timed(lambda: jax.jit(sharded).lower(problems).compile())
    _, solution = timed(lambda: compiled(problems))
    runs_s = [timed(lambda: compiled(problems))[0] for _ in range(_REPEATS)]
    return {
        "compile_s": compile_s,
        "runs_s": runs_s,
        **_rates(count, float(np.median(runs_s))),
        "median_gap": float(np.median(1.0 - solution.lower_bound / solution.objective)),
    }, jax.device_get(solution)


def _rates(count: int, run_s: float) -> dict:
    per_s, ms = count / run_s, 1e3 * run_s / count
    return {"networks": count, "decisions_per_s": per_s, "ms_per_decision": ms}


def _time_outside(problems: RoundProblem, solution: Solution, options) -> dict:
    """Outside solvers on the first networks, with the partitions of ``dssra``."""

    def clarabel(problem, start):
        found = lower_bound_with_cvxpy(problem, start)
        return found.solution.objective, found.lower_bound

    def slsqp(problem, start):
        return solve_with_scipy(problem, start).objective

    compare = functools.partial(_compare, jax.device_get(problems), solution)
    return {
        "SciPy SLSQP": compare(options.scipy_networks, slsqp),
        "CVXPY, Clarabel": compare(options.cvxpy_networks, clarabel),
    }


def _compare(problems: RoundProblem, solution: Solution, count: int, solve: Callable) -> dict:
    """Decisions a second of an outside solver, and our objectives over its answers."""
    cases, ours = [], []
    for index in range(count):
        problem, decision = pick((problems, solution.decision), index)
        start = with_equal_allocation(problem, decision.segments, decision.micro_batches)
        cases.append((problem, start))
        with jax.enable_x64(True):
            ours.append(float(evaluate_compiled(*in_double((problem, decision))).objective))
    solve(*cases[0])  # compiles
    run_s, theirs = timed(lambda: [solve(*case) for case in cases])
    objective, *bound = np.asarray(ours) / np.asarray(theirs).reshape(count, -1).T - 1.0
    row = _rates(count, run_s)
    row |= {f"ours_over_theirs_{name}": float(of(objective)) for name, of in _OF.items()}
    return row | ({"ours_over_bound_least": float(np.min(bound))} if bound else {})


def _sweep(options: argparse.Namespace, config: SearchConfig) -> list[dict]:
    """Time of a decision as one size grows, the others as in the base."""
    rows, known = [], {}
    for name, values in _SIZES.items():
        for value in values:
            shape = LARGE_SHAPE._replace(**{name: value})
            if shape not in known:
                problems = sample_problems(options.seed, options.sweep_networks, shape)
                known[shape], _ = time_dssra(problems, options.batch, config)
            rows.append({"grows": name, "shape": shape._asdict(), **known[shape]})
    return rows


def _comparison(report: dict) -> Table:
    ours = report["dssra"]
    devices = f"{report['devices']} x {report['device']}"
    rows = [("dssra", str(ours["networks"]), f"{ours['decisions_per_s']:.3g}", "", "", "")]
    for name, row in report["outside"].items():
        over = (f"{row[f'ours_over_theirs_{which}']:+.1e}" for which in _OF)
        rates = f"{row['decisions_per_s']:.3g}", f"{row['speedup']:.0f}"
        rows.append((name, str(row["networks"]), *rates, *over))
    headings = ("solver", "networks", "decisions/s", "ratio", "dssra's objective, mean", "worst")
    return make_table(headings, rows, title=f"{devices}, compiled in {ours['compile_s']:.0f} s")


def _sizes(rows: list[dict]) -> Table:
    cells = []
    for row in rows:
        times = f"{row['ms_per_decision']:.3g}", f"{row['compile_s']:.0f}"
        cells.append((row["grows"], *map(str, row["shape"].values()), *times))
    headings = ("grows", "clusters", "devices", "blocks", "ms/decision", "compile, s")
    return make_table(headings, cells, title="dssra by size")


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
