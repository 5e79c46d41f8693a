"""How far ``dssra_wide`` is above the best of all choices of gateways, network by network.

    python -m experiments.benchmarks.solver.gateways --networks=64 --seed=9200 --out=FILE

For every choice of a gateway in each cluster, by broadcast, ``dssra`` decides the rest. The best of
these decisions is the reference. It is no lower bound, so ``dssra_wide`` may be below it. Networks
have 2 clusters of 3 devices and 6 blocks. The summary is printed and written.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.errors import require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.edge.cost.decision import Routes
from collapipe_jax.edge.cost.feasibility import is_feasible
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.policies.dssra import dssra, dssra_wide
from experiments.benchmarks.solver.networks import LAWS, NetworkShape, sample_problems

_SHAPE = NetworkShape(2, 3, 6)


def main(argv: Sequence[str]) -> None:
    """Compare on random networks, print and write the summary."""
    law = ("tight", f"of the networks: {', '.join(LAWS)}")
    options = make_parser(__doc__, "out", networks=64, seed=9200, law=law).parse_args(argv)
    require_positive(networks=options.networks)
    problems = sample_problems(options.seed, options.networks, _SHAPE, options.law)
    wide = jax.jit(jax.vmap(lambda problem: dssra_wide(problem).objective))(problems)
    best = jax.jit(jax.vmap(best_of_all))(problems)
    report = {"law": options.law, "seed": options.seed, **summarise(*map(np.asarray, (wide, best)))}
    print(*(f"{name}: {value}" for name, value in report.items()), sep="\n")
    write_json(Path(options.out), report)


def best_of_all(problem: RoundProblem) -> jax.Array:
    """Least objective over all gateways, infinite where no decision is feasible."""
    nodes = range(problem.devices + 1)
    choices = jnp.array(list(itertools.product(nodes, repeat=problem.clusters)))

    def objective(gateway: jax.Array) -> jax.Array:
        found = dssra(problem.replace(routes=Routes(gateway=gateway, broadcast=jnp.ones(()))))
        return jnp.where(is_feasible(problem, found.decision), found.objective, jnp.inf)

    return jnp.min(jax.lax.map(objective, choices))


def summarise(wide: np.ndarray, best: np.ndarray) -> dict[str, float]:
    """Excess over the best in percent, on the networks where both are finite."""
    finite = np.isfinite(wide) & np.isfinite(best)
    excess = 100.0 * (wide[finite] / best[finite] - 1.0)
    return {
        "networks": len(wide),
        "finite": int(finite.sum()),
        "median": float(np.median(excess)),
        "percentile_95": float(np.quantile(excess, 0.95)),
        "largest": float(excess.max()),
        "over_0.1": int((excess > 0.1).sum()),
        "over_1": int((excess > 1.0).sum()),
    }


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
