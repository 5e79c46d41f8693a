"""Explanation of a decision: its outcome, terms of (P2), certificate, and prices of its limits."""

from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Group, RenderableType
from rich.table import Table

from collapipe_jax.allocation.allocate import BROKEN, NO_CLUSTER, OPTIMAL, STEP_LIMIT, Tuned
from collapipe_jax.allocation.limit_prices import FullDevice, Prices
from collapipe_jax.command_line import make_table
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.divergence import loss_free_divergence
from collapipe_jax.cost.latency import backward_flow_s, forward_flow_s
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import price
from collapipe_jax.cost.round_cost import RoundCost
from collapipe_jax.units import bytes_to_mib

_ROWS = 10
_SLIGHT = 1e-6
"""Prices below this part of the objective are rounding."""
_STATUS = {
    OPTIMAL: "optimal within tolerance",
    STEP_LIMIT: "out of steps; more would bring the two closer",
    NO_CLUSTER: "no cluster can run",
    BROKEN: "a message cannot be sent, whatever is decided",
}


class Appraisal(NamedTuple):
    """A decision's outcome.

    Attributes:
      cost: its cost.
      flows_s: stages of the forward flow and of the backward flow, ``[N, 4 K + 7]``.
      loss_free: divergence of the round if nothing were lost.
    """

    cost: RoundCost
    flows_s: Array
    loss_free: Array


def appraise(problem: RoundProblem, decision: Decision) -> Appraisal:
    """Evaluate a decision, with the stages of its flows."""
    cost = price(problem, decision)
    assert cost.stages is not None  # a Decision has a pipeline
    flows_s = forward_flow_s(cost.stages), backward_flow_s(cost.stages)
    loss_free = loss_free_divergence(problem.learning, problem.workload.batch, ~cost.absent)
    return Appraisal(cost, jnp.concatenate(flows_s, axis=1), loss_free)


def decision_table(problem: RoundProblem, decision: Decision, found: Appraisal) -> Table:
    """Blocks, micro-batches, latency and memory, one row a cluster."""
    cost, flows = found.cost, found.flows_s
    stage_names = _stage_names(problem.devices)
    slowest = int(np.argmax(cost.cluster_latency_s))
    rows = []
    for n in range(problem.clusters):
        if cost.absent[n]:
            rows.append((str(n), "sits out", *["-"] * 5))
            continue
        row = [
            str(n) + (" (slowest)" if n == slowest else ""),
            " ".join(str(int(blocks)) for blocks in decision.segments[n]),
            str(int(decision.micro_batches[n])),
            f"{float(cost.cluster_latency_s[n]):.4g}",
            stage_names[int(np.argmax(flows[n]))],
            f"{1e3 * flows[n].max():.3g}",
            f"{bytes_to_mib(np.max(cost.memory_bytes[n])):.0f}",
        ]
        rows.append(row)
    headings = ("cluster", "blocks per device", "M", "latency, s", "slowest stage", "ms")
    table = make_table((*headings, "memory, MiB"), rows, left=0, title="Decision")
    table.columns[4].justify = "left"
    return table


def _stage_names(devices: int) -> list[str]:
    """Names of the stages of the forward flow, then of the backward flow."""
    chain = ["embedding", "hop from control unit"]
    for k in range(1, devices + 1):
        chain += [f"device {k}", f"hop from device {k}"]
    forward = [*chain, "uplink", "decoder"]
    return [*forward, "downlink", *(f"{name}, backward" for name in reversed(chain))]


class Terms(NamedTuple):
    """Terms of (P2)."""

    latency: float
    energy: float
    divergence: float


def terms(problem: RoundProblem, cost: RoundCost) -> Terms:
    """Terms of (P2), whose sum is the objective."""
    control = problem.control
    over = np.asarray(cost.energy_j / control.energy_budget_j)
    return Terms(
        latency=float(control.v * cost.latency_s / control.reference_latency_s),
        energy=float(np.sum(np.asarray(control.energy_queue) * over)),
        divergence=float(control.divergence_queue * cost.divergence / control.divergence_target),
    )


