"""Pages of training runs, alone or side by side, of races, and of plans."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.quantity import quantities, time_unit
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import violations
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.round_cost import RoundCost
from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.runs.documents import (
    DECISION_FORMAT,
    NETWORK_FORMAT,
    read_decision,
    read_network,
)
from collapipe_jax.runs.report.charts import (
    Data,
    config_table,
    line,
    line_chart,
    table,
)
from collapipe_jax.runs.report.network import (
    NetworkRounds,
    UsedLinks,
    network_of_run,
    schematic,
    used_links,
)
from collapipe_jax.runs.report.rounds import run_data
from collapipe_jax.runs.results.checkpoints import load_race, load_run
from collapipe_jax.runs.results.record import RunRecord, divergence_over_target, run_labels

# Documents of one round, a network and decisions for it, as runs of one round each.


class Plan(NamedTuple):
    """A decision on file, as a run of one round, and its network."""

    name: str  # of its file
    record: RunRecord
    network: NetworkRounds


def document_formats(folder: Path) -> dict[Path, str]:
    """Formats of the documents in a folder by their paths, in the order of their names."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # another program's file
        if isinstance(document, dict) and isinstance(document.get("format"), str):
            found[path] = document["format"]
    return found


def load_plans(folder: Path) -> list[Plan]:
    """Decisions of a folder for the network in it, priced.

    Raises:
      InputError: if there is not exactly one network or no decision, or a document is wrong.
    """
    formats = document_formats(folder)
    networks = [path for path, name in formats.items() if name == NETWORK_FORMAT]
    decisions = [path for path, name in formats.items() if name == DECISION_FORMAT]
    if len(networks) != 1 or not decisions:
        problem = f"it holds {len(networks)} networks and {len(decisions)} decisions"
        remedy = "Put one network into it, and what plan decided for it"
        raise InputError("--workdir", str(folder), problem, remedy)
    problem = read_network(networks[0])
    plans = []
    for path in decisions:
        decision = read_decision(path, problem)
        policy = json.loads(path.read_text(encoding="utf-8"))["policy"]
        priced = jax.device_get(quick_jit(_price)(problem, decision))
        cost, broken, links = priced
        record = _record(problem, decision, str(policy), cost, broken)
        network = NetworkRounds(
            position_m=schematic(problem.radio)[None],
            is_drawn=False,
            is_there=np.asarray(problem.compute.memory_bytes > 0)[None],
            links=jax.tree.map(lambda leaf: leaf[None], links),
            mean_problem=jax.device_get(problem),
            latency_s=record.history["latency_s"],
        )
        plans.append(Plan(path.name, record, network))
    return plans


def _price(
    problem: RoundProblem, decision: Decision
) -> tuple[RoundCost, dict[str, Any], UsedLinks]:
    return evaluate(problem, decision), violations(problem, decision), used_links(problem, decision)


def _record(
    problem: RoundProblem,
    decision: Decision,
    policy: str,
    cost: RoundCost,
    broken: dict[str, Any],
) -> RunRecord:
    """The round with the names of a training run's history."""
    assert cost.flows is not None  # a Decision has a pipeline
    control = problem.control
    round_ = {name: getattr(cost, name) for name in (*quantities(RoundCost), "absent")}
    round_ |= {name: getattr(decision, name) for name in quantities(Decision)}
    if decision.routes is not None:
        round_ |= vars(decision.routes)
    round_ |= {f"violated_{name}": value for name, value in broken.items()}
    round_ |= {
        "round": 0,
        "simulated_time_s": cost.latency_s,
        "parts_s": np.stack(cost.parts, axis=-1),
        "forward_flow_s": cost.flows.forward_s,
        "backward_flow_s": cost.flows.backward_s,
        "energy_queue": control.energy_queue,
        "divergence_queue": control.divergence_queue,
    }
    constants = {
        "energy_budget_j": control.energy_budget_j,
        "divergence_target": control.divergence_target,
        "memory_limit_bytes": problem.compute.memory_bytes,
        "reference_latency_s": control.reference_latency_s,
    }
    config = {
        "policy": {"name": policy},
        "pipeline": {"schedule": problem.workload.schedule},
        "radio": {"duplex": problem.radio.duplex},
    }
    return RunRecord(
        config=config,
        constants={name: np.asarray(value) for name, value in constants.items()},
        history={name: np.asarray(value)[None] for name, value in round_.items()},
    )


# Pages.


