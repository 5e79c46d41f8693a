r"""The stability guarantee held against closed loops, no constant of it fitted.

    python -m experiments.studies.stability --config=configs/stability.py --workdir=runs/stability

``dssra`` runs over several V on small networks. The same channels meet comparisons that look at
no queue: decisions at constant prices, the same for all limits. With these (T20) and (T22) of
docs/theory.md bound latency and backlog by recorded numbers: ``B`` from the queues' steps, and
``C``, what the solver leaves, from exhaustive search on some of the rounds. Every network takes
the comparison that bounds it best. A stopped run goes on with the same command.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console
from rich.progress import track
from rich.table import Table

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.core.statistics import interval_text, mean_interval
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.environment import observed_problems, reset
from collapipe_jax.edge.policies.registry import Policy, make_policy
from collapipe_jax.edge.solver.exhaustive import exhaustive
from collapipe_jax.edge.system import SystemParams
from collapipe_jax.runs.config.files import parse_overrides, read_config
from collapipe_jax.runs.config.system import build_system_params
from collapipe_jax.runs.results.experiment import Results, Variable
from collapipe_jax.runs.results.store import Place
from collapipe_jax.runs.studies.montecarlo import Setup, Work, realisation_keys, run_parts, with_v
from experiments.double_precision import in_double, judge, pick
from experiments.studies.closed_loop_limits import limit_use

V = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
PRICES = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Of a budget or target in the comparisons, where a round at the reference latency costs 1."""
LEAST_SLACK = 0.02
"""Of a limit; a comparison that leaves less bounds no backlog."""

_WIDTH = 120

Loop = Mapping[str, np.ndarray]
"""A closed loop of ``Q`` limits, as :func:`limit_use` keeps it: ``latency [R, T]``, ``use``,
``queue`` and ``effective_queue [R, T, Q]``, ``last_queue [R, Q]``."""


def main(argv: Sequence[str]) -> None:
    """Simulate, search, bound, and write the results."""
    parser = make_parser(
        __doc__,
        "config",
        "workdir",
        rounds=300,
        realisations=32,
        searched=(8, "rounds searched for every V"),
    )
    given, overrides = parser.parse_known_args(argv)
    sizes = {name: getattr(given, name) for name in ("rounds", "realisations", "searched")}
    for name, value in sizes.items():
        if value < 2:
            raise InputError(f"--{name}", value, "under 2", "Give 2 or more")
    config = read_config(given.config, parse_overrides(overrides))
    console = console_for_tables(_WIDTH)
    couplings = ("hysteresis", "switching_cost", "moments_move")
    for name in couplings:
        if value := config.control[name]:
            raise InputError(f"control.{name}", value, "not part of the theorem", "Leave it out")
    params = build_system_params(config)  # refuses a wrong one before there is a workdir
    results = Results.create(
        given.workdir, "stability", sizes, config.to_dict(), {"loop": ("loop", loop_names())}
    )
    simulate_loops(results, params, console)
    rows = bound_loops(results)
    write_bounds(results, rows)
    results.write_summary({"v": [{"v": v} | summarise(row) for v, row in rows.items()]})
    console.print(table({v: summarise(row) for v, row in rows.items()}))


def simulate_loops(results: Results, params: SystemParams, console: Console) -> None:
    """Closed loops of every V, comparisons of every price, and the solver's gaps."""
    own = make_policy("dssra", results.config["policy"]["micro_batches"])
    decide = _at_constant_price(own)
    cases = {f"price_{price}": Setup(decide, with_v(params, 1.0), (price,)) for price in PRICES}
    # A price of 0 leaves the queues, and compiles nothing more.
    cases |= {f"v_{v}": Setup(decide, with_v(params, v), (0.0,)) for v in V}
    places, config, options = loop_places(results.options), results.config, results.options
    works = {part: Work(cases[part], place, config) for part, place in places.items()}
    run_parts(results, works, limit_use, console)
    keys = realisation_keys(seed_of(config, "network"), options["realisations"])
    missing = set(results.missing(f"gaps_{v}" for v in V))
    for v in track([v for v in V if f"gaps_{v}" in missing], "searching", console=console):
        gaps = solver_gaps(keys, with_v(params, v), own, options["rounds"], options["searched"])
        results.write(f"gaps_{v}", {"gap": Variable("searched", gaps)})


