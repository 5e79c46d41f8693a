"""Evaluate the cost of a decision on a network, both on file.

    collapipe price --instance=NET.json --decision=DECISION.json --out=COST.json

Add ``--x64`` to compute in double precision. Exit status 0 whether the decision is
feasible or not (the cost says so), 2 if a file is wrong.
"""

from collections.abc import Sequence

import jax

from collapipe_jax.cli.options import make_parser
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import violations
from collapipe_jax.runs.documents import read_cut, read_decision, read_network, write_cost


def main(argv: Sequence[str]) -> None:
    """Read the documents, evaluate the decision, write its cost."""
    parser = make_parser(__doc__, "instance", "decision", "out")
    parser.add_argument("--x64", action="store_true", help="compute in double precision")
    options = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", options.x64)

    problem = read_cut(options.decision, read_network(options.instance))
    decision = read_decision(options.decision, problem)
    cost = jax.jit(evaluate)(problem, decision)
    broken = jax.jit(violations)(problem, decision)
    write_cost(options.out, cost, [name for name, is_broken in broken.items() if is_broken])
    print(f"latency {float(cost.latency_s):.6g} s, objective {float(cost.objective):.6g}")
    print(f"written: {options.out}")
