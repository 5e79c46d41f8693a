"""What each knob of ``dssra`` is worth, against pipelines at their best, in closed loops.

    python -m experiments.benchmarks.solver.knobs --config=paper --networks=256 --rounds=300

Rows are ``dssra``, ``alternating`` with all knobs and with each alone, and the static pipeline and
Titanic with the configured number of micro-batches and with the best. All meet the same networks
under the same fading. Decisions are timed on one round of all networks, in turns, compiled before.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.core.errors import require_positive
from collapipe_jax.core.statistics import median_estimate
from collapipe_jax.edge.environment import observed_problems, reset
from collapipe_jax.edge.policies.alternating import KNOBS
from collapipe_jax.edge.policies.registry import Policy, make_policy
from collapipe_jax.runs.config.files import parse_overrides, read_config
from experiments.benchmarks.timing import in_turns
from experiments.studies.rivals import Networks, Outcome, draw_networks, outcome_of

_REPEATS, _QUEUE_ROUNDS, _WIDTH = 5, 4, 120
_HEADINGS = ("policy", "latency, s", "over dssra", "over budget", "over target", "ms/decision")


def main(argv: Sequence[str]) -> None:
    """Simulate and time all rows, and print them as a table."""
    parser = make_parser(__doc__, "config", networks=64, rounds=20)
    given, overrides = parser.parse_known_args(argv)
    require_positive(networks=given.networks, rounds=given.rounds)
    config = read_config(given.config, parse_overrides(overrides))
    networks = draw_networks(config, given.networks)
    policies = _policies(config.policy.to_dict())
    outcomes = {
        name: outcome_of(policy, networks, given.rounds) for name, policy in policies.items()
    }
    times_s = _decision_times_s(policies, networks)
    rows = [_row(name, outcomes, times_s[name]) for name in policies]
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


def _decision_times_s(policies: Mapping[str, Policy], networks: Networks) -> dict[str, float]:
    """Seconds of a decision by row, on networks whose queues some rounds have filled."""
    static = make_policy("static_pipeline")

    @jax.jit
    @jax.vmap
    def last_problem(key, row):
        problems = observed_problems(reset(key, networks.params, row), static, _QUEUE_ROUNDS)
        return jax.tree.map(lambda leaf: leaf[-1], problems)

    problem, key = last_problem(networks.keys, networks.rows), jax.random.key(0)
    decide = {n: jax.jit(jax.vmap(p, in_axes=(None, 0))) for n, p in policies.items()}
    works = {
        name: lambda run=run: jax.block_until_ready(run(key, problem))
        for name, run in decide.items()
    }
    runs_s = in_turns(works, _REPEATS)
    return {name: float(np.median(times)) / len(networks.keys) for name, times in runs_s.items()}


def _row(name: str, outcomes: Mapping[str, Outcome], time_s: float) -> tuple:
    own, ours = outcomes[name], outcomes["dssra"].latency_s
    latency_s = median_estimate(own.latency_s)
    excess = median_estimate(100 * (own.latency_s / ours - 1))
    return (
        name,
        "{:.0f} [{:.0f}, {:.0f}]".format(*latency_s),
        "{:+.1f} [{:+.1f}, {:+.1f}] %".format(*excess),
        f"{100 * np.mean(own.broken['energy']):.0f} %",
        f"{100 * np.mean(own.broken['divergence']):.0f} %",
        f"{1e3 * time_s:.2f}",
    )


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
