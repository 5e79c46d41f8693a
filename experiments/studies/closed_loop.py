"""Are the long-term constraints kept, and at what latency: policies over random networks.

    python -m experiments.studies.closed_loop --config=default --workdir=DIR \
        --rounds=300 --realisations=256 --v=1,10,100

No learning. Every policy and V meets the same networks and the same fading. Results are in
``summary.json``; a run that was killed goes on with the same arguments, chunk by chunk, and
ends with the same bytes. Several processes share the work with --shard=i/n.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from rich.console import Console
from rich.table import Table

from collapipe_jax.cli.options import make_parser, read_numbers, run_reporting_errors
from collapipe_jax.cli.shards import SHARD, is_done
from collapipe_jax.core.console import COMPACT, make_table
from collapipe_jax.core.files import own_share
from collapipe_jax.core.statistics import interval_text, mean_interval
from collapipe_jax.edge.cost.feasibility import can_run
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.environment import observed_problems, reset
from collapipe_jax.edge.policies.registry import POLICIES, make_policy
from collapipe_jax.edge.queues import (
    backlog_lower_bound,
    control_unit_floor_j,
    device_budget_floor_j,
)
from collapipe_jax.edge.system import SystemParams
from collapipe_jax.runs.config.files import parse_overrides, read_config
from collapipe_jax.runs.config.system import build_system_params
from collapipe_jax.runs.results.experiment import Results, Variable, as_columns
from collapipe_jax.runs.results.realisations import (
    DIVERGENCE_LIMIT,
    ENERGY_LIMIT,
    Case,
    Realisations,
    coordinates,
    load_realisations,
    select,
)
from collapipe_jax.runs.results.store import read_shard
from collapipe_jax.runs.studies.montecarlo import policy_options, run_policies
from experiments.studies import closed_loop_limits as limits

GROUPS = ("within_floors", "below_floors")

_QUANTILES = (0.5, 0.9, 0.99)
_WORST = {
    "energy\n/budget": "energy_over_budget",
    "queue\n/rounds": "final_energy_queue_over_rounds",
    "diverg.\n/target": "divergence_over_target",
}


def main(argv: Sequence[str]) -> None:
    """Simulate what is not on file yet, then summarise all of it."""
    parser = make_parser(
        __doc__,
        "config",
        "workdir",
        rounds=300,
        realisations=256,
        chunk=32,
        policies=",".join(POLICIES),
        v=(None, "values of V, with commas (default: the configuration's)"),
        **SHARD,
    )
    given, overrides = parser.parse_known_args(argv)
    config = read_config(given.config, parse_overrides(overrides))
    options = policy_options(
        given.policies.split(","),
        v=[config.control.v] if given.v is None else read_numbers("--v", given.v),
        rounds=given.rounds,
        realisations=given.realisations,
        chunk=given.chunk,
    )
    console, shard = Console(), read_shard(given.shard)
    params = [build_system_params(config)]  # refuses a wrong one before there is a workdir
    settings = options, config.to_dict(), coordinates(options)
    results = Results.create(given.workdir, "closed_loop", *settings)
    with own_share(results.folder, *shard):
        missing = run_policies(results, params, _networks, limits.time_means, console, shard)
    if not is_done(missing, shard):
        return
    summary = summarise(load_realisations(results.folder, "closed_loop"))
    path = results.write_summary(summary)
    console.print(summary_table(summary))
    print(f"written: {path}")


def _networks(
    keys: Array, rows: Array, params: SystemParams, options: Mapping[str, Any]
) -> dict[str, Variable]:
    """Floors of a chunk of networks, and the energy queues that no policy can avoid.

    ``least_final_queue`` is that of every control unit after the last round, whatever decides
    as long as it keeps the mean divergence.
    """
    networks = []
    for key, row in zip(keys, rows, strict=True):
        problem, runs, floor = drawn(key, params, row)
        budget_j = np.asarray(problem.control.energy_budget_j)[:, 1]
        network = {
            "reference_latency_s": problem.control.reference_latency_s,
            "can_run": runs,
            "control_unit_floor": floor,
            "device_floor": device_budget_floor_j(problem) / budget_j,
        }
        networks.append(network)
    problems = _channels(keys, rows, params, options["rounds"])
    queues = backlog_lower_bound(problems, DIVERGENCE_LIMIT)
    kept = as_columns(networks, "realisation", then="cluster")
    return kept | {"least_final_queue": Variable("realisation cluster", queues)}


@jax.jit
def drawn(key: Array, params: SystemParams, row: int = 0) -> tuple[RoundProblem, Array, Array]:
    """The problem of a network at mean gains, its clusters that can run, and their floors."""
    problem = reset(key, params, row).system.mean_problem
    floor = control_unit_floor_j(problem) / problem.control.energy_budget_j[:, 0]
    return problem, can_run(problem), floor


@functools.partial(jax.jit, static_argnames="rounds")
def _channels(keys: Array, rows: Array, params: SystemParams, rounds: int) -> RoundProblem:
    """The rounds that realisations meet, the same for every policy but for their queues."""
    policy = make_policy("static_pipeline", params.control.reference_micro_batches)

    def problems(key, row):
        return observed_problems(reset(key, params, row), policy, rounds)

    return jax.vmap(problems)(keys, rows)


def summarise(result: Realisations) -> dict[str, Any]:
    """Constraints, latency and queues of every case, as plain values for a JSON file."""
    groups = limits.network_groups(result)
    return {
        "rounds": result.rounds,
        "realisations": result.settings["options"]["realisations"],
        "limits": {
            "energy_over_budget": ENERGY_LIMIT,
            "final_energy_queue_over_rounds": limits.QUEUE_LIMIT,
            "divergence_over_target": DIVERGENCE_LIMIT,
        },
        "networks": {name: int(members.sum()) for name, members in groups.items()}
        | {"floors_checked": limits.floors_bind(result)},
        "cases": [_case(case, groups, result.rounds) for case in result.cases],
    }


def _case(case: Case, groups: Mapping[str, np.ndarray], rounds: int) -> dict[str, Any]:
    excess = sample_path_excess(case.values, rounds)
    rounding = rounds * float(np.finfo(np.float32).eps)  # of so many additions
    return {
        "policy": case.policy,
        "v": case.v,
        "sample_path_excess": excess,
        "sample_path_holds": max(excess.values()) <= rounding,
    } | {name: _group(case.values, groups[name], rounds) for name in GROUPS}


def _group(
    values: Mapping[str, np.ndarray], members: np.ndarray, rounds: int
) -> dict[str, Any] | None:
    """Numbers of the realisations of one group; None if there are none."""
    if not members.any():
        return None
    values = select(values, members)
    met = constraints_met(values, rounds)
    return {
        "realisations": int(members.sum()),
        "mean_latency_s": mean_interval(values["mean_latency_s"]),
        "latency_over_reference": mean_interval(values["latency_over_reference"]),
        "energy_over_budget": _spread(values["energy_over_budget"]),
        "final_energy_queue_over_rounds": _spread(values["final_energy_queue"] / rounds),
        "divergence_over_target": _spread(values["divergence_over_target"]),
        "final_divergence_queue_over_rounds": _spread(values["final_divergence_queue"] / rounds),
        "share_met": {name: float(kept.mean()) for name, kept in met.items()},
        "constraints_met": bool(met["all"].all()),
        "mean_backlog": mean_interval(limits.mean_backlog(values)),
        "drift_constant": mean_interval(limits.drift_constant(values)),
        "absent_share": float(values["absent_rounds"].mean() / rounds),
    }


def _spread(values: np.ndarray) -> dict[str, float]:
    """Worst and quantiles over everything."""
    quantiles = {f"q{100 * q:g}": np.quantile(values, q, method="higher") for q in _QUANTILES}
    return {name: float(value) for name, value in ({"worst": values.max()} | quantiles).items()}


def summary_table(summary: Mapping[str, Any]) -> Table:
    """One row for every policy, V and group of networks."""
    networks = summary["networks"]
    caption = (
        "Latency: mean and 95 % interval; then the worst node and network; met: share of networks "
        f"that meet all. *: {networks['below_floors']} networks with a budget that no pipeline "
        f"can keep. In {networks['cannot_run']} networks no round can run."
    )
    if not networks["floors_checked"]:
        caption += " Floors at mean gains do not bind where devices come, go or walk."
    rows = []
    for case, group in itertools.product(_without_repeats(summary["cases"]), GROUPS):
        values, mark = case[group], "*" if group == "below_floors" else ""
        if values is not None:
            sizes = case["policy"], case["v"], f"{values['realisations']}{mark}"
            worst = (f"{values[key]['worst']:.3g}" for key in _WORST.values())
            met = f"{100 * values['share_met']['all']:.0f} %"
            rows.append((*sizes, interval_text(values["latency_over_reference"]), *worst, met))
    headings = ("policy", "V", "nets", "latency\n/reference", *_WORST, "met")
    title = f"{summary['realisations']} networks, {summary['rounds']} rounds"
    return make_table(headings, rows, title=title, caption=caption, **COMPACT)


def _without_repeats(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Cases, but only one, of V "any", for a policy that does the same whatever V is."""
    kept = []
    for policy in dict.fromkeys(case["policy"] for case in cases):
        own = [{**case, "v": f"{case['v']:g}"} for case in cases if case["policy"] == policy]
        alike = all({**case, "v": own[0]["v"]} == own[0] for case in own)
        kept += [{**own[0], "v": "any"}] if alike and len(own) > 1 else own
    return kept


