"""How near bounds over all partitions come to decisions of ``dssra``, and how long they take.

    python -m experiments.benchmarks.solver.certify --networks=20 --seed=5000 --out=FILE

Networks of 2 x 3 x 6 are searched exhaustively, those of 4 x 5 x 12 relaxed. The first network
of each takes all compilation; its time is apart.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.errors import require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.solver.partition_bound import bound_partitions, limit_multipliers
from experiments.benchmarks.solver.networks import (
    LARGE_SHAPE,
    NetworkShape,
    sample_problems,
    spread,
    spread_table,
)
from experiments.benchmarks.timing import timed
from experiments.double_precision import pick

_SHAPES = {"searched": NetworkShape(2, 3, 6), "relaxed": LARGE_SHAPE}


def main(argv: Sequence[str]) -> None:
    """Bound networks of both shapes, print and write the summary."""
    options = make_parser(__doc__, "out", networks=20, seed=5000).parse_args(argv)
    require_positive(networks=options.networks)
    console, report = Console(), {"networks": options.networks, "seed": options.seed}
    for way, shape in _SHAPES.items():
        report[way] = _measure(shape, options.networks, options.seed)
        console.print(spread_table(f"{way}, {' x '.join(map(str, shape))}", report[way]))
    write_json(Path(options.out), report)


def _measure(shape: NetworkShape, count: int, seed: int) -> dict[str, Any]:
    """Gaps between objectives and bounds, relative, and times, of networks of one shape."""
    problems = sample_problems(seed, count, shape)
    solutions = jax.jit(jax.vmap(dssra))(problems)
    multipliers = jax.jit(jax.vmap(limit_multipliers))(problems, solutions.decision)
    times_s, gaps = [], []
    for index in range(count):
        problem, solution, own = pick((problems, solutions, multipliers), index)
        time_s, bound = timed(functools.partial(bound_partitions, problem, solution.decision, own))
        times_s.append(time_s)
        gaps.append(1.0 - bound.lower_bound / float(solution.objective))
    return {
        "gap": spread(gaps),
        "within_0.1_percent": float(np.mean(np.array(gaps) <= 1e-3)),
        "first_s": times_s[0],
        "s": spread(times_s[1:]),
    }


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