def decision_summary(problem: RoundProblem, cost: RoundCost) -> str:
    """Terms of the objective and the worst of each constraint."""
    term = terms(problem, cost)
    over = np.asarray(cost.energy_j / problem.control.energy_budget_j)
    node = np.unravel_index(np.argmax(over), over.shape)
    return (
        f"objective {float(cost.objective):.6g} = latency {term.latency:.4g} + energy "
        f"{term.energy:.4g} + divergence {term.divergence:.4g}\n"
        f"latency {float(cost.latency_s):.4g} s, compute {float(cost.compute_latency_s):.4g} s; "
        f"divergence {float(cost.divergence / problem.control.divergence_target):.3g} of its "
        f"target;\nhighest energy {over.max():.3g} of the budget, cluster {node[0]} node {node[1]}"
    )


def certificate(tuned: Tuned) -> str:
    """How far from the best the decision can be, in words."""
    objective, bound = float(tuned.objective), float(tuned.lower_bound)
    gap = (objective - bound) / objective if objective > 0 else 0.0
    return (
        f"with these segments and micro-batches no shares and powers get below {bound:.6g}, "
        f"{100 * gap:.2g} % less:\n{_STATUS[int(tuned.status)]}"
    )


def explain(
    problem: RoundProblem,
    tuned: Tuned,
    cost: RoundCost,
    prices: Prices,
    full: list[FullDevice],
    loss_free: float,
) -> Group:
    """Everything that keeps the objective from falling, with its price.

    Computed on the host: arrays are NumPy's, lest each sum be compiled.

    Args:
      problem: one round of one network.
      tuned: what was decided.
      cost: of it.
      prices: of its limits.
      full: its devices without room, with what room would save.
      loss_free: divergence of the round if nothing were lost.
    """
    parts: list[RenderableType] = [
        certificate(tuned),
        _latency(prices),
        _limits(problem, tuned.decision, prices, float(tuned.objective)),
        _memory(full, prices),
        *_energy(problem, cost, prices),
        _divergence(problem, cost, loss_free),
    ]
    return Group(*parts)


def _latency(prices: Prices) -> str:
    """Whose latency the round waits for."""
    if prices.second <= 0:
        return "latency: free, since V is 0"
    part = prices.cluster_second / prices.second
    listed = [(n, part[n]) for n in np.argsort(-part) if part[n] >= 0.01]
    shares = ", ".join(f"cluster {n} {100 * share:.0f} %" for n, share in listed)
    return f"latency: a second of the round costs {prices.second:.4g} (V / T_ref); of it {shares}"


def _limits(problem, decision: Decision, prices: Prices, objective: float) -> Table:
    """Shares and powers whose limits bind, dearest first."""
    rows = [(f"D2D band of cluster {n}", float(price)) for n, price in enumerate(prices.d2d_band)]
    rows.append(("D2E band", float(prices.d2e_band)))
    d2d_max_w, d2e_max_w = problem.radio.d2d_power_max_w, problem.radio.d2e_power_max_w
    for (n, i), own in np.ndenumerate(prices.d2d_power):
        rows.append((f"D2D power {d2d_max_w[n, i]:.3g} W, {_node(n, i)}", float(own)))
    for n, own in enumerate(prices.d2e_power):
        rows.append((f"D2E power {d2e_max_w[n]:.3g} W, cluster {n}", float(own)))
    binding = [row for row in rows if row[1] > _SLIGHT * objective]
    binding.sort(key=lambda row: -row[1])
    cells = [
        (name, f"{price:.3g}", f"{0.01 * price:.3g}", _as_ms(0.01 * price, prices))
        for name, price in binding[:_ROWS]
    ]
    captions = _unlisted(binding, "binds"), _left_empty(decision, prices)
    return make_table(
        ("limit", "price", "1 % more saves", "as latency, ms"),
        cells,
        title="Limits that bind",
        caption="; ".join(filter(None, captions)) or None,
    )