def constraints_met(values: Mapping[str, np.ndarray], rounds: int) -> dict[str, np.ndarray]:
    """Realisations that meet each constraint at every node, booleans ``[R]``."""

    def worst(name: str) -> np.ndarray:
        return values[name].reshape(len(values[name]), -1).max(axis=1)

    met = {
        "energy": worst("energy_over_budget") <= ENERGY_LIMIT,
        "energy_queue": worst("final_energy_queue") <= limits.QUEUE_LIMIT * rounds,
        "divergence": worst("divergence_over_target") <= DIVERGENCE_LIMIT,
    }
    return met | {"all": np.logical_and.reduce(list(met.values()))}


def sample_path_excess(values: Mapping[str, np.ndarray], rounds: int) -> dict[str, float]:
    """Largest violation of ``mean(E) / budget - 1 <= q(R) / R``, and of the same for ``z``.

    It follows from (20) on every path and node, whatever the policy, so what is left is
    rounding; relative to the mean where that is above 1.
    """

    def largest(mean: np.ndarray, queue: np.ndarray) -> float:
        finite = np.isfinite(mean) & np.isfinite(queue)
        mean, queue = mean[finite].astype(np.float64), queue[finite].astype(np.float64)
        excess = (mean - 1.0 - queue / rounds) / np.maximum(mean, 1.0)
        return float(max(excess.max(initial=0.0), 0.0))

    return {
        "energy": largest(values["energy_over_budget"], values["final_energy_queue"]),
        "divergence": largest(values["divergence_over_target"], values["final_divergence_queue"]),
    }


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
