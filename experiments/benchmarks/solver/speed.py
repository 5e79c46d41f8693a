"""Decisions a second of ``dssra``, and of outside solvers on the same networks.

    python -m experiments.benchmarks.solver.speed --networks=2048 --out=solver.json

Networks of 4 clusters, 5 devices, 12 blocks and 6 choices of micro-batches, spread over
all devices of the host (a CPU counts as one a core) along the mesh axis "realisation".
Beside it, in the same run, the continuous part alone, with the segments that ``dssra``
found, by SciPy's SLSQP and by CVXPY with Clarabel, one network after another; and the time
of a decision as clusters, devices or blocks grow.
"""

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Small matrices: two threads would cost SciPy more than they bring.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import numpy as np
from collapipe_jax.cost.round import price
from jax.sharding import PartitionSpec
from rich.console import Console
from rich.table import Table

from collapipe_jax.command_line import require_positive, run_reporting_errors
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.static_pipeline import with_equal_allocation
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from collapipe_jax.policies.dssra import Effort, dssra
from experiments.benchmarks.solver.effort import add_effort_options, effort_of
from experiments.benchmarks.solver.outside_bound import lower_bound_with_cvxpy
from experiments.benchmarks.solver.outside_solvers import in_double, solve_with_scipy
from experiments.benchmarks.solver.solver_networks import LARGE_SHAPE, sample_problems
from experiments.benchmarks.timing import timed

_REPEATS = 3
_SIZES = {"clusters": (2, 4, 8), "devices": (3, 5, 10), "blocks": (6, 12, 24)}


def main(argv: Sequence[str]) -> None:
    """Time everything, print and write the figures."""
    options = _options(argv)
    effort = effort_of(options)
    # Takes effect only before the first use of a device, and on CPUs alone.
    jax.config.update("jax_num_cpu_devices", options.cpu_devices)
    devices = len(jax.devices())
    for name in ("networks", "sweep_networks"):
        if getattr(options, name) % devices:
            raise InputError(
                f"--{name.replace('_', '-')}",
                getattr(options, name),
                f"not a multiple of the {devices} devices",
                "Give a multiple",
            )
    console = Console()
    problems = sample_problems(options.seed, options.networks, LARGE_SHAPE)
    figures, solution = time_dssra(problems, options.batch, effort)
    report = {
        "device": jax.devices()[0].device_kind,
        "devices": devices,
        "shape": LARGE_SHAPE._asdict(),
        "options": vars(options),
        "dssra": figures,
        "outside": _outside(problems, solution, options),
    }
    for row in report["outside"].values():
        row["speedup"] = figures["decisions_per_s"] / row["decisions_per_s"]
    console.print(_comparison(report))
    if options.sweep_networks:
        report["sweep"] = _sweep(options, effort)
        console.print(_sizes(report["sweep"]))
    if options.out:
        write_text(Path(options.out), json.dumps(report, indent=1) + "\n")
        console.print(f"written: {options.out}")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=2048)
    parser.add_argument(
        "--batch", type=int, default=256, help="networks at a time on a device, to bound memory"
    )
    parser.add_argument("--scipy-networks", type=int, default=8)
    parser.add_argument("--cvxpy-networks", type=int, default=8)
    parser.add_argument(
        "--sweep-networks", type=int, default=512, help="for every size; 0 for no sweep"
    )
    parser.add_argument("--cpu-devices", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="where to write the figures as JSON")
    add_effort_options(parser)
    options = parser.parse_args(argv)
    require_positive(
        networks=options.networks,
        batch=options.batch,
        scipy_networks=options.scipy_networks,
        cvxpy_networks=options.cvxpy_networks,
        cpu_devices=options.cpu_devices,
    )
    compared = max(options.scipy_networks, options.cvxpy_networks)
    if compared > options.networks:
        raise InputError(
            "--networks",
            options.networks,
            "fewer than an outside solver gets",
            f"Give {compared} or more",
        )
    return options