def loop_places(options: Mapping[str, Any]) -> dict[str, Place]:
    """Where the closed loops lie on file, by name."""
    names, networks = loop_names(), options["realisations"]
    return {
        name: Place({"loop": (index, len(names))}, 0, networks, networks)
        for index, name in enumerate(names)
    }


def loop_names() -> list[str]:
    """Names of the closed loops: comparisons of every price, then ``dssra`` of every V."""
    return [*(f"price_{price}" for price in PRICES), *(f"v_{v}" for v in V)]


@functools.cache
def _at_constant_price(policy: Policy) -> Policy:
    """A policy that sees one price for every limit in place of its queues, unless it is 0."""

    def decide(key: Array, problem: RoundProblem, price: Array) -> Decision:
        control = problem.control
        energy = jnp.where(price > 0, price, control.energy_queue)
        divergence = jnp.where(price > 0, price, control.divergence_queue)
        control = control.replace(energy_queue=energy, divergence_queue=divergence)
        return policy(key, problem.replace(control=control))

    return decide


def solver_gaps(
    keys: Array, params: SystemParams, policy: Policy, rounds: int, searched: int
) -> np.ndarray:
    """``C`` on rounds spread over networks and time: (P2) above its least, ``[searched]``."""
    number = np.arange(searched)
    network = number * len(keys) // searched
    # Golden ratio: rounds are spread evenly, however many are searched.
    when = (rounds * ((number + 1) * 0.6180339887 % 1.0)).astype(int)
    problems, decisions = _some_rounds(keys[network], network, when, params, policy, rounds)
    gaps = []
    with jax.enable_x64(True):
        for place in number:
            problem, decision = in_double(pick((problems, decisions), place))
            bound = exhaustive(problem, decision).lower_bound
            gaps.append(float(judge(problem, decision).objective) - bound)
    return np.array(gaps)


@functools.partial(jax.jit, static_argnames=("policy", "rounds"))
@functools.partial(jax.vmap, in_axes=(0, 0, 0, None, None, None))
def _some_rounds(
    key: Array, row: Array, when: Array, params: SystemParams, policy: Policy, rounds: int
):
    """Of every network one round's problem, and the decision."""
    problem = pick(observed_problems(reset(key, params, row), policy, rounds), when)
    return problem, policy(key, problem)


def bound_loops(results: Results) -> dict[float, dict[str, np.ndarray]]:
    """Bounds of every V."""
    found = results.read_parts(loop_places(results.options))
    loops: dict[str, Loop] = {
        name: {key: value.astype(np.float64) for key, value in values.items()}
        for name, values in found.items()
    }
    others = [loops[f"price_{price}"] for price in PRICES]
    return {v: bounds(v, loops[f"v_{v}"], others, results.read(f"gaps_{v}")["gap"]) for v in V}


def write_bounds(results: Results, rows: Mapping[float, Mapping[str, np.ndarray]]) -> None:
    """Keep latency and backlog with their bounds as the part ``bounds``."""
    kept = ("latency", "latency_bound", "backlog", "backlog_bound")
    stacked = {name: np.stack([row[name] for row in rows.values()]) for name in kept}
    table = {name: Variable("v realisation", values) for name, values in stacked.items()}
    results.write("bounds", {"v": Variable("v", np.array(list(rows))), **table})


