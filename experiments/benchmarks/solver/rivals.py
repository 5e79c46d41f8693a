"""What each knob of ``dssra`` is worth, against pipelines at their best, in closed loops.

    python -m experiments.benchmarks.solver.rivals --config=paper --networks=256 --rounds=300

Rows are ``dssra``, ``alternating`` with all knobs and with each alone, and the static pipeline and
Titanic with the configured number of micro-batches and with the best. All meet the same networks
under the same fading. Decisions are timed on one round of all networks, in turns, compiled before.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.core.errors import require_positive
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.core.statistics import median_estimate
from collapipe_jax.edge.cost.feasibility import can_run
from collapipe_jax.edge.environment import observed_problems, reset
from collapipe_jax.edge.policies.alternating import KNOBS
from collapipe_jax.edge.policies.registry import Policy, make_policy
from collapipe_jax.edge.system import SystemParams
from collapipe_jax.runs.config.files import parse_overrides, read_config
from collapipe_jax.runs.config.system import build_system_params
from collapipe_jax.runs.results.realisations import DIVERGENCE_LIMIT, ENERGY_LIMIT
from collapipe_jax.runs.studies.montecarlo import realisation_keys, simulate_reduced
from collapipe_jax.runs.studies.sweep_records import per_round
from experiments.benchmarks.timing import in_turns

_REPEATS, _QUEUE_ROUNDS, _WIDTH = 5, 4, 120
_HEADINGS = ("policy", "latency, s", "over dssra", "over budget", "over target", "ms/decision")


def main(argv: Sequence[str]) -> None:
    """Simulate and time all rows, and print them as a table."""
    parser = make_parser(__doc__, "config", networks=64, rounds=20)
    given, overrides = parser.parse_known_args(argv)
    require_positive(networks=given.networks, rounds=given.rounds)
    config = read_config(given.config, parse_overrides(overrides))
    params = build_system_params(config)
    keys = realisation_keys(seed_of(config, "network"), given.networks)
    policies = _policies(config.policy.to_dict())
    numbers = {
        name: _simulate(policy, params, keys, given.rounds) for name, policy in policies.items()
    }
    times_s = _decision_times_s(policies, params, keys)
    rows = [_row(name, numbers, times_s[name]) for name in policies]
    console_for_tables(_WIDTH).print(
        make_table(_HEADINGS, rows, title="Medians over networks that can run")
    )


def _policies(options: Mapping[str, Any]) -> dict[str, Policy]:
    """Rows by name."""
    variants: dict[str, dict[str, Any]] = {"dssra": {}, "alternating": {}}
    variants |= {f"alternating, {knob}": {"decides": (knob,)} for knob in KNOBS}
    for name in ("static_pipeline", "titanic_pipelined"):
        variants |= {
            name: {"best_micro_batches": False},
            f"{name}, best M": {"best_micro_batches": True},
        }
    return {
        row: make_policy(**{**options, **changes, "name": row.partition(",")[0]})
        for row, changes in variants.items()
    }


def _simulate(
    policy: Policy, params: SystemParams, keys: jax.Array, rounds: int
) -> dict[str, np.ndarray]:
    """Mean latency of every network that can run, and by how much it is over its limits."""
    rows = jnp.arange(len(keys))
    kept = simulate_reduced(keys, rows, params, (), policy=policy, rounds=rounds, reduce=per_round)
    problem = jax.vmap(lambda key, row: reset(key, params, row).system.mean_problem)(keys, rows)
    values = {name: np.asarray(variable.values, np.float64) for name, variable in kept.items()}
    energy = values["mean_energy_j"] / problem.control.energy_budget_j
    found = {
        "latency_s": np.mean(values["latency_s"], axis=1),
        "energy": np.max(energy, axis=(1, 2)),
        "divergence": np.mean(values["divergence"], axis=1) / problem.control.divergence_target,
    }
    runs = np.any(jax.vmap(can_run)(problem), axis=1)
    return {name: np.asarray(each)[runs] for name, each in found.items()}


def _decision_times_s(
    policies: Mapping[str, Policy], params: SystemParams, keys: jax.Array
) -> dict[str, float]:
    """Seconds of a decision by row, on networks whose queues some rounds have filled."""
    static = make_policy("static_pipeline")

    @jax.jit
    @jax.vmap
    def last_problem(key, row):
        problems = observed_problems(reset(key, params, row), static, _QUEUE_ROUNDS)
        return jax.tree.map(lambda leaf: leaf[-1], problems)

    problem, key = last_problem(keys, jnp.arange(len(keys))), jax.random.key(0)
    decide = {n: jax.jit(jax.vmap(p, in_axes=(None, 0))) for n, p in policies.items()}
    works = {
        name: lambda run=run: jax.block_until_ready(run(key, problem))
        for name, run in decide.items()
    }
    runs_s = in_turns(works, _REPEATS)
    return {name: float(np.median(times)) / len(keys) for name, times in runs_s.items()}


def _row(name: str, numbers: Mapping[str, Mapping[str, np.ndarray]], time_s: float) -> tuple:
    own, ours = numbers[name], numbers["dssra"]["latency_s"]
    latency_s = median_estimate(own["latency_s"])
    excess = median_estimate(100 * (own["latency_s"] / ours - 1))
    return (
        name,
        "{:.0f} [{:.0f}, {:.0f}]".format(*latency_s),
        "{:+.1f} [{:+.1f}, {:+.1f}] %".format(*excess),
        f"{100 * np.mean(own['energy'] > ENERGY_LIMIT):.0f} %",
        f"{100 * np.mean(own['divergence'] > DIVERGENCE_LIMIT):.0f} %",
        f"{1e3 * time_s:.2f}",
    )


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
