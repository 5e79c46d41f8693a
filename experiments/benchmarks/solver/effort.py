"""What more search is worth to ``dssra``, on networks too large for exhaustive search.

    python -m experiments.benchmarks.solver.effort --networks=1024 --seed=4000 --out=effort.json

Random networks of 4 clusters x 5 devices x 12 blocks are decided with the default search, with
five starts, and with some ten times the work. Each is compared with the best of the three,
network by network. ``--law`` draws other networks. The table is printed and written.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.edge.policies.dssra import MOST_STARTS, dssra
from collapipe_jax.edge.solver.joint_search import SearchConfig
from experiments.benchmarks.solver.networks import LARGE_SHAPE, LAWS, NetworkShape, sample_problems

_BATCH = 256
EFFORTS = {
    "default": SearchConfig(),
    "five starts": SearchConfig(starts=MOST_STARTS),
    "ten times the work": SearchConfig(
        allocation_steps=(30, 30, 30, 30, 30, 30, 30, 60),
        candidates=6,
        cluster_candidates=16,
        cluster_steps=20,
        starts=MOST_STARTS,
    ),
}
_LEVELS = (1e-3, 1e-2)
"""Relative differences whose frequency is stated."""


def main(argv: Sequence[str]) -> None:
    """Decide random networks with every effort, print and write the table."""
    law = ("tight", f"of the networks: {', '.join(LAWS)}")
    options = make_parser(__doc__, "out", networks=1024, seed=4000, law=law).parse_args(argv)
    require_positive(networks=options.networks)
    objectives = decide(options.networks, options.seed, options.law, LARGE_SHAPE, EFFORTS)
    report = {"networks": options.networks, "seed": options.seed, "law": options.law}
    report["efforts"] = summarise(objectives)
    rows = [
        (name, *(f"{100 * value:.4g} %" for value in numbers.values()))
        for name, numbers in report["efforts"].items()
    ]
    headings = ("search", *next(iter(report["efforts"].values())))
    title = f"above the best, law {options.law}, {options.networks} networks"
    Console().print(make_table(headings, rows, title=title))
    write_json(Path(options.out), report)


def decide(
    networks: int, seed: int, law: str, shape: NetworkShape, efforts: Mapping[str, SearchConfig]
) -> dict[str, np.ndarray]:
    """Objectives of the decisions of every search, ``[networks]`` each."""
    problems = sample_problems(seed, networks, shape, law)

    def objectives(config: SearchConfig) -> np.ndarray:
        solve = functools.partial(dssra, config=config)
        whole = jax.jit(lambda batch: jax.lax.map(solve, batch, batch_size=_BATCH))
        return np.asarray(whole(problems).objective)

    return {name: objectives(config) for name, config in efforts.items()}


def summarise(objectives: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Excess of every search over the best of all, on networks that one of them makes finite."""
    best = np.min(np.stack(list(objectives.values())), axis=0)
    finite = np.isfinite(best) & (best > 0)

    def spread(own: np.ndarray) -> dict[str, float]:
        excess = own[finite] / best[finite] - 1.0
        shares = {f"over {100 * level:g} %": float(np.mean(excess > level)) for level in _LEVELS}
        return {**shares, "mean": float(np.mean(excess)), "largest": float(np.max(excess))}

    return {name: spread(own) for name, own in objectives.items()}


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
