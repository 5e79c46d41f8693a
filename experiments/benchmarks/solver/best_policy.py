"""How far ``dssra`` or ``dssra_wide`` is above the best of the other policies, by network.

    python -m experiments.benchmarks.solver.best_policy --networks=4096 --seed=2000 --out=FILE
    python -m experiments.benchmarks.solver.best_policy --policy=dssra_wide --out=FILE

The law "unusable" of :mod:`networks` takes links and devices away. The others are ``greedy``,
``titanic``, ``alternating`` and the static pipeline. For ``dssra_wide`` they are ``dssra`` and
these four, once with control units that talk to the base station and once with gateways by rule.
Networks that none of them makes finite are left out; a decision that is not feasible counts as
infinite. The summary is printed and written.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.policies.alternating import alternating
from collapipe_jax.edge.policies.baselines import titanic
from collapipe_jax.edge.policies.dssra import dssra, dssra_wide
from collapipe_jax.edge.policies.greedy import greedy
from collapipe_jax.edge.policies.registry import on_routes
from experiments.benchmarks.solver.networks import LAWS, NetworkShape, sample_problems

Decide = Callable[[RoundProblem], Decision]
_SHAPE = NetworkShape(2, 3, 5)
_BATCH = 512
_WORSE = 1e-3
"""Relative difference that counts: the gap of a decision that is called optimal."""
_MICRO_BATCHES = 8
_RIVALS: dict[str, Decide] = {
    "greedy": lambda problem: greedy(problem).decision,
    "titanic": lambda problem: titanic(problem, _MICRO_BATCHES),
    "alternating": lambda problem: alternating(problem).decision,
    "static_pipeline": lambda problem: static_pipeline(problem, _MICRO_BATCHES),
}
_AT_GATEWAYS = {
    f"{name}_at_gateways": functools.partial(on_routes(decide), routes="gateways")
    for name, decide in _RIVALS.items()
}
DECIDE: dict[str, dict[str, Decide]] = {
    "dssra": {"dssra": lambda problem: dssra(problem).decision, **_RIVALS},
    "dssra_wide": {
        "dssra_wide": lambda problem: dssra_wide(problem).decision,
        "dssra": lambda problem: dssra(problem).decision,
        **_RIVALS,
        **_AT_GATEWAYS,
    },
}
"""A policy, first, and those that it is compared with."""


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write the summary."""
    law = ("unusable", f"of the networks: {', '.join(LAWS)}")
    policy = ("dssra", f"{' or '.join(DECIDE)}")
    parser = make_parser(__doc__, "out", policy=policy, networks=4096, seed=2000, law=law)
    options = parser.parse_args(argv)
    require_positive(networks=options.networks)
    if options.policy not in DECIDE:
        remedy = f"Take one of {', '.join(DECIDE)}"
        raise InputError("--policy", options.policy, "no such policy here", remedy)
    decide = DECIDE[options.policy]
    problems = sample_problems(options.seed, options.networks, _SHAPE, options.law)
    prices = functools.partial(_objectives, decide=decide.values())
    objectives = jax.jit(lambda batch: jax.lax.map(prices, batch, batch_size=_BATCH))(problems)
    report = {"policy": options.policy, "law": options.law, "seed": options.seed}
    report |= summarise(np.asarray(objectives), list(decide))
    _print(report)
    write_json(Path(options.out), report)


def _objectives(problem: RoundProblem, decide: Iterable[Decide]) -> jax.Array:
    """Drift plus penalty of every policy."""

    def one(decide: Decide) -> jax.Array:
        decision = decide(problem)
        cost = evaluate(problem, decision)
        return jnp.where(is_feasible(problem, decision), cost.objective, jnp.inf)

    return jnp.stack([one(each) for each in decide])


def summarise(objectives: np.ndarray, policies: Sequence[str]) -> dict:
    """Counts, and the networks on which the first policy costs more than the best of the others."""
    ours, others = objectives[:, 0], objectives[:, 1:]
    best, names = np.min(others, axis=1), policies[1:]
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
        "infinite": int(np.sum(~np.isfinite(ours))),
        "worse": worse,
        "others_finite": {
            name: int(np.sum(np.isfinite(column)))
            for name, column in zip(names, others.T, strict=True)
        },
    }


def _print(report: dict) -> None:
    console, policy = Console(), report["policy"]
    rows = [
        (str(row["network"]), f"{100 * row['excess']:.2f} %", row["best"])
        for row in report["worse"]
    ]
    console.print(
        make_table(("network", "above the best", "best"), rows, title=f"{policy} costs more")
    )
    console.print(
        f"{report['networks']} networks, {report['finite']} finite under another policy; "
        f"{policy} infinite on {report['infinite']} of these, "
        f"over {100 * _WORSE:g} % above the best on {len(report['worse'])}"
    )


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
