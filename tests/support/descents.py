"""Long descents on random problems in double precision, with a trailing batch axis."""

import numpy as np

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.decision import Allocation
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.solver.allocate import descend_jointly
from collapipe_jax.edge.solver.limits import to_logs
from collapipe_jax.edge.solver.smooth_maximum import initial_weights
from collapipe_jax.edge.solver.smooth_objective import certify
from support.random_problems import random_rounds, to_batch_last

CLUSTERS, DEVICES, BLOCKS, BATCH = 2, 3, 5, 12
NODES = DEVICES + 1
LONG = 2500
"""Steps after which hardly a descent is on its way."""


def draw():
    """Problems and decisions, where these start, and who is active.

    In some a cluster sits out or a device idles.
    """

    def sits_out(index):
        return (1,) if index % 4 == 3 else ()

    rounds = random_rounds(BATCH, CLUSTERS, DEVICES, BLOCKS, sits_out, seed=30)
    problem, decision = to_batch_last(rounds)
    logs, weights, active = _start(problem, decision)
    return problem, decision, logs, weights, np.asarray(active)


@quick_jit
def _start(problem, decision):
    fixed = fix_decision(problem, decision)
    return to_logs(fixed, decision), initial_weights(fixed), fixed.active


@quick_jit
def descend_together(problem, decision, logs, weights, steps):
    """Where a descent of all clusters ends, and its certificate there."""
    fixed = fix_decision(problem, decision)
    end = descend_jointly(fixed, logs, weights, steps, with_evaluation=True)
    return end, certify(end.evaluation, end.logs, fixed.chain.used)


def anywhere(seed, size):
    """Logarithms of shares and powers within the limits and beyond them."""
    rng = np.random.default_rng(seed)
    shapes = [(NODES, CLUSTERS, BATCH)] * 2 + [(CLUSTERS, BATCH)] * 2
    return Allocation(*(rng.normal(-size / 2, size, shape) for shape in shapes))
