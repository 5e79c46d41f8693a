"""Let a policy decide for a network on file.

    python -m experiments.plan --instance=NET.json --policy=dssra --out=DECISION.json

Prints what was chosen for every cluster and what limits it.
"""

import argparse
import sys
from collections.abc import Sequence

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.latency import backward_flow_s, forward_flow_s
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.round import RoundCost, price
from collapipe_jax.documents import read_network, write_decision
from collapipe_jax.errors import InputError
from collapipe_jax.scheduling.feasibility import can_run
from collapipe_jax.scheduling.policies import POLICIES, make_policy
from collapipe_jax.units import bytes_to_mib


def main(argv: Sequence[str]) -> None:
    """Read the network, decide, write the decision and say what it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instance", required=True, help="network on file")
    parser.add_argument("--policy", required=True, help=", ".join(POLICIES))
    parser.add_argument("--out", required=True, help="where to write the decision")
    parser.add_argument(
        "--micro-batches", type=int, default=8, help="for policies that fix it (default 8)"
    )
    options = parser.parse_args(argv)

    policy = make_policy(options.policy, options.micro_batches)
    problem = read_network(options.instance)
    if not np.any(can_run(problem)):
        raise InputError(
            "compute.memory_bytes",
            np.asarray(problem.compute.memory_bytes).tolist(),
            f"no cluster can ever hold the {problem.workload.blocks} encoder blocks",
            "Raise the memory or shrink the model",
        )
    decision, cost = jax.jit(lambda key, problem: _decide(policy, key, problem))(
        jax.random.key(0), problem
    )
    write_decision(options.out, decision, options.policy)
    console = Console()
    console.print(_table(problem, decision, cost))
    console.print(_summary(problem, cost))
    console.print(f"written: {options.out}")


def _decide(policy, key, problem: RoundProblem) -> tuple[Decision, RoundCost]:
    decision = policy(key, problem)
    return decision, price(problem, decision)


def _table(problem: RoundProblem, decision: Decision, cost: RoundCost) -> Table:
    """One row a cluster."""
    table = Table(title="Decision")
    for name in ("cluster", "blocks per device", "M", "latency s", "slowest stage", "memory MiB"):
        table.add_column(name, justify="left" if name == "slowest stage" else "right")
    stage_names = _stage_names(problem.devices)
    flows = np.concatenate([forward_flow_s(cost.stages), backward_flow_s(cost.stages)], axis=1)
    slowest = int(np.argmax(cost.cluster_latency_s))
    for n in range(problem.clusters):
        if cost.absent[n]:
            table.add_row(str(n), "sits out", "-", "-", "-", "-")
            continue
        bottleneck = stage_names[int(np.argmax(flows[n]))]
        table.add_row(
            str(n) + (" (slowest)" if n == slowest else ""),
            " ".join(str(int(blocks)) for blocks in decision.segments[n]),
            str(int(decision.micro_batches[n])),
            f"{float(cost.cluster_latency_s[n]):.3g}",
            f"{bottleneck}, {flows[n].max():.3g} s a micro-batch",
            f"{float(bytes_to_mib(np.max(cost.memory_bytes[n]))):.0f}",
        )
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
    control = problem.control
    latency = float(control.v * cost.latency_s / control.reference_latency_s)
    over = np.asarray(cost.energy_j / control.energy_budget_j)
    energy = float(np.sum(np.asarray(control.energy_queue) * over))
    divergence = float(control.divergence_queue * cost.divergence / control.divergence_target)
    node = np.unravel_index(np.argmax(over), over.shape)
    return (
        f"objective {float(cost.objective):.6g} = latency {latency:.4g} + energy {energy:.4g} + "
        f"divergence {divergence:.4g}\n"
        f"latency {float(cost.latency_s):.4g} s, compute {float(cost.compute_latency_s):.4g} s; "
        f"divergence {float(cost.divergence / control.divergence_target):.3g} of its target; "
        f"highest energy {over.max():.3g} of the budget, cluster {node[0]} node {node[1]}"
    )


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
