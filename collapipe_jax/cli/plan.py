"""Let a policy decide for a network on file.

    collapipe plan --instance=NET.json --policy=dssra --out=DECISION.json
    collapipe plan --cluster=cluster.json --model=MODEL [--lora=8 | --inference]

Prints the decision of every cluster; for dssra, which minimises (P2), also its certificate, a
comparison with its neighbours and the multipliers of its limits. "As latency" divides by the cost
of a second. With --certify a lower bound over all partitions shows how far the decision
is from the best one. With --min-cluster-blocks the number of last blocks at the edge server is
decided too: the one with most clusters, and of these with the least (P2).

With --cluster machines have wired links. Prints the pipeline with the shortest step for a published
model, found exactly, what limits it, and data parallelism beside it.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array
from rich.console import Group, RenderableType
from rich.table import Table

from collapipe_jax.cli.options import make_parser, refuse_given
from collapipe_jax.core.batch_axis import stack
from collapipe_jax.core.compilation import compile_for_now, compile_together
from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.core.errors import InputError, ValidValues, collect, rename_error_keys
from collapipe_jax.core.plugins import OWN, find
from collapipe_jax.core.quantity import bytes_to_mib
from collapipe_jax.edge.cost.convergence import lossless_divergence
from collapipe_jax.edge.cost.decision import Decision, Routes
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import can_run, violations
from collapipe_jax.edge.cost.latency import LatencyParts
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.round_cost import Flows, RoundCost
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.environment import best_trial, trial_value
from collapipe_jax.edge.policies.dssra import DEFAULT_SEARCH, MOST_STARTS, dssra, dssra_wide
from collapipe_jax.edge.policies.registry import (
    POLICIES,
    Policy,
    PolicyEntry,
    make_policy,
    policy_entry,
)
from collapipe_jax.edge.solver.allocate import BROKEN, NO_CLUSTER, OPTIMAL, STEP_LIMIT, Solution
from collapipe_jax.edge.solver.gateways import likeliest_routes
from collapipe_jax.edge.solver.neighbours import neighbour_objectives
from collapipe_jax.edge.solver.partition_bound import (
    FullDevice,
    LimitMultipliers,
    PartitionBound,
    bound_partitions,
    full_devices,
    limit_multipliers,
)
from collapipe_jax.runs.documents import read_network, write_decision

_WIDTH = 100
_MICRO_BATCHES = 8  # or the allowed number that is nearest
_PIPELINES = {name: entry for name, entry in POLICIES.items() if not entry.by_clients}
_OF_NETWORK: dict[str, Any] = {
    "instance": "",
    "out": "",
    "policy": ("", f"{', '.join(_PIPELINES)}, or one's own"),
    "micro_batches": (int, "for policies that fix it (default: 8)"),
    "min_cluster_blocks": (-1, "least blocks in a cluster; -1 keeps the network's server_blocks"),
    "certify": (False, "bound (P2) over all partitions"),
}
_OF_MACHINES: dict[str, Any] = {
    "cluster": ("", "JSON file of machines and wired links"),
    "model": ("", "with --cluster: folder of a published BERT, Llama or Qwen"),
    "batch": (16, "with --cluster: texts of a step, or requests at a time"),
    "tokens": (512, "with --cluster: tokens of a text"),
    "lora": (0, "with --cluster: rank of adapters; 0 trains all parameters"),
    "inference": (False, "with --cluster: write texts"),
}
_SEARCH = DEFAULT_SEARCH._replace(
    allocation_steps=(*DEFAULT_SEARCH.allocation_steps[:-1], 200), starts=MOST_STARTS
)
"""A network alone has time for all starts, and for more steps at the end."""


def main(argv: Sequence[str]) -> None:
    """Read the network, decide, write the decision and explain it."""
    options = make_parser(__doc__, **_OF_NETWORK, **_OF_MACHINES).parse_args(argv)
    if options.cluster or options.model:
        # It brings all models, which a network on file does not need.
        from collapipe_jax.cli.plan_machines import plan_machines

        remedy = "Leave it out, or leave out --cluster and --model"
        refuse_given(options, _OF_NETWORK, "of a network on file", remedy)
        plan_machines(options)
        return
    right = _read_options(options)
    problem, cuts, policy = right["problem"], right["cuts"], right["policy"]
    deepest = problem.with_cut(cuts[-1])
    if not np.any(compile_for_now(can_run, deepest)(deepest)):
        raise InputError(
            "compute.memory_bytes",
            np.asarray(problem.compute.memory_bytes).tolist(),
            f"no cluster can ever hold the {deepest.workload.cluster_blocks} encoder blocks",
            "Raise the memory or shrink the model",
        )
    console = console_for_tables(_WIDTH)
    if options.policy in _EXPLAINED:
        wanted = options.policy, options.micro_batches or _MICRO_BATCHES, options.certify
        print("the program is built first, which may take a minute", file=sys.stderr)
        cut, decision, parts = _plan_and_explain(problem, cuts, *wanted)
    else:
        cut, decision, parts = plan_round(problem, policy, cuts)
    if len(cuts) > 1:
        blocks = problem.workload.blocks
        parts = *parts, f"the edge server holds the last {cut} of {blocks} encoder blocks"
    write_decision(options.out, decision, options.policy, cut if len(cuts) > 1 else None)
    console.print(*parts, sep="\n", highlight=False)
    console.print(f"written: {options.out}", highlight=False, soft_wrap=True)


def _read_options(options: argparse.Namespace) -> Mapping[str, Any]:
    """Network, numbers of blocks at the edge server, and policy of the options.

    Raises:
      InputError: naming all that is wrong.
    """
    right = ValidValues()
    with collect() as step:
        with step():
            remedy = "Leave it out, or give --cluster and --model instead of --instance"
            refuse_given(options, _OF_MACHINES, "of machines with wired links", remedy)
        for name in ("instance", "policy", "out"):
            with step():
                if not getattr(options, name):
                    remedy = "Give it, or --cluster and --model for machines with wired links"
                    raise InputError(f"--{name}", "", "is missing", remedy)
        with step():
            if options.policy:
                right["entry"] = _pipeline(options.policy)
        with step():
            if options.certify and options.policy not in ("", "dssra"):
                remedy = "Certify decisions of dssra, the policy that minimises (P2)"
                raise InputError("--certify", options.policy, "not the policy to certify", remedy)
        with step():
            if options.instance:
                right["problem"] = read_network(options.instance)
        with step():
            right["cuts"] = _cuts(right["problem"], options.min_cluster_blocks)
        with step():
            _check_micro_batches(options, right["entry"], right["problem"])
            count = options.micro_batches or _MICRO_BATCHES
            right["policy"] = make_policy(options.policy, count)
    return right


def _pipeline(name: str) -> PolicyEntry:
    """Entry of a policy that decides pipelines."""
    if name not in POLICIES:
        find("--policy", name, _PIPELINES)
    with rename_error_keys({"policy.name": "--policy"}):
        entry = policy_entry(name)
    if entry.by_clients:
        problem = "its clients train copies of the model, and plan decides pipelines"
        raise InputError("--policy", name, problem, f"Choose among: {', '.join(_PIPELINES)}, {OWN}")
    return entry


def _check_micro_batches(
    options: argparse.Namespace, entry: PolicyEntry, problem: RoundProblem
) -> None:
    """Refuse a number that the policy does not take, or that it would have to replace."""
    count, choices = options.micro_batches, problem.workload.micro_batch_choices.tolist()
    if count is None:
        return
    if "micro_batches" not in entry.options:
        why = f"{options.policy} takes no number of micro-batches"
        raise InputError("--micro-batches", count, why, "Leave it out")
    if count not in choices:
        remedy = f"Choose among: {', '.join(map(str, choices))}"
        raise InputError("--micro-batches", count, "the network does not allow it", remedy)


def _cuts(problem: RoundProblem, min_cluster_blocks: int) -> list[int]:
    """Numbers of last blocks at the edge server to try."""
    given, blocks = int(problem.workload.server_blocks), int(problem.workload.blocks)
    if min_cluster_blocks == -1:
        return [given]
    if not 0 <= min_cluster_blocks <= blocks - given:
        why = f"of {blocks} blocks the edge server holds {given} at least"
        remedy = f"Give 0 to {blocks - given}, or -1 to decide nothing"
        raise InputError("--min-cluster-blocks", min_cluster_blocks, why, remedy)
    return list(range(given, blocks - min_cluster_blocks + 1))


_EXPLAINED = {"dssra": dssra, "dssra_wide": dssra_wide}
"""Policies that minimise (P2), whose decisions are explained."""


def _plan_and_explain(
    problem: RoundProblem, cuts: Sequence[int], policy: str, micro_batches: int, certify: bool
) -> tuple[int, Decision, tuple[RenderableType, ...]]:
    """Cut and decision of a policy that minimises (P2), with its explanation."""
    problem = jax.device_get(problem)

    def solve(problem: RoundProblem) -> Solution:
        return _EXPLAINED[policy](problem, micro_batches, _SEARCH)

    def shape_of_decision(problem: RoundProblem) -> Decision:
        routes = likeliest_routes(problem) if policy == "dssra_wide" else None
        return static_pipeline(problem, micro_batches).replace(routes=routes)

    some_decision = jax.eval_shape(shape_of_decision, problem)
    decide, evaluate, look_nearby = compile_together(
        (solve, problem),
        (lambda *round_: (_appraise(*round_), limit_multipliers(*round_)), problem, some_decision),
        (neighbour_objectives, problem, some_decision),
        kept_as=f"plan-{policy}-{micro_batches}",
        returns=(
            *(Solution, Decision, Routes, RoundCost, LatencyParts, Flows),
            *(_Appraisal, LimitMultipliers),
        ),
    )

    def plan(problem: RoundProblem) -> tuple[_Appraisal, tuple[Solution, LimitMultipliers]]:
        solution = jax.device_get(decide(problem))
        appraisal, multipliers = evaluate(problem, solution.decision)
        return appraisal, (solution, multipliers)

    cut, problem, appraisal, (solution, multipliers) = _at_best_cut(problem, cuts, plan)
    full = full_devices(problem, solution, decide)
    nearby = np.asarray(look_nearby(problem, solution.decision))
    cost, lossless = appraisal.cost, float(appraisal.lossless)
    why = explain(problem, solution, nearby, cost, lossless, multipliers, full)
    table = _decision_table(problem, solution.decision, cost)
    parts = table, _decision_summary(problem, cost), why
    if certify:
        bound = bound_partitions(jax.device_put(problem), solution.decision, multipliers)
        parts = *parts, _certificate_of_partitions(float(solution.objective), bound)
    return cut, solution.decision, parts


def plan_round(
    problem: RoundProblem, policy: Policy, cuts: Sequence[int]
) -> tuple[int, Decision, tuple[RenderableType, ...]]:
    """Cut and decision of any policy, and its table, its summary and a remark.

    Limits have multipliers only at an optimum of (P2).
    """

    def decide(key, problem):
        decision: Any = policy(key, problem)  # a problem on file is a pipeline's
        return _appraise(problem, decision), decision

    key = jax.random.key(0)
    compiled = compile_for_now(decide, key, problem)
    cut, problem, appraisal, decision = _at_best_cut(
        problem, cuts, lambda problem: compiled(key, problem)
    )
    why = "no multipliers of limits: they have them only at an optimum of (P2), as with dssra"
    table = _decision_table(problem, decision, appraisal.cost)
    return cut, decision, (table, _decision_summary(problem, appraisal.cost), why)


class _Appraisal(NamedTuple):
    """What a decision leads to."""

    cost: RoundCost
    lossless: Array  # divergence of the round without losses
    violations: dict[str, Array]  # which limits it breaks


_Plan = TypeVar("_Plan")


def _at_best_cut(
    problem: RoundProblem,
    cuts: Sequence[int],
    plan: Callable[[RoundProblem], tuple[_Appraisal, _Plan]],
) -> tuple[int, RoundProblem, _Appraisal, _Plan]:
    """The best number of blocks at the edge server, the problem with it, and its plan."""
    problems = [problem.with_cut(cut) for cut in cuts]
    plans = [plan(one) for one in problems]
    place = 0
    if len(cuts) > 1:
        values = [trial_value(one.cost, one.violations) for one, _ in plans]
        place = int(best_trial(stack(values)))
    return cuts[place], *jax.device_get((problems[place], *plans[place]))


_ROWS = 10
_SLIGHT = 1e-6
"""Multipliers below this part of the objective are rounding."""
_CLOSE = 1e-4
"""Relative differences below this are left to the steps on shares and powers."""
_STATUS = {
    OPTIMAL: "optimal within tolerance",
    STEP_LIMIT: "out of steps; more would bring the two closer",
    NO_CLUSTER: "no cluster can run",
    BROKEN: "a message cannot be sent in any partition that was tried",
}


def _appraise(problem: RoundProblem, decision: Decision) -> _Appraisal:
    cost = evaluate(problem, decision)
    lossless = lossless_divergence(problem.learning, problem.workload.batch, ~cost.absent)
    return _Appraisal(cost, lossless, violations(problem, decision))


def _decision_table(problem: RoundProblem, decision: Decision, cost: RoundCost) -> Table:
    """Blocks, micro-batches, latency and memory, one row a cluster."""
    assert cost.flows is not None  # a Decision has a pipeline
    flows = np.concatenate(cost.flows, axis=1)
    stage_names = _stage_names(problem.devices)
    slowest = int(np.argmax(cost.cluster_latency_s))
    rows = [
        (
            str(n) + (" (slowest)" if n == slowest else ""),
            " ".join(str(int(blocks)) for blocks in decision.segments[n]),
            str(int(decision.micro_batches[n])),
            f"{float(cost.cluster_latency_s[n]):.4g}",
            stage_names[int(np.argmax(flows[n]))],
            f"{1e3 * flows[n].max():.3g}",
            f"{bytes_to_mib(np.max(cost.memory_bytes[n])):.0f}",
            _gateway_name(decision, n),
        )
        if not cost.absent[n]
        else (str(n), "absent", *["-"] * 6)
        for n in range(problem.clusters)
    ]
    headings = ("cluster", "blocks per device", "M", "latency, s", "slowest stage", "ms")
    schedule = problem.workload.schedule
    title = "Decision" if schedule == "gpipe" else f"Decision under the schedule {schedule}"
    table = make_table((*headings, "memory, MiB", "gateway"), rows, left=0, title=title)
    table.columns[4].justify = table.columns[7].justify = "left"
    return table


def _gateway_name(decision: Decision, cluster: int) -> str:
    """The node of a cluster that talks to the base station."""
    node = 0 if decision.routes is None else int(decision.routes.gateway[cluster])
    return f"device {node}" if node else "control unit"


def _stage_names(devices: int) -> list[str]:
    """Names of the stages of the forward flow, then of the backward flow."""
    chain = ["embedding", "hop from control unit"]
    for k in range(1, devices + 1):
        chain += [f"device {k}", f"hop from device {k}"]
    forward = [*chain, "uplink", "decoder"]
    return [*forward, "downlink", *(f"{name}, backward" for name in reversed(chain))]


def _decision_summary(problem: RoundProblem, cost: RoundCost) -> str:
    """Terms of the objective (P2) and the worst of each constraint."""
    control, energy_j = problem.control, np.asarray(cost.energy_j)
    over = energy_j / np.asarray(control.energy_budget_j)
    latency = float(control.v * cost.latency_s / control.reference_latency_s)
    energy = float(np.sum(np.asarray(control.energy_queue) * over))
    divergence = float(cost.divergence / control.divergence_target)
    node = map(int, np.unravel_index(np.argmax(over), over.shape))
    return (
        f"objective {float(cost.objective):.6g} = latency {latency:.4g} + energy "
        f"{energy:.4g} + divergence {float(control.divergence_queue) * divergence:.4g}\n"
        f"latency {float(cost.latency_s):.4g} s, compute {float(cost.compute_latency_s):.4g} s; "
        f"divergence {divergence:.3g} of its target;\n"
        f"energy {energy_j.sum():.4g} J, of a control unit up to {energy_j[:, 0].max():.4g} J, "
        f"of a device up to {energy_j[:, 1:].max():.4g} J;\n"
        f"highest energy {over.max():.3g} of the budget, {_node(*node)}"
    )


def explain(
    problem: RoundProblem,
    solution: Solution,
    nearby: np.ndarray,
    cost: RoundCost,
    lossless: float,
    multipliers: LimitMultipliers,
    full: list[FullDevice],
) -> Group:
    """Certificate, and all limits that keep the objective from falling, with their multipliers.

    ``nearby`` are objectives of the decision's neighbours, ``[N, J]``, infinite if impossible.
    Computed on the host with NumPy's arrays, so that nothing is compiled.
    """
    return Group(
        _certificate(solution),
        _nearby(nearby, float(solution.objective)),
        _latency(multipliers),
        _limits(problem, solution.decision, multipliers, float(solution.objective)),
        _memory(full, multipliers),
        _energy(problem, cost, multipliers),
        _divergence(problem, cost, lossless),
    )


def _certificate(solution: Solution) -> str:
    """Gap between objective and lower bound, in words."""
    bound = float(solution.lower_bound)
    return (
        f"with these segments and micro-batches no shares and powers get below {bound:.6g}, "
        f"{_gap_percent(float(solution.objective), bound):.2g} % less:\n"
        f"{_STATUS[int(solution.status)]}"
    )


def _nearby(objectives: np.ndarray, objective: float) -> str:
    """Whether a neighbour of the decision has a smaller objective, in words."""
    count = int(np.sum(np.isfinite(objectives)))
    kind = f"{count} decisions with blocks elsewhere or another M were optimised"
    if not count or np.min(objectives) >= objective * (1.0 - _CLOSE):
        return f"no neighbour is better by {100 * _CLOSE:.2g} %: {kind}"
    cluster = int(np.argmin(np.min(objectives, axis=1)))
    less = _gap_percent(objective, float(np.min(objectives)))
    return f"a neighbour in cluster {cluster} is better by {less:.2g} %: {kind}"


def _certificate_of_partitions(objective: float, bound: PartitionBound) -> str:
    """Gap between objective and lower bound over all partitions, in words."""
    way = "searched" if bound.exhaustive else "bounded"
    count = f"{bound.partitions:,}" if bound.exhaustive else f"{bound.partitions:.2g}"
    return (
        f"no decision gets below {bound.lower_bound:.6g}, "
        f"{_gap_percent(objective, bound.lower_bound):.2g} % less:\n"
        f"all {count} choices of segments and micro-batches were {way}"
    )


def _gap_percent(objective: float, bound: float) -> float:
    return 100 * (objective - bound) / objective if objective > 0 else 0.0


def _latency(multipliers: LimitMultipliers) -> str:
    """Clusters that set the latency of the round."""
    if multipliers.latency <= 0:
        return "latency: free, since V is 0"
    part = multipliers.cluster_latency / multipliers.latency
    listed = [(n, part[n]) for n in np.argsort(-part) if part[n] >= 0.01]
    shares = ", ".join(f"cluster {n} {100 * share:.0f} %" for n, share in listed)
    return f"latency: a second of the round costs {multipliers.latency:.4g}, shared by {shares}"


def _limits(problem, decision: Decision, multipliers: LimitMultipliers, objective: float) -> Table:
    """Binding limits on shares and powers, largest multiplier first."""
    rows = [(f"D2D band of cluster {n}", float(own)) for n, own in enumerate(multipliers.d2d_band)]
    rows.append(("D2E band", float(multipliers.d2e_band)))
    d2d_max_w, d2e_max_w = problem.radio.d2d_power_max_w, problem.radio.d2e_power_max_w
    for (n, i), own in np.ndenumerate(multipliers.d2d_power):
        rows.append((f"D2D power {d2d_max_w[n, i]:.3g} W, {_node(n, i)}", float(own)))
    for n, own in enumerate(multipliers.d2e_power):
        rows.append((f"D2E power {d2e_max_w[n]:.3g} W, cluster {n}", float(own)))
    binding = sorted((row for row in rows if row[1] > _SLIGHT * objective), key=lambda row: -row[1])
    cells = [
        (name, f"{own:.3g}", f"{0.01 * own:.3g}", _as_ms(0.01 * own, multipliers))
        for name, own in binding[:_ROWS]
    ]
    captions = _unlisted(binding, "binds"), _left_empty(decision, multipliers)
    return make_table(
        ("limit", "multiplier", "1 % more saves", "as latency, ms"),
        cells,
        title="Limits that bind",
        caption="; ".join(filter(None, captions)) or None,
    )


def _left_empty(decision: Decision, multipliers: LimitMultipliers) -> str:
    """Bands with an empty part at the optimum."""
    runs = np.sum(np.asarray(decision.segments), axis=1) > 0
    used = np.sum(np.asarray(decision.d2d_share), axis=1)
    found = [
        f"cluster {n} {100 * (1 - used[n]):.2g} %"
        for n in np.flatnonzero(runs & (multipliers.d2d_band == 0) & (used < 1 - 1e-3))
    ]
    d2e_used = float(np.sum(decision.d2e_share))
    if multipliers.d2e_band == 0 and d2e_used < 1 - 1e-3:
        found.append(f"D2E {100 * (1 - d2e_used):.2g} %")
    return "optimum leaves part of the band empty: " + ", ".join(found) if found else ""


def _memory(full: list[FullDevice], multipliers: LimitMultipliers) -> RenderableType:
    """Devices whose memory limits the objective."""
    if not full:
        return "memory: no device is full"
    matter = [device for device in full if device.saved > 0]
    if not matter:
        devices = "1 device is" if len(full) == 1 else f"{len(full)} devices are"
        return f"memory: {devices} full, and memory for one block more saves nothing"
    rows = [
        (_node(cluster, device), str(blocks), f"{saved:.3g}", _as_ms(saved, multipliers))
        for cluster, device, blocks, saved in matter[:_ROWS]
    ]
    idle = len(full) - len(matter)
    are = "is" if idle == 1 else "are"
    others = f"{idle} more {are} full; more memory would save nothing there" if idle else None
    return make_table(
        ("device", "blocks", "one more saves", "as latency, ms"),
        rows,
        title="Full devices",
        caption="; ".join(filter(None, (_unlisted(matter, "saves"), others))) or None,
    )


def _energy(problem, cost: RoundCost, multipliers: LimitMultipliers) -> RenderableType:
    """Nodes whose energy has a cost, by their terms of the objective."""
    queue = np.asarray(problem.control.energy_queue)
    budget_j = np.asarray(problem.control.energy_budget_j)
    energy_j = np.asarray(cost.energy_j)
    term = queue / budget_j * energy_j
    order = np.argsort(-term, axis=None)
    nodes = [tuple(int(i) for i in np.unravel_index(flat, term.shape)) for flat in order]
    nodes = [node for node in nodes if term[node] > 0]
    if not nodes:
        return "energy: the queues of all nodes that spend some are empty, so it is free this round"
    rows = []
    for node in nodes[:_ROWS]:
        cost_per_j, share = queue[node] / budget_j[node], 100 * energy_j[node] / budget_j[node]
        in_s = f"{cost_per_j / multipliers.latency:.3g}" if multipliers.latency > 0 else "-"
        spent = (f"{number:.3g}" for number in (energy_j[node], share, term[node]))
        rows.append((_node(*node), f"{queue[node]:.3g}", f"{cost_per_j:.3g}", in_s, *spent))
    headings = ("node", "a budget costs", "a J costs", "in s", "spends, J", "of budget, %", "adds")
    return make_table(headings, rows, title="Energy", caption=_unlisted(nodes, "adds"))


def _divergence(problem, cost: RoundCost, lossless: float) -> str:
    """Cost of the divergence, and its part that is due to losses."""
    control = problem.control
    part = float(cost.divergence / control.divergence_target)
    free_part = lossless / float(control.divergence_target)
    queue = float(control.divergence_queue)
    worst = int(np.argmax(cost.loss_probability))
    return (
        f"divergence: a whole target costs {queue:.4g}; {part:.3g} of it adds {queue * part:.4g}, "
        f"{queue * (part - free_part):.4g} for losses\n(most in cluster {worst}: "
        f"{100 * float(cost.loss_probability[worst]):.2g} % of its micro-batches)"
    )


def _node(cluster: int, node: int) -> str:
    return f"cluster {cluster} " + (f"device {node}" if node else "control unit")


def _as_ms(saved: float, multipliers: LimitMultipliers) -> str:
    return f"{1e3 * saved / multipliers.latency:.3g}" if multipliers.latency > 0 else "-"


def _unlisted(rows: list, verb: str) -> str | None:
    if not rows:
        return f"nothing {verb}"
    more = len(rows) - _ROWS
    return f"{more} more, each of which {verb} less" if more > 0 else None