def bounds(v: float, loop: Loop, others: Sequence[Loop], gaps: np.ndarray) -> dict[str, np.ndarray]:
    """Latency and backlog of a loop with their bounds, ``[R]``.

    Args:
      v: weight of latency.
      loop: of ``dssra``.
      others: comparisons on the same channels.
      gaps: ``C`` of some rounds.

    Returns:
      Also the ``drift_constant [R]``, the ``solver_gap`` of the rounds, the mean ``use [R, Q]`` of
      every limit, and its ``sample_path_excess [R, Q]`` over what the last queue allows.
    """
    drift = 0.5 * np.mean(np.sum((loop["use"] - 1.0) ** 2, axis=2), axis=1)  # B, [R]
    compared = [(v, loop, one, drift + np.mean(gaps) + _lifted(loop, one)) for one in others]
    use = np.mean(loop["use"], axis=1)
    return {
        "latency": np.mean(loop["latency"], axis=1),
        "latency_bound": np.min([_latency_bound(*one) for one in compared], axis=0),
        "backlog": np.mean(np.sum(loop["queue"], axis=2), axis=1),
        "backlog_bound": np.min([_backlog_bound(*one) for one in compared], axis=0),
        "drift_constant": drift,
        "solver_gap": gaps,
        "use": use,
        "sample_path_excess": use - 1.0 - loop["last_queue"] / loop["latency"].shape[1],
    }


def _lifted(loop: Loop, other: Loop) -> np.ndarray:
    """What effective queues above the queues add to ``C`` against a comparison, ``[R]``."""
    lifted = (loop["effective_queue"] - loop["queue"]) * (other["use"] - loop["use"])
    return np.mean(np.sum(lifted, axis=2), axis=1)


def _latency_bound(v: float, loop: Loop, other: Loop, left: np.ndarray) -> np.ndarray:
    """(T20) by one comparison, ``[R]``; ``left`` is ``B + C``."""
    owed = np.mean(np.sum(loop["queue"] * (other["use"] - 1.0), axis=2), axis=1)
    kept = 0.5 * np.sum(loop["last_queue"] ** 2, axis=1) / loop["latency"].shape[1]
    return np.mean(other["latency"], axis=1) + (left + owed - kept) / v


def _backlog_bound(v: float, loop: Loop, other: Loop, left: np.ndarray) -> np.ndarray:
    """(T22) by one comparison, ``[R]``; infinite where it leaves too little slack."""
    slack = 1.0 - np.mean(other["use"], axis=1).max(axis=1)
    gained = v * np.mean(other["latency"] - loop["latency"], axis=1)
    bound = (left + gained) / np.maximum(slack, LEAST_SLACK)
    return np.where(slack >= LEAST_SLACK, bound, np.inf)


def summarise(row: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Means over networks with intervals, and in how many networks each bound holds."""
    bounded = np.isfinite(row["backlog_bound"])
    names = ("latency", "latency_bound", "drift_constant", "solver_gap")
    values = {name: row[name] for name in names}
    values |= {name: row[name][bounded] for name in ("backlog", "backlog_bound")}
    return {
        **{name: mean_interval(each) for name, each in values.items()},
        "latency_holds": int(np.sum(row["latency"] <= row["latency_bound"])),
        "backlog_holds": int(np.sum(values["backlog"] <= values["backlog_bound"])),
        "with_slack": int(np.sum(bounded)),
        "networks": len(row["latency"]),
        "worst_use": float(row["use"].max()),
        "sample_path_excess": float(row["sample_path_excess"].max()),
    }


def table(summaries: Mapping[float, Mapping[str, Any]]) -> Table:
    """One row for every V."""
    rows = []
    for v, one in summaries.items():
        names = ("latency", "latency_bound", "backlog", "backlog_bound", "drift_constant")
        *bounded, gap = (interval_text(one[name]) for name in (*names, "solver_gap"))
        bounded.insert(2, f"{one['latency_holds']} of {one['networks']}")
        bounded.insert(5, f"{one['backlog_holds']} of {one['with_slack']}")
        rows.append((f"{v:g}", *bounded, gap))
    headings = ("V", "latency", "bound", "holds", "backlog", "bound", "holds", "B", "C")
    return make_table(headings, rows, title="Means over networks, with 95 % intervals")


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
