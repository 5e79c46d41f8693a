"""Let a policy decide for a network on file.

    collapipe plan --instance=NET.json --policy=dssra --out=DECISION.json

Prints the decision of every cluster; for dssra, which minimises (P2), also its certificate, a
comparison with its neighbours and the multipliers of its limits. "As latency" divides by the cost
of a second. With --certify a lower bound over all partitions shows how far the decision
is from the best one.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from rich.console import RenderableType

from collapipe_jax.cli.explanation import (
    appraise,
    certificate_of_partitions,
    decision_summary,
    decision_table,
    explain,
)
from collapipe_jax.cli.options import make_parser
from collapipe_jax.core.compilation import compile_for_now, compile_together
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.core.tables import console_for_tables
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.feasibility import can_run
from collapipe_jax.edge.cost.latency import LatencyParts
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.round_cost import Flows, RoundCost
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.policies.dssra import DEFAULT_SEARCH, MOST_STARTS, dssra
from collapipe_jax.edge.policies.registry import POLICIES, Policy, make_policy
from collapipe_jax.edge.solver.allocate import Solution
from collapipe_jax.edge.solver.limit_multipliers import (
    LimitMultipliers,
    full_devices,
    limit_multipliers,
)
from collapipe_jax.edge.solver.neighbours import neighbour_objectives
from collapipe_jax.edge.solver.partition_bound import bound_partitions
from collapipe_jax.runs.documents import read_network, write_decision

_WIDTH = 100
_SEARCH = DEFAULT_SEARCH._replace(
    allocation_steps=(*DEFAULT_SEARCH.allocation_steps[:-1], 200), starts=MOST_STARTS
)
"""A network alone has time for all starts, and for more steps at the end."""


def main(argv: Sequence[str]) -> None:
    """Read the network, decide, write the decision and explain it."""
    parser = make_parser(__doc__, "instance", "out", micro_batches=(8, "for policies that fix it"))
    offered = [name for name, entry in POLICIES.items() if not entry.by_clients]
    parser.add_argument("--policy", required=True, help=f"{', '.join(offered)}, or one's own")
    parser.add_argument("--certify", action="store_true", help="bound (P2) over all partitions")
    options = parser.parse_args(argv)

    require_positive(micro_batches=options.micro_batches)
    policy = make_policy(options.policy, options.micro_batches)
    if options.certify and options.policy != "dssra":
        remedy = "Certify decisions of dssra, the policy that minimises (P2)"
        raise InputError("--certify", options.policy, "not the policy to certify", remedy)
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
        decision, parts = _plan_and_explain(problem, options.micro_batches, options.certify)
    else:
        decision, parts = _plan(problem, policy)
    write_decision(options.out, decision, options.policy)
    console.print(*parts, sep="\n", highlight=False)
    console.print(f"written: {options.out}", highlight=False, soft_wrap=True)


def _plan_and_explain(
    problem: RoundProblem, micro_batches: int, certify: bool
) -> tuple[Decision, tuple[RenderableType, ...]]:
    """The decision of the policy that minimises (P2), with its explanation."""
    on_device, problem = problem, jax.device_get(problem)
    some_decision = jax.eval_shape(lambda problem: static_pipeline(problem, micro_batches), problem)
    decide, evaluate, look_nearby = compile_together(
        (lambda problem: dssra(problem, micro_batches, _SEARCH), problem),
        (lambda *round_: (appraise(*round_), limit_multipliers(*round_)), problem, some_decision),
        (neighbour_objectives, problem, some_decision),
        kept_as=f"plan-{micro_batches}",
        returns=(Solution, Decision, RoundCost, LatencyParts, Flows, LimitMultipliers),
    )
    solution = jax.device_get(decide(problem))
    (cost, lossless), multipliers = jax.device_get(evaluate(problem, solution.decision))
    full = full_devices(problem, solution, decide)
    nearby = np.asarray(look_nearby(problem, solution.decision))
    why = explain(problem, solution, nearby, cost, float(lossless), multipliers, full)
    table = decision_table(problem, solution.decision, cost)
    parts = table, decision_summary(problem, cost), why
    if certify:
        bound = bound_partitions(on_device, solution.decision, multipliers)
        parts = *parts, certificate_of_partitions(float(solution.objective), bound)
    return solution.decision, parts


def _plan(problem: RoundProblem, policy: Policy) -> tuple[Decision, tuple[RenderableType, ...]]:
    """The decision of any other policy.

    Limits have multipliers only at an optimum of (P2).
    """

    def decide(key, problem):
        decision: Any = policy(key, problem)  # a problem on file is a pipeline's
        return decision, appraise(problem, decision)[0]

    arguments = jax.random.key(0), problem
    decision, cost = jax.device_get(compile_for_now(decide, *arguments)(*arguments))
    problem = jax.device_get(problem)
    why = "no multipliers of limits: they have them only at an optimum of (P2), as with dssra"
    table = decision_table(problem, decision, cost)
    return decision, (table, decision_summary(problem, cost), why)