def runs_page(workdirs: Sequence[str]) -> Data:
    """The page of training runs; of several the first one's network comes first."""
    return _page("Training run", [load_run(workdir) for workdir in workdirs])


def race_page(workdir: str) -> Data:
    """The page of a race: its runs with the first seed."""
    runs = load_race(workdir)
    return _page("Race", [run.record for run in runs if run.seed == runs[0].seed])


def plan_page(workdir: str) -> Data:
    """The page of documents: every decision of the folder for its network."""
    plans = load_plans(Path(workdir))
    return {
        "title": "Plan",
        "runs": [run_data(plan.name, plan.record, plan.network) for plan in plans],
        "charts": [],
        "tables": [_costs(plans)],
    }


def _page(title: str, records: Sequence[RunRecord]) -> Data:
    names = run_labels(records)
    runs = [
        run_data(name, record, network_of_run(record))
        for name, record in zip(names, records, strict=True)
    ]
    return {
        "title": title,
        "runs": runs,
        "charts": _charts(names, records),
        "tables": [_runs_table(names, records)] * (len(records) > 1),
        "configuration": config_table(records[0].config),
    }


def _charts(names: Sequence[str], records: Sequence[RunRecord]) -> list[Data]:
    """Charts of all runs together."""
    longest_s = max(float(record.history["simulated_time_s"][-1]) for record in records)
    unit_s, unit = time_unit(longest_s)
    task = find_task(records[0].config["task"]["kind"])
    pairs = list(zip(names, records, strict=True))

    def over_time(key: str) -> list[Data]:
        elapsed = [record.history["simulated_time_s"] / unit_s for record in records]
        return [
            line(name, elapsed[look], record.history[key], look)
            for look, (name, record) in enumerate(pairs)
        ]

    trivial = float(records[0].constants["baseline_score"])
    rules = [["trivial answer", trivial]] if trivial == trivial else []
    label, clock = task.score_label(), f"simulated time [{unit}]"
    charts = line_chart("score", "Score", clock, label, over_time("score"), rules=rules)
    charts += line_chart("loss", "Training loss", clock, "nats", over_time("train_loss"))
    if len(records[0].history["round"]) == 1:
        return charts
    latency, divergence, queue = [], [], []
    for look, (name, record) in enumerate(pairs):
        rounds, history = record.history["round"], record.history
        latency.append(line(name, rounds, history["latency_s"], look))
        divergence.append(line(name, rounds, divergence_over_target(record), look))
        queue.append(line(name, rounds, history["divergence_queue"], look))
    rule = {"rules": [["target", 1.0]]}
    charts += line_chart("latency", "Latency of a round", "round", "s", latency)
    title = "Mean divergence so far over its target"
    charts += line_chart("divergence", title, "round", "divergence / target", divergence, **rule)
    return charts + line_chart("divergence_queue", "Divergence queue", "round", "targets", queue)


def _runs_table(names: Sequence[str], records: Sequence[RunRecord]) -> Data:
    """Score, time and energy of runs side by side."""
    label = find_task(records[0].config["task"]["kind"]).score_label()
    rows = []
    for name, record in zip(names, records, strict=True):
        history = record.history
        known = [float(score) for score in history["score"] if score == score]
        rows.append(
            [
                name,
                known[-1] if known else "–",
                float(history["simulated_time_s"][-1]),
                float(history["latency_s"].mean()),
                float(history["energy_j"].sum(axis=(1, 2)).mean()),
            ]
        )
    head = ("run", f"last {label}", "simulated time [s]", "mean latency [s]", "mean energy [J]")
    return table("runs", "Runs", head, rows)


def _costs(plans: Sequence) -> Data:
    """What each decision costs, evaluated anew."""
    rows = []
    for plan in plans:
        history = {name: values[0] for name, values in plan.record.history.items()}
        broken = [name.removeprefix("violated_") for name in history if name.startswith("violated")]
        broken = [name for name in broken if history[f"violated_{name}"]]
        numbers = (history["latency_s"], history["compute_latency_s"], history["energy_j"].sum())
        numbers = (*numbers, history["divergence"], history["objective"])
        cells = [float(number) for number in numbers]
        rows.append([plan.name, plan.record.policy, *cells, ", ".join(broken) or "none"])
    head = ("decision", "policy", "latency [s]", "compute [s]", "energy [J]", "divergence")
    return table("costs", "Costs", (*head, "objective", "limits broken"), rows)
