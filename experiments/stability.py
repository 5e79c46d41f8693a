r"""The stability guarantee held against closed loops, no constant of it fitted.

    python -m experiments.stability --config=configs/stability.py \
        --out=runs/stability/stability.json

``dssra`` runs over several V on small networks. The same channels meet comparisons that look at
no queue: decisions at constant prices, the same for all limits. With these (T20) and (T22) of
docs/theory.md bound latency and backlog by recorded numbers: ``B`` from the queues' steps, and
``C``, what the solver leaves, from exhaustive search on some of the rounds. Every network takes
the comparison that bounds it best. A stopped run goes on with the same command.
"""

import argparse
import functools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict
from rich.console import Console
from rich.progress import track
from rich.table import Table

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.config.system import build_system_params
from collapipe_jax.control.queues import queues_before
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from collapipe_jax.policies.exhaustive import exhaustive
from collapipe_jax.policies.registry import Policy, make_policy
from collapipe_jax.simulation.environment import draw_system, problems_met, simulate
from collapipe_jax.simulation.system import SystemParams
from experiments.benchmarks.network_rows import judge, pick
from experiments.benchmarks.outside_solvers import in_double
from experiments.closed_loop import with_v
from experiments.configuration import read_checked_config
from experiments.intervals import mean_interval
from experiments.realisations import realisation_keys

V = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
PRICES = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Of a budget or target in the comparisons, where a round at the reference latency costs 1."""
LEAST_SLACK = 0.02
"""Of a limit; a comparison that leaves less bounds no backlog."""


class Loop(NamedTuple):
    """A closed loop, ``Q`` limits: the nodes' budgets and the target.

    Attributes:
      latency: over the reference, ``[R, T]``.
      use: of every limit over what it is on average, ``y [R, T, Q]``.
      queue: before the round, ``q [R, T, Q]``.
      shown: the same as policies saw them, with what prices add to queues.
      last_queue: after all rounds, ``[R, Q]``.
    """

    latency: np.ndarray
    use: np.ndarray
    queue: np.ndarray
    shown: np.ndarray
    last_queue: np.ndarray


def main(argv: Sequence[str]) -> None:
    """Simulate, search, bound, and write what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="a file with get_config()")
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--realisations", type=int, default=32)
    parser.add_argument("--searched", type=int, default=8, help="rounds searched for every V")
    options, overrides = parser.parse_known_args(argv)
    for name in ("rounds", "realisations", "searched"):
        if getattr(options, name) < 2:
            raise InputError(f"--{name}", getattr(options, name), "under 2", "Give 2 or more")
    config = read_checked_config(options.config, overrides)
    if config.control.hysteresis or config.control.switching_cost:
        value = [config.control.hysteresis, config.control.switching_cost]
        raise InputError("control", value, "not part of the theorem", "Set both to 0")
    console, path = Console(), Path(options.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = {name: getattr(options, name) for name in ("rounds", "realisations", "searched")}
    settings = {**sizes, "config": json.loads(config.to_json())}
    rows = _rows_so_far(path, settings)
    for row in _missing_rows(config, **sizes, done=[row["v"] for row in rows], console=console):
        rows.append(row)
        write_text(path, json.dumps({**settings, "v": rows}, indent=1) + "\n")
    console.print(table(rows))


def _rows_so_far(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows that a run with these settings has left.

    Raises:
      InputError: if the file is of other settings.
    """
    if not path.exists():
        return []
    report = json.loads(path.read_text(encoding="utf-8"))
    rows = report.pop("v")
    if report != settings:
        problem = "was written with other settings"
        raise InputError("--out", str(path), problem, "Name another file")
    return rows


def _missing_rows(
    config: ConfigDict,
    *,
    rounds: int,
    realisations: int,
    searched: int,
    done: Sequence[float],
    console: Console,
) -> Iterator[dict[str, Any]]:
    """Closed loops with their bounds, a row for every V that is not done."""
    missing = [v for v in V if v not in done]
    if not missing:
        return
    clusters = config.network.clusters
    params = build_system_params(config, np.full(clusters, 1.0 / clusters))
    keys = realisation_keys(config.seed, realisations)
    own = make_policy("dssra", config.policy.micro_batches)
    others = [
        closed_loop(keys, with_v(params, 1.0), own, rounds, price)
        for price in track(PRICES, description="comparisons", console=console)
    ]
    for v in track(missing, description="closed loops", console=console):
        params_v = with_v(params, v)
        loop = closed_loop(keys, params_v, own, rounds)
        gaps = solver_gaps(keys, params_v, own, rounds, searched)
        yield {"v": v, **bounds(v, loop, others, gaps)}


def closed_loop(
    keys: Array, params: SystemParams, policy: Policy, rounds: int, price: float = 0.0
) -> Loop:
    """Simulate all networks under a policy.

    Args:
      keys: of the networks.
      params: what they are drawn from.
      policy: who decides.
      rounds: of the loop.
      price: of every limit that the policy is shown in place of its queues, so that its
        decisions are stationary; 0 shows the queues.
    """
    return Loop(*map(np.float64, _closed_loop(keys, params, price, policy, rounds)))


@functools.partial(jax.jit, static_argnames=("policy", "rounds"))
@functools.partial(jax.vmap, in_axes=(0, None, None, None, None))
def _closed_loop(key: Array, params: SystemParams, price: Array, policy: Policy, rounds: int):
    control = draw_system(key, params).mean_problem.control

    def shown(key, problem):
        return policy(key, _with_constant_queues(problem, price))

    history = simulate(key, params, shown, rounds)

    def limits(energy, divergence):
        return jnp.concatenate([energy.reshape(rounds, -1), divergence[:, None]], axis=1)

    return Loop(
        latency=history.cost.latency_s / control.reference_latency_s,
        use=limits(
            history.cost.energy_j / control.energy_budget_j[None],
            history.cost.divergence / control.divergence_target,
        ),
        queue=limits(*queues_before(history.queues)),
        shown=limits(*history.shown),
        last_queue=limits(*history.queues)[-1],
    )


def _with_constant_queues(problem: RoundProblem, price: Array) -> RoundProblem:
    control = problem.control
    energy = jnp.where(price > 0, price, control.energy_queue)
    divergence = jnp.where(price > 0, price, control.divergence_queue)
    return problem.replace(
        control=control.replace(energy_queue=energy, divergence_queue=divergence)
    )


def solver_gaps(
    keys: Array, params: SystemParams, policy: Policy, rounds: int, searched: int
) -> np.ndarray:
    """``C`` on rounds spread over networks and time: (P2) above its least, ``[searched]``."""
    number = np.arange(searched)
    network = number * len(keys) // searched
    # Golden ratio: rounds are spread evenly, however many are searched.
    when = (rounds * ((number + 1) * 0.6180339887 % 1.0)).astype(int)
    problems, decisions = _some_rounds(keys[network], when, params, policy, rounds)
    return np.array([_gap(*pick((problems, decisions), place)) for place in number])


@functools.partial(jax.jit, static_argnames=("policy", "rounds"))
@functools.partial(jax.vmap, in_axes=(0, 0, None, None, None))
def _some_rounds(key: Array, when: Array, params: SystemParams, policy: Policy, rounds: int):
    """Of every network one round's problem, and the decision."""
    problem = pick(problems_met(key, params, policy, rounds), when)
    return problem, policy(key, problem)


def _gap(problem: RoundProblem, decision: Decision) -> float:
    """(P2) above a lower bound of its least."""
    with jax.enable_x64(True):
        problem, decision = in_double(problem), in_double(decision)
        objective = float(judge(problem, decision).objective)
        return objective - exhaustive(problem, decision).lower_bound


def bounds(v: float, loop: Loop, others: Sequence[Loop], gaps: np.ndarray) -> dict[str, Any]:
    """Latency and backlog of a loop under their bounds.

    Args:
      v: weight of latency.
      loop: of ``dssra``.
      others: comparisons on the same channels.
      gaps: ``C`` of some rounds.

    Returns:
      Means over networks with intervals, and in how many networks each bound holds.
    """
    drift = 0.5 * np.mean(np.sum((loop.use - 1.0) ** 2, axis=2), axis=1)  # B, [R]
    compared = [(v, loop, one, drift + np.mean(gaps) + _lifted(loop, one)) for one in others]
    latency_bound = np.min([_latency_bound(*one) for one in compared], axis=0)
    backlog_bound = np.min([_backlog_bound(*one) for one in compared], axis=0)
    latency = np.mean(loop.latency, axis=1)
    backlog = np.mean(np.sum(loop.queue, axis=2), axis=1)
    bounded = np.isfinite(backlog_bound)
    excess = np.mean(loop.use, axis=1) - 1.0 - loop.last_queue / loop.latency.shape[1]
    return {
        "latency": mean_interval(latency),
        "latency_bound": mean_interval(latency_bound),
        "latency_holds": int(np.sum(latency <= latency_bound)),
        "backlog": mean_interval(backlog[bounded]),
        "backlog_bound": mean_interval(backlog_bound[bounded]),
        "backlog_holds": int(np.sum(backlog[bounded] <= backlog_bound[bounded])),
        "with_slack": int(np.sum(bounded)),
        "networks": len(latency),
        "drift_constant": mean_interval(drift),
        "solver_gap": mean_interval(gaps),
        "worst_use": float(np.mean(loop.use, axis=1).max()),
        "sample_path_excess": float(excess.max()),
    }


def _lifted(loop: Loop, other: Loop) -> np.ndarray:
    """What prices above the queues add to ``C`` against a comparison, ``[R]``."""
    lifted = (loop.shown - loop.queue) * (other.use - loop.use)
    return np.mean(np.sum(lifted, axis=2), axis=1)


def _latency_bound(v: float, loop: Loop, other: Loop, left: np.ndarray) -> np.ndarray:
    """(T20) by one comparison, ``[R]``; ``left`` is ``B + C``."""
    owed = np.mean(np.sum(loop.queue * (other.use - 1.0), axis=2), axis=1)
    kept = 0.5 * np.sum(loop.last_queue**2, axis=1) / loop.latency.shape[1]
    return np.mean(other.latency, axis=1) + (left + owed - kept) / v


def _backlog_bound(v: float, loop: Loop, other: Loop, left: np.ndarray) -> np.ndarray:
    """(T22) by one comparison, ``[R]``; infinite where it leaves too little slack."""
    slack = 1.0 - np.mean(other.use, axis=1).max(axis=1)
    gained = v * np.mean(other.latency - loop.latency, axis=1)
    bound = (left + gained) / np.maximum(slack, LEAST_SLACK)
    return np.where(slack >= LEAST_SLACK, bound, np.inf)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """All V for a reader."""
    shown = Table(title="Means over networks, with 95 % intervals")
    for number, column in enumerate(
        ("V", "latency", "bound", "holds", "backlog", "bound", "holds", "B", "C")
    ):
        shown.add_column(column, justify="right" if number else "left")
    for row in rows:
        shown.add_row(
            f"{row['v']:g}",
            _told(row["latency"]),
            _told(row["latency_bound"]),
            f"{row['latency_holds']} of {row['networks']}",
            _told(row["backlog"]),
            _told(row["backlog_bound"]),
            f"{row['backlog_holds']} of {row['with_slack']}",
            _told(row["drift_constant"]),
            _told(row["solver_gap"]),
        )
    return shown


def _told(interval: dict[str, float | None]) -> str:
    if interval["mean"] is None:
        return "-"
    half = "" if interval["ci95"] is None else f" ± {interval['ci95']:.2g}"
    return f"{interval['mean']:.3g}{half}"


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
