"""Documents of one round, a network and decisions for it, as runs of one round each."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.quantity import quantities
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import violations
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.round_cost import RoundCost
from collapipe_jax.runs.documents import (
    DECISION_FORMAT,
    NETWORK_FORMAT,
    read_decision,
    read_network,
)
from collapipe_jax.runs.report.links import UsedLinks, used_links
from collapipe_jax.runs.report.network import NetworkRounds, schematic
from collapipe_jax.runs.results.record import RunRecord


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
