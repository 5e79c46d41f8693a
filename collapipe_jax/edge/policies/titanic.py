"""Titanic: near-equal partitions of the encoder, placed on devices by assignment.

After Su et al., INFOCOM 2024. We know its abstract and citations, not the full text.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int
from optax.assignment import hungarian_algorithm

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.computing import forward_time_s
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.feasibility import usable_blocks
from collapipe_jax.edge.cost.latency import message_time_s
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipeline, with_equal_allocation
from collapipe_jax.edge.network.channel import bit_time_s, d2d_sinr


def titanic(problem: RoundProblem, micro_batches: int, partitions: int = 3) -> Decision:
    """Place partitions of near-equal size on the devices that suit them best.

    Each partition goes to a device of its own with room for it, such that the sum of
    affinities is largest (:func:`affinity_s`). Blocks run in index order of the devices,
    whatever partition each has. A cluster that cannot place its partitions tries again with
    the largest allowed number of micro-batches, which needs least memory, then with one
    partition more, and so on up to a partition for every device. Where nothing can be placed,
    the static pipeline decides. The nearest allowed number of micro-batches is taken, and at most
    one partition for every device.

    Source: docs/system-model.md, section 6.

    Raises:
      InputError: if there are no partitions.
    """
    if partitions < 1:
        raise InputError("policy.partitions", partitions, "no partition at all", "Give 1 or more")
    sizes, counts = _attempts(problem, micro_batches, partitions)  # [T, N, K], [T, N]
    possible = jax.vmap(lambda *attempt: _can_place(_options(problem, *attempt)))(sizes, counts)
    first, own = jnp.argmax(possible, axis=0), jnp.arange(problem.clusters)
    sizes, counts, placed = sizes[first, own], counts[first, own], possible[first, own]
    segments = jax.vmap(_place)(_options(problem, sizes, counts), sizes)
    static = static_pipeline(problem, micro_batches)
    return with_equal_allocation(
        problem,
        jnp.where(placed[:, None], segments, static.segments),
        jnp.where(placed, counts, static.micro_batches),
    )


def near_equal_sizes(blocks: int, partitions: Array, devices: int) -> Array:
    """Sizes ``[T, K]`` of ``S`` partitions that differ by at most one block, larger ones first.

    They are 0 from the S-th on, and where blocks run out; ``partitions`` is ``S``, ``[T]``.
    """
    index, partitions = jnp.arange(devices)[None], partitions[:, None]
    sizes = blocks // partitions + (index < blocks % partitions)
    return jnp.where(index < partitions, sizes, 0)


def _attempts(problem: RoundProblem, micro_batches: int, partitions: int) -> tuple[Array, Array]:
    """What every cluster tries, first choice first: sizes ``[T, N, K]`` and counts ``[T, N]``."""
    choices, devices = problem.workload.micro_batch_choices, problem.devices
    wanted = choices[jnp.argmin(jnp.abs(choices - micro_batches))]
    numbers = jnp.arange(min(partitions, devices), devices + 1)
    sizes = jnp.repeat(near_equal_sizes(problem.workload.blocks, numbers, devices), 2, axis=0)
    counts = jnp.tile(jnp.stack([wanted, jnp.max(choices)]), len(numbers))
    attempts = sizes[:, None], counts[:, None]
    return jax.tree.map(lambda one: jnp.repeat(one, problem.clusters, axis=1), attempts)


def affinity_s(
    problem: RoundProblem, sizes: Int[Array, "N P"], micro_batches: Int[Array, " N"]
) -> Array:
    """Affinity of every partition and device: minus the seconds of a local step.

    They are the passes (8) of all micro-batches through the partition, forward and backward,
    and twice the transfer (9) of their activations between the device and its control unit.

    Returns:
      ``[N, P, K]``; 0 for a partition without blocks, minus infinity for others on a
      device whose link is dead.
    """
    work, compute, count = problem.workload, problem.compute, micro_batches[:, None]
    forward_s = forward_time_s(
        work.batch / count, work.block_flops, compute.flops_per_s[:, 1:], compute.block_overhead_s
    )
    block_s = (count * (1.0 + work.backward_ratio) * forward_s)[:, None]
    transfer_s = (count * _transfer_time_s(problem, jnp.sum(sizes > 0, axis=1), count))[:, None]
    sizes = sizes[:, :, None]
    return -jnp.where(sizes > 0, sizes * block_s + 2.0 * transfer_s, 0.0)


def _transfer_time_s(problem: RoundProblem, partitions: Array, micro_batches: Array) -> Array:
    """Activations of a micro-batch between a device and its control unit, ``[N, K]``.

    The mean of both directions, at full power, on an equal share for each device with a
    partition and the control unit; infinite where one direction is dead. Interference is left
    out, since it depends on where the other clusters place theirs.
    """
    radio, work = problem.radio, problem.workload
    power_w, gain = radio.d2d_power_max_w, radio.d2d_gain
    share = (1.0 / (partitions + 1.0))[:, None]
    bits = work.batch / micro_batches * work.activation_bits

    def message_s(power_w, gain):
        sinr = d2d_sinr(radio, power_w, gain, share, 0.0)
        air_s = bits * bit_time_s(radio, share * radio.d2d_bandwidth_hz, sinr)
        return message_time_s(air_s, problem.compute.link_overhead_s)

    there_s = message_s(power_w[:, :1], gain[:, 0, 1:])
    return (there_s + message_s(power_w[:, 1:], gain[:, 1:, 0])) / 2.0


def _options(problem: RoundProblem, sizes: Array, micro_batches: Array) -> Array:
    """Affinities ``[N, P, K]`` of the pairs that memory allows, minus infinity for the others."""
    fits = sizes[:, :, None] <= usable_blocks(problem, micro_batches[:, None])[:, None]
    return jnp.where(fits, affinity_s(problem, sizes, micro_batches), -jnp.inf)


def _can_place(options: Array) -> Array:
    """Clusters that can give each partition a device of its own, ``[N, P, K] -> [N]``.

    What holds a partition holds a smaller one too, and the largest comes first. So it is
    enough (Hall's theorem) that one device is possible for the largest, two for the second
    largest, and so on.
    """
    devices = jnp.sum(jnp.isfinite(options), axis=2)
    return jnp.all(devices > jnp.arange(options.shape[1])[None], axis=1)


def _place(options: Float[Array, "P K"], sizes: Int[Array, " P"]) -> Array:
    """Segments ``[K]`` of one cluster with the largest sum of affinities.

    Costs are scaled to at most 1. A pair that is ruled out costs more than all that can be
    chosen together, and not more than that, so that rounding leaves the others alone.
    """
    possible, devices = jnp.isfinite(options), options.shape[1]
    cost_s = jnp.where(possible, -options, 0.0)
    largest_s = jnp.max(cost_s)
    cost = jnp.where(possible, cost_s / jnp.where(largest_s > 0, largest_s, 1.0), devices + 1.0)
    partition, device = hungarian_algorithm(cost)
    return jnp.zeros(devices, jnp.int32).at[device].set(sizes[partition].astype(jnp.int32))
