"""Devices of a cluster that usable links join, from which a search can start."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from collapipe_jax.edge.cost.chain import gain_to_next
from collapipe_jax.edge.cost.memory import set_capacity
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network.channel import d2d_sinr
from collapipe_jax.edge.solver.active_sets import candidate_sets
from collapipe_jax.edge.solver.candidates import with_candidate_axis

LEAST_USEFUL_SNR = 1e-5
"""Some hundreds of bits a second over 20 MHz."""


def has_useless_link(problem: RoundProblem) -> Bool[Array, " R"]:
    """Whether a link between two nodes of a cluster carries next to nothing at full power."""
    memory_bytes = jnp.swapaxes(problem.compute.memory_bytes, 0, 1)
    present = jnp.concatenate([jnp.ones_like(memory_bytes[:1], bool), memory_bytes > 0])
    others = ~jnp.eye(len(present), dtype=bool)[:, :, None, None]
    pairs = present[:, None] & present[None] & others
    return jnp.any(pairs & (_full_snr(problem) < LEAST_USEFUL_SNR), axis=(0, 1, 2))


def linked_devices(problem: RoundProblem) -> Bool[Array, "2 N K R"]:
    """Two sets of devices of every cluster with room for the encoder; all where none has.

    The first has as many devices as messages can reach. The second has the best weakest link.
    """
    memory_bytes = jnp.swapaxes(problem.compute.memory_bytes, 0, 1)
    wide, memory_bytes = with_candidate_axis((problem, memory_bytes))
    snr = _full_snr(problem)
    members = candidate_sets(-jnp.minimum(snr[0, 1:], snr[1:, 0])[None])  # [K, N, A, R]
    weakest = _weakest_link(snr, members)
    most_micro_batches = jnp.max(wide.workload.micro_batch_choices, axis=0)
    capacity = set_capacity(wide.workload, memory_bytes, most_micro_batches, members, axis=0)
    has_room = jnp.sum(jnp.where(members, capacity, 0), axis=0) >= wide.workload.blocks
    size = jnp.where(weakest >= LEAST_USEFUL_SNR, jnp.sum(members, axis=0), 0)
    scores = jnp.stack([size + weakest / (1.0 + weakest), weakest])
    best = jnp.argmax(jnp.where(has_room, scores, -1.0), axis=2)[:, None, :, None]
    chosen = jnp.take_along_axis(members[None], best, axis=3)[:, :, :, 0]
    return jnp.swapaxes(chosen | ~jnp.any(has_room, axis=1), 1, 2)


def _full_snr(problem: RoundProblem) -> Float[Array, "J J N R"]:
    """SNR of every pair of a cluster, sender first, at full power on the whole band."""
    power_w = jnp.swapaxes(problem.radio.d2d_power_max_w, 0, 1)[:, None]
    gain = jnp.moveaxis(problem.radio.d2d_gain, 0, 2)
    return d2d_sinr(problem.radio, power_w, gain, jnp.ones(()), jnp.zeros(()))


def _weakest_link(
    snr: Float[Array, "J J N R"], members: Bool[Array, "K N A R"]
) -> Float[Array, "N A R"]:
    """Least SNR of the messages of every set: along the chain, and of its blocks that move."""
    active = jnp.concatenate([jnp.ones_like(members[:1]), members])
    wide = with_candidate_axis(snr)
    hops = gain_to_next(wide, active), gain_to_next(jnp.swapaxes(wide, 0, 1), active)
    moves = wide[:, 0], wide[0]
    least = jnp.minimum(jnp.minimum(*hops), jnp.minimum(*moves).at[0].set(jnp.inf))
    return jnp.min(jnp.where(active, least, jnp.inf), axis=0)
