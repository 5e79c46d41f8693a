"""Price a decision on a network, both on file.

    python -m experiments.price --instance=NET.json --decision=DECISION.json --out=COST.json

Add ``--x64`` to compute in double precision. Exit status 0 whether the decision is
feasible or not (the cost says so), 2 if a file is wrong.
"""

import argparse
import sys
from collections.abc import Sequence

import jax

from collapipe_jax.command_line import run_reporting_errors
from collapipe_jax.cost.feasibility import violations
from collapipe_jax.cost.round import price
from collapipe_jax.files.documents import read_decision, read_network, write_cost


def main(argv: Sequence[str]) -> None:
    """Read the documents, price the decision, write its cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instance", required=True, help="network on file")
    parser.add_argument("--decision", required=True, help="decision on file")
    parser.add_argument("--out", required=True, help="where to write the cost")
    parser.add_argument("--x64", action="store_true", help="compute in double precision")
    options = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", options.x64)

    problem = read_network(options.instance)
    decision = read_decision(options.decision, problem)
    cost = jax.jit(price)(problem, decision)
    broken = jax.jit(violations)(problem, decision)
    write_cost(options.out, cost, [name for name, is_broken in broken.items() if is_broken])
    print(f"latency {float(cost.latency_s):.6g} s, objective {float(cost.objective):.6g}")
    print(f"written: {options.out}")


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main, sys.argv[1:]))
