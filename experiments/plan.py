"""Let a policy decide for a network on file.

    python -m experiments.plan --instance=NET.json --policy=dssra --out=DECISION.json

Prints what was chosen for every cluster and what limits it, and for a policy that follows
(P2) what each limit costs. As latency means divided by the price of a second.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.table import Table

from collapipe_jax.allocation.limit_prices import full_devices, limit_prices
from collapipe_jax.command_line import (
    console_for_tables,
    make_parser,
    make_table,
    run_reporting_errors,
)
from collapipe_jax.compilation import compile_for_now, compile_together
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.divergence import loss_free_divergence
from collapipe_jax.cost.feasibility import can_run
from collapipe_jax.cost.latency import backward_flow_s, forward_flow_s
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import price
from collapipe_jax.cost.round_cost import RoundCost
from collapipe_jax.cost.static_pipeline import static_pipeline
from collapipe_jax.errors import InputError
from collapipe_jax.files.documents import read_network, write_decision
from collapipe_jax.policies.dssra import dssra
from collapipe_jax.policies.explanation import explain, terms
from collapipe_jax.policies.registry import Policy, make_policy
from collapipe_jax.units import bytes_to_mib

_WIDTH = 100


def main(argv: Sequence[str]) -> None:
    """Read the network, decide, write the decision and explain it."""
    parser = make_parser(
        __doc__, "instance", "policy", "out", micro_batches=(8, "for policies that fix it")
    )
    options = parser.parse_args(argv)

    policy = make_policy(options.policy, options.micro_batches)
    problem = read_network(options.instance)
    if not np.any(compile_for_now(can_run, problem)(problem)):
        raise InputError(
            "compute.memory_bytes",
            np.asarray(problem.compute.memory_bytes).tolist(),
            f"no cluster can ever hold the {problem.workload.blocks} encoder blocks",
            "Raise the memory or shrink the model",
        )
    console = console_for_tables(_WIDTH)
    if options.policy == "dssra":
        decision, parts = _plan_and_explain(problem, options.micro_batches)
    else:
        decision, parts = _plan(problem, policy)
    write_decision(options.out, decision, options.policy)
    console.print(*parts, sep="\n", highlight=False)
    console.print(f"written: {options.out}", highlight=False, soft_wrap=True)


class _Appraisal(NamedTuple):
    """What a decision comes to.

    Attributes:
      cost: its price.
      flows_s: stages of the forward flow and of the backward flow, ``[N, 4 K + 7]``.
      loss_free: divergence of the round if nothing were lost.
    """

    cost: RoundCost
    flows_s: Array
    loss_free: Array


def _appraise(problem: RoundProblem, decision: Decision) -> _Appraisal:
    cost = price(problem, decision)
    flows_s = forward_flow_s(cost.stages), backward_flow_s(cost.stages)
    loss_free = loss_free_divergence(problem.learning, problem.workload.batch, ~cost.absent)
    return _Appraisal(cost, jnp.concatenate(flows_s, axis=1), loss_free)


def _plan_and_explain(problem: RoundProblem, micro_batches: int):
    """The decision of the policy that follows (P2), and why it is as it is."""
    problem = jax.device_get(problem)
    some_decision = jax.eval_shape(lambda problem: static_pipeline(problem, micro_batches), problem)
    decide, appraise = compile_together(
        (lambda problem: dssra(problem, micro_batches), problem),
        (lambda *round_: (_appraise(*round_), limit_prices(*round_)), problem, some_decision),
    )
    tuned = jax.device_get(decide(problem))
    found, prices = jax.device_get(appraise(problem, tuned.decision))
    full = full_devices(problem, tuned, decide)
    why = explain(problem, tuned, found.cost, prices, full, float(found.loss_free))
    return tuned.decision, (*_what(problem, tuned.decision, found), why)


def _plan(problem: RoundProblem, policy: Policy):
    """The decision of any other policy.

    Limits have prices only where shares and powers are the best within them; the decision
    of a policy that follows another rule has slopes left that no limit explains.
    """

    def decide(key, problem):
        decision = policy(key, problem)
        return decision, _appraise(problem, decision)

    arguments = jax.random.key(0), problem
    decide = compile_for_now(decide, *arguments)
    decision, found = jax.device_get(decide(*arguments))
    why = "no prices of limits: they have one only where (P2) is at its least, as with dssra"
    return decision, (*_what(jax.device_get(problem), decision, found), why)


def _what(problem, decision: Decision, found: _Appraisal) -> tuple[Table, str]:
    return _table(problem, decision, found), _summary(problem, found.cost)


def _table(problem: RoundProblem, decision: Decision, found: _Appraisal) -> Table:
    """One row a cluster."""
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
            f"{float(bytes_to_mib(np.max(cost.memory_bytes[n]))):.0f}",
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


def _summary(problem: RoundProblem, cost: RoundCost) -> str:
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


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
