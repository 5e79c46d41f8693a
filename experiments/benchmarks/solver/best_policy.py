"""How far ``dssra`` is above the best of the other policies, network by network.

    python -m experiments.benchmarks.solver.best_policy --networks=4096 --seed=2000 --out=FILE

The law "unusable" of :mod:`networks` takes links and devices away. The others are ``greedy``,
``titanic``, ``alternating`` and the static pipeline. Networks that none of them makes finite are
left out; a decision that is not feasible counts as infinite. The summary is printed and written.
"""

from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.policies.alternating import alternating
from collapipe_jax.edge.policies.baselines import titanic
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.policies.greedy import greedy
from experiments.benchmarks.solver.networks import LAWS, NetworkShape, sample_problems

_SHAPE = NetworkShape(2, 3, 5)
_BATCH = 512
_WORSE = 1e-3
"""Relative difference that counts: the gap of a decision that is called optimal."""
_MICRO_BATCHES = 8
_DECIDE = {
    "dssra": lambda problem: dssra(problem).decision,
    "greedy": lambda problem: greedy(problem).decision,
    "titanic": lambda problem: titanic(problem, _MICRO_BATCHES),
    "alternating": lambda problem: alternating(problem).decision,
    "static_pipeline": lambda problem: static_pipeline(problem, _MICRO_BATCHES),
}


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write the summary."""
    law = ("unusable", f"of the networks: {', '.join(LAWS)}")
    options = make_parser(__doc__, "out", networks=4096, seed=2000, law=law).parse_args(argv)
    require_positive(networks=options.networks)
    problems = sample_problems(options.seed, options.networks, _SHAPE, options.law)
    objectives = jax.jit(lambda batch: jax.lax.map(_objectives, batch, batch_size=_BATCH))(problems)
    report = {"law": options.law, "seed": options.seed, **summarise(np.asarray(objectives))}
    _print(report)
    write_json(Path(options.out), report)


def _objectives(problem: RoundProblem) -> jax.Array:
    """Drift plus penalty of every policy."""

    def one(decide):
        decision = decide(problem)
        cost = evaluate(problem, decision)
        return jnp.where(is_feasible(problem, decision), cost.objective, jnp.inf)

    return jnp.stack([one(decide) for decide in _DECIDE.values()])


def summarise(objectives: np.ndarray) -> dict:
    """Counts, and the networks on which ``dssra``, the first column, costs more than the best."""
    ours, others = objectives[:, 0], objectives[:, 1:]
    best, names = np.min(others, axis=1), list(_DECIDE)[1:]
    numbers = np.flatnonzero(np.isfinite(best))
    ours, others, best = ours[numbers], others[numbers], best[numbers]
    excess = np.where(ours == best, 0.0, ours / np.where(best > 0, best, 1.0) - 1.0)
    worse = [
        {
            "network": int(numbers[row]),
            "excess": float(excess[row]),
            "best": names[int(np.argmin(others[row]))],
        }
        for row in np.argsort(-excess)
        if excess[row] > _WORSE
    ]
    return {
        "networks": len(objectives),
        "finite": len(numbers),
        "dssra_infinite": int(np.sum(~np.isfinite(ours))),
        "worse": worse,
        "others_finite": {
            name: int(np.sum(np.isfinite(column)))
            for name, column in zip(names, others.T, strict=True)
        },
    }


def _print(report: dict) -> None:
    console = Console()
    rows = [
        (str(row["network"]), f"{100 * row['excess']:.2f} %", row["best"])
        for row in report["worse"]
    ]
    console.print(make_table(("network", "above the best", "best"), rows, title="dssra costs more"))
    console.print(
        f"{report['networks']} networks, {report['finite']} finite under another policy; "
        f"dssra infinite on {report['dssra_infinite']} of these, "
        f"over {100 * _WORSE:g} % above the best on {len(report['worse'])}"
    )


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
