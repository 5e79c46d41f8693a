"""Stacks of random problems of one shape, for tests that sweep in one compiled call."""

import jax
import numpy as np

from collapipe_jax.edge.cost.problem import ModelEnds
from support.random_networks import random_decision, random_network
from support.structs import as_decision, as_problem

ENDS = {"decoder_param_bits": 3e5, "embedding_static_bytes": 4e4, "decoder_static_bytes": 7e4}


def with_ends(problem):
    """The problem with sizes of embedding and decoder."""
    ends = ModelEnds(**{name: jax.device_put(np.asarray(value)) for name, value in ENDS.items()})
    return problem.replace(workload=problem.workload.replace(ends=ends))


def stack(problems):
    """Problems of one shape with a leading axis."""
    # By NumPy here and below: of every shape JAX would compile a program.
    return jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *problems)


def _in_numpy(value):
    """The array as JAX would hold it: all networks of a stack go to the device at once."""
    return value.astype(jax.dtypes.canonicalize_dtype(value.dtype))


def pick(tree, index):
    """One element of a stack."""
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[index]), tree)


def to_batch_last(tree):
    """A stack with its problems along the last axis."""
    return jax.tree.map(lambda leaf: jax.device_put(np.moveaxis(np.asarray(leaf), 0, -1)), tree)


def random_problems(count, clusters, devices, blocks, change=None, seed=0):
    """Random networks, stacked; ``change(index, rng, network)`` edits one in place."""
    problems = []
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        network = random_network(rng, clusters, devices, blocks)
        if change is not None:
            change(index, rng, network)
        problems.append(as_problem(network, put=_in_numpy))
    return stack(problems)


def roomy(_, __, network):
    """Room for every partition."""
    network["compute"]["memory_bytes"] *= 1e3


def with_unusable_links(index, rng, network):
    """Absent devices, and a part of the gains 0, near 1e-25 or anything under 1."""
    gain, memory = network["radio"]["d2d_gain"], network["compute"]["memory_bytes"]
    exponent = rng.uniform(*((-27, -22), (-38, 0))[index % 2], gain.shape)
    other = 10.0**exponent if index % 3 else 0.0 * gain
    gain[:] = np.where(rng.uniform(size=gain.shape) < rng.uniform(0.05, 0.5), other, gain)
    memory[rng.uniform(size=memory.shape) < 0.15] = 0


def plain_problems(count, clusters, devices, blocks, seed=0):
    """Networks with room for every partition."""
    return random_problems(count, clusters, devices, blocks, roomy, seed)


def random_rounds(count, clusters, devices, blocks, sits_out, seed):
    """Random networks with a decision each, stacked; idle devices among them.

    ``sits_out(index)`` are the clusters that sit out.
    """
    problems, decisions = [], []
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        network = random_network(rng, clusters, devices, blocks)
        decision = random_decision(rng, network, sits_out(index), skipped=index % 3)
        decisions.append(as_decision(decision))
        problems.append(as_problem(network, put=_in_numpy))
    return stack(problems), stack(decisions)
