"""Random networks on which the solver is measured: hard, but not hopeless.

Drawn from the default configuration and then made harder: memory that forces splits, queues
of all lengths, Rayleigh fading, and outage thresholds at which losses matter.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.config.system import build_system_params
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.simulation.environment import Environment, initial_state, observe
from collapipe_jax.simulation.system import SystemParams, sample_system
from collapipe_jax.units import db_to_linear
from configs import default

_BATCH = 32
_CHOICES = (1, 2, 4, 8, 16, 32)


class NetworkShape(NamedTuple):
    """Sizes of a network, which fix the shapes of its problem."""

    clusters: int
    devices: int
    blocks: int


SMALL_SHAPES = tuple(NetworkShape(2, devices, blocks) for devices in (2, 3) for blocks in (4, 5, 6))
"""Networks small enough for exhaustive search."""

MIXED_SHAPES = (*SMALL_SHAPES, NetworkShape(3, 4, 8))
"""Networks on which shares and powers are compared."""

LARGE_SHAPE = NetworkShape(4, 5, 12)
"""The network of stated speeds, with six numbers of micro-batches to choose from."""


def sample_problems(seed: int, count: int, shape: NetworkShape) -> RoundProblem:
    """Random problems of one shape.

    Args:
      seed: of the whole stack; problem ``i`` does not depend on ``count``.
      count: how many.
      shape: their shape.

    Returns:
      Every leaf with a leading axis of ``count``.
    """
    params = _params(shape)
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(count))
    return jax.jit(jax.vmap(lambda key: _sample_problem(key, params)))(keys)


def _params(shape: NetworkShape) -> SystemParams:
    config = default.get_config()
    config.network.clusters, config.network.devices = shape.clusters, shape.devices
    config.model.encoder_blocks = shape.blocks
    config.training.update({"batch": _BATCH, "micro_batch_choices": _CHOICES})
    config.devices.memory_share = 1.0  # the static pipeline, its latency the unit, always fits
    config.dynamics.update({"d2e_rician_factor": 0.0, "d2d_rician_factor": 0.0})
    return build_system_params(config)


def _sample_problem(key: Array, params: SystemParams) -> RoundProblem:
    """One network in one round."""
    system_key, state_key, memory_key, queue_key, radio_key = jax.random.split(key, 5)
    system = sample_system(system_key, params)
    problem = observe(Environment(system, initial_state(state_key, system), state_key))
    return problem.replace(
        compute=problem.compute.replace(memory_bytes=_tight_memory(memory_key, problem)),
        control=_with_queues(queue_key, problem).control,
        radio=_with_losses(radio_key, problem).radio,
    )


def _tight_memory(key: Array, problem: RoundProblem) -> Array:
    """Memory for 1.2 to 2.5 encoders in a cluster, and for no whole one on a device."""
    work, (clusters, devices) = problem.workload, problem.compute.memory_bytes.shape
    total_key, split_key = jax.random.split(key)
    total = jax.random.uniform(total_key, (clusters, 1), minval=1.2, maxval=2.5)
    split = jax.random.uniform(split_key, (clusters, devices), minval=0.5, maxval=1.5)
    part = total * split / jnp.sum(split, axis=1, keepdims=True)
    blocks = jnp.minimum(jnp.ceil(work.blocks * part), work.blocks - 1)
    block_bytes = work.block_static_bytes + work.batch * work.block_kept_bytes
    return 1.001 * (blocks * block_bytes + work.batch * work.block_working_bytes)


def _with_queues(key: Array, problem: RoundProblem) -> RoundProblem:
    """Energy queues over three decades, a quarter of them empty, and one of divergence."""
    control = problem.control
    scale_key, length_key, empty_key, divergence_key = jax.random.split(key, 4)
    scale = 10.0 ** jax.random.uniform(scale_key, minval=-1.0, maxval=2.0)
    energy = scale * jax.random.exponential(length_key, control.energy_queue.shape)
    energy = jnp.where(jax.random.bernoulli(empty_key, 0.25, energy.shape), 0.0, energy)
    divergence = 10.0 ** jax.random.uniform(divergence_key, minval=-1.0, maxval=1.5)
    return problem.replace(
        control=control.replace(energy_queue=energy, divergence_queue=divergence)
    )


def _with_losses(key: Array, problem: RoundProblem) -> RoundProblem:
    """An outage threshold between the most robust format and 16-QAM's."""
    threshold_db = jax.random.uniform(key, minval=-6.7, maxval=8.0)
    return problem.replace(radio=problem.radio.replace(outage_threshold=db_to_linear(threshold_db)))


def pick(tree, index: int):
    """One network of a stack."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def in_double(tree):
    """The same tree, its floating-point leaves in double precision."""

    def widen(leaf):
        leaf = np.asarray(leaf)
        return jnp.asarray(leaf.astype(float) if leaf.dtype.kind == "f" else leaf)

    return jax.tree.map(widen, tree)