def _left_empty(decision: Decision, prices: Prices) -> str:
    """Bands of which a part is better left empty."""
    runs = np.sum(np.asarray(decision.segments), axis=1) > 0
    used = np.sum(np.asarray(decision.d2d_share), axis=1)
    found = [
        f"cluster {n} {100 * (1 - used[n]):.2g} %"
        for n in np.flatnonzero(runs & (prices.d2d_band == 0) & (used < 1 - 1e-3))
    ]
    d2e_used = float(np.sum(decision.d2e_share))
    if prices.d2e_band == 0 and d2e_used < 1 - 1e-3:
        found.append(f"D2E {100 * (1 - d2e_used):.2g} %")
    return "better left empty of the band: " + ", ".join(found) if found else ""


def _memory(full: list[FullDevice], prices: Prices) -> RenderableType:
    """Devices whose memory matters."""
    if not full:
        return "memory: no device is full"
    matter = [device for device in full if device.saved > 0]
    if not matter:
        return f"memory: {len(full)} devices are full, and room for one block more saves nothing"
    rows = [
        (
            f"cluster {device.cluster} device {device.device}",
            str(device.blocks),
            f"{device.saved:.3g}",
            _as_ms(device.saved, prices),
        )
        for device in matter[:_ROWS]
    ]
    return make_table(
        ("device", "blocks", "one more saves", "as latency, ms"),
        rows,
        title="Full devices",
        caption=f"{len(full) - len(matter)} more are full; room would save nothing there",
    )


def _energy(problem, cost: RoundCost, prices: Prices) -> Iterable[RenderableType]:
    """Nodes whose energy has a price, by what they add to the objective."""
    queue = np.asarray(problem.control.energy_queue)
    budget_j = np.asarray(problem.control.energy_budget_j)
    energy_j = np.asarray(cost.energy_j)
    term = queue / budget_j * energy_j
    nodes = [tuple(np.unravel_index(i, term.shape)) for i in np.argsort(-term, axis=None)]
    nodes = [node for node in nodes if term[node] > 0]
    if not nodes:
        yield "energy: it has no price at any node that spends some, so it is free this round"
        return
    rows = []
    for node in nodes[:_ROWS]:
        price, share = queue[node] / budget_j[node], 100 * energy_j[node] / budget_j[node]
        in_s = f"{price / prices.second:.3g}" if prices.second > 0 else "-"
        costs = f"{queue[node]:.3g}", f"{price:.3g}", in_s
        numbers = energy_j[node], share, term[node]
        rows.append((_node(*node), *costs, *(f"{number:.3g}" for number in numbers)))
    headings = ("node", "a budget costs", "a J costs", "in s", "spends, J", "of budget, %", "adds")
    yield make_table(headings, rows, title="Energy", caption=_unlisted(nodes, "adds"))


def _divergence(problem, cost: RoundCost, loss_free: float) -> str:
    """What a target's worth of divergence costs, and what of it losses make up."""
    control = problem.control
    part = float(cost.divergence / control.divergence_target)
    free_part = loss_free / float(control.divergence_target)
    queue = float(control.divergence_queue)
    worst = int(np.argmax(cost.loss_probability))
    return (
        f"divergence: a whole target costs {queue:.4g}; {part:.3g} of it adds {queue * part:.4g}, "
        f"{queue * (part - free_part):.4g} for losses\n(most in cluster {worst}: "
        f"{100 * float(cost.loss_probability[worst]):.2g} % of its micro-batches)"
    )


def _node(cluster: int, node: int) -> str:
    return f"cluster {cluster} " + (f"device {node}" if node else "control unit")


def _as_ms(saved: float, prices: Prices) -> str:
    return f"{1e3 * saved / prices.second:.3g}" if prices.second > 0 else "-"


def _unlisted(rows: list, verb: str) -> str | None:
    if not rows:
        return f"nothing {verb}"
    more = len(rows) - _ROWS
    return f"{more} more, each of which {verb} less" if more > 0 else None
