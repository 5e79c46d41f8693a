"""Documents with other numbers: each is refused, or priced as the reference prices it.

``COLLAPIPE_FUZZ=5000`` raises the number of cases.
"""

import json
import os
import warnings

import jax
import numpy as np
from support import ROOT
from support.mutations import mutate_numbers, pick
from support.reference_cost import NUMBERS, reference_cost, reference_violations

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.feasibility import violations
from collapipe_jax.runs.documents import read_decision, read_network

CASES = int(os.environ.get("COLLAPIPE_FUZZ", "60"))
BEYOND = 1e30
"""Costs above it are all the same: a message that arrives in no time that anyone waits."""
EXAMPLES = ROOT / "docs" / "examples"
priced = jax.jit(
    lambda problem, decision: (evaluate(problem, decision), violations(problem, decision))
)


def differences(network, decision, path, rtol):
    """Names of a cost that differ from the reference; none where a document is refused."""
    path.write_text(json.dumps(network))
    try:
        problem = read_network(path)
        path.write_text(json.dumps(decision))
        read = read_decision(path, problem)
    except InputError:
        return None
    cost, broken = jax.device_get(priced(problem, read))
    with np.errstate(all="ignore"):
        expected = reference_cost(arrays(network), arrays(decision))
        limits = reference_violations(arrays(network), arrays(decision))
    found = []
    for name in NUMBERS:
        got, right = np.asarray(getattr(cost, name), float), np.asarray(expected[name], float)
        if not np.allclose(np.minimum(got, BEYOND), np.minimum(right, BEYOND), rtol, atol=1e-30):
            found.append((name, got.tolist(), right.tolist()))
    names = {name for name, is_broken in broken.items() if is_broken}
    return found + ([("violations", names, limits)] if names != limits else [])


def arrays(document):
    """Lists as arrays, as the reference reads them, and what 64 bits cannot multiply as reals."""
    return {
        key: arrays(value)
        if isinstance(value, dict)
        else np.array(value)
        if isinstance(value, list)
        else float(value)
        if isinstance(value, int) and value > 2**20
        else value
        for key, value in document.items()
    }


def test_other_numbers_are_refused_or_priced_as_by_the_reference(tmp_path):
    wrong, refused = [], 0
    whole = [
        json.loads((EXAMPLES / f"edge.{name}.json").read_text()) for name in ("network", "decision")
    ]
    for case in range(CASES):
        rng = np.random.default_rng([7, case])
        network, decision = whole
        if rng.random() < 0.5:
            decision = mutate_numbers(rng, decision)
        else:
            name = pick(rng, ("workload", "radio", "compute", "learning", "control"))
            network = network | {name: mutate_numbers(rng, network[name])}
        with warnings.catch_warnings(), jax.enable_x64(True):
            warnings.simplefilter("ignore")
            found = differences(network, decision, tmp_path / "document.json", 1e-6)
        refused += found is None
        if found:
            wrong.append(f"case {case}: {found}")
    print(f"{CASES} cases, {refused} refused, {len(wrong)} wrong")
    assert not wrong, "\n".join(wrong[:10])
    assert 0 < refused < CASES