def time_dssra(problems: RoundProblem, batch: int, effort: Effort) -> tuple[dict, Any]:
    """Time ``dssra`` on all devices.

    Args:
      problems: stacked; as many as devices, or a multiple.
      batch: lanes at a time on a device.
      effort: how much to search.

    Returns:
      Compile time, median of the timed runs and what follows from it; the solutions,
      stacked.
    """
    mesh = jax.make_mesh((len(jax.devices()),), ("realisation",))
    along = PartitionSpec("realisation")
    count = jax.tree.leaves(problems)[0].shape[0]
    lanes = min(batch, count // mesh.size)

    def on_device(problems):
        return jax.lax.map(functools.partial(dssra, effort=effort), problems, batch_size=lanes)

    spread = jax.shard_map(on_device, mesh=mesh, in_specs=along, out_specs=along, check_vma=False)
    problems = jax.device_put(problems, jax.sharding.NamedSharding(mesh, along))
    compile_s, compiled = timed(lambda: jax.jit(spread).lower(problems).compile())
    _, solution = timed(lambda: compiled(problems))
    runs_s = [timed(lambda: compiled(problems))[0] for _ in range(_REPEATS)]
    run_s = float(np.median(runs_s))
    figures = {
        "networks": count,
        "compile_s": compile_s,
        "runs_s": runs_s,
        "decisions_per_s": count / run_s,
        "ms_per_decision": 1e3 * run_s / count,
        "median_gap": float(np.median(1.0 - solution.lower_bound / solution.objective)),
    }
    return figures, jax.tree.map(np.asarray, solution)


def _outside(problems: RoundProblem, solution: Any, options: argparse.Namespace) -> dict:
    """Outside solvers on the first networks, with the segments of ``dssra``."""

    def slsqp(problem, start):
        # With the kinks left in it is several times faster here, and little less exact.
        return solve_with_scipy(problem, start, "SLSQP", smooth=False).objective

    def clarabel(problem, start):
        found = lower_bound_with_cvxpy(problem, start)
        bounds.append(found.lower_bound)
        return found.solution.objective

    bounds = []
    rows = {"SciPy SLSQP": _time_outside(problems, solution, options.scipy_networks, slsqp)}
    row = _time_outside(problems, solution, options.cvxpy_networks, clarabel)
    ours = _prices(problems, solution, options.cvxpy_networks)
    row["ours_over_bound_least"] = float(np.min(ours / bounds[-options.cvxpy_networks :] - 1.0))
    rows["CVXPY, Clarabel"] = row
    return rows


def _time_outside(
    problems: RoundProblem, solution: Any, count: int, solve: Callable[..., float]
) -> dict:
    """Decisions a second of an outside solver, and the prices it reaches against ours."""

    def case(index):
        problem, decision = (
            jax.tree.map(lambda leaf: np.asarray(leaf[index]), tree)
            for tree in (problems, solution.decision)
        )
        start = with_equal_allocation(problem, decision.segments, decision.micro_batches)
        return problem, start

    cases = [case(index) for index in range(count)]
    solve(*cases[0])  # compiles
    run_s, theirs = timed(lambda: [solve(*case) for case in cases])
    ours = _prices(problems, solution, count)
    difference = ours / np.asarray(theirs) - 1.0
    return {
        "networks": count,
        "decisions_per_s": count / run_s,
        "ms_per_decision": 1e3 * run_s / count,
        "ours_over_theirs_mean": float(np.mean(difference)),
        "ours_over_theirs_worst": float(np.max(difference)),
    }


def _prices(problems: RoundProblem, solution: Any, count: int) -> np.ndarray:
    """Prices of the first decisions, in double precision."""
    with jax.enable_x64(True):
        first = in_double(
            jax.tree.map(lambda leaf: np.asarray(leaf[:count]), (problems, solution.decision))
        )
        return np.asarray(jax.jit(jax.vmap(price))(*first).objective)


def _sweep(options: argparse.Namespace, effort: Effort) -> list[dict]:
    """Time of a decision as one size grows, the others as in the base."""
    rows, known = [], {}
    for name, values in _SIZES.items():
        for value in values:
            shape = LARGE_SHAPE._replace(**{name: value})
            if shape not in known:
                problems = sample_problems(options.seed, options.sweep_networks, shape)
                known[shape], _ = time_dssra(problems, options.batch, effort)
            rows.append({"grows": name, "shape": shape._asdict(), **known[shape]})
    return rows


def _comparison(report: dict) -> Table:
    ours = report["dssra"]
    table = Table(
        title=f"{report['devices']} x {report['device']}, compiled in {ours['compile_s']:.0f} s"
    )
    table.add_column("solver")
    for heading in ("networks", "decisions/s", "ratio", "dssra's price, mean", "worst"):
        table.add_column(heading, justify="right")
    table.add_row("dssra", str(ours["networks"]), f"{ours['decisions_per_s']:.3g}", "", "", "")
    for name, row in report["outside"].items():
        table.add_row(
            name,
            str(row["networks"]),
            f"{row['decisions_per_s']:.3g}",
            f"{row['speedup']:.0f}",
            f"{row['ours_over_theirs_mean']:+.1e}",
            f"{row['ours_over_theirs_worst']:+.1e}",
        )
    return table


def _sizes(rows: list[dict]) -> Table:
    table = Table(title="dssra by size")
    for heading in ("grows", "clusters", "devices", "blocks", "ms/decision", "compile, s"):
        table.add_column(heading, justify="left" if heading == "grows" else "right")
    for row in rows:
        sizes = [str(size) for size in row["shape"].values()]
        times = f"{row['ms_per_decision']:.3g}", f"{row['compile_s']:.0f}"
        table.add_row(row["grows"], *sizes, *times)
    return table


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
