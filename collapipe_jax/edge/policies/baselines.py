"""Random decisions, and Titanic.

Titanic: near-equal partitions of the encoder, placed on devices by assignment.

After Su et al., INFOCOM 2024. We know its abstract and citations, not the full text.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int
from optax.assignment import hungarian_algorithm

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.chain import chain_of
from collapipe_jax.edge.cost.computing import forward_time_s
from collapipe_jax.edge.cost.decision import Decision
from collapipe_jax.edge.cost.feasibility import usable_blocks
from collapipe_jax.edge.cost.latency import message_time_s
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.cost.static_pipeline import static_pipeline, with_equal_allocation
from collapipe_jax.edge.network.channel import bit_time_s, d2d_sinr

# Random feasible decisions: the reference that uses no information.


def random_policy(key: Array, problem: RoundProblem) -> Decision:
    """Random feasible decision, uniform part by part; no message lacks share or power.

    A cluster's number of micro-batches is uniform over those with which its devices can
    hold the encoder; its segments are then uniform over all rows that fit, idle devices
    among them. Shares are uniform on the simplex of those that send, powers uniform up to
    their maxima. A cluster that cannot hold the encoder does not participate.

    Source: docs/system-model.md, section 6.
    """
    count_key, segments_key, *allocation_keys = jax.random.split(key, 6)
    share_key, power_key, d2e_share_key, d2e_power_key = allocation_keys
    count = _random_micro_batches(count_key, problem)
    capacity = usable_blocks(problem, count[:, None])
    compose = jax.vmap(random_composition, in_axes=(0, 0, None, None))
    keys, work = jax.random.split(segments_key, problem.clusters), problem.workload
    segments = compose(keys, capacity, work.blocks, work.cluster_blocks)
    used = jax.tree.map(jnp.transpose, chain_of(problem, segments.T).used)
    return Decision(
        segments=segments,
        micro_batches=count.astype(jnp.int32),
        d2d_share=_random_shares(share_key, used.d2d_share),
        d2d_power_w=_random_powers(power_key, used.d2d_power, problem.radio.d2d_power_max_w),
        d2e_share=_random_shares(d2e_share_key, used.d2e_share),
        d2e_power_w=_random_powers(d2e_power_key, used.d2e_power, problem.radio.d2e_power_max_w),
        routes=problem.routes,
    )


def _random_micro_batches(key: Array, problem: RoundProblem) -> Array:
    """Uniform over the numbers with which a cluster holds the encoder; any if none, ``[N]``."""
    choices = problem.workload.micro_batch_choices
    capacity = jax.vmap(lambda count: usable_blocks(problem, count))(choices)
    fits = jnp.sum(capacity, axis=-1) >= problem.workload.cluster_blocks
    return choices[jax.random.categorical(key, jnp.where(fits, 0.0, -jnp.inf), axis=0)]


def random_composition(
    key: Array, capacity: Int[Array, " K"], most: int, blocks: Int[Array, ""] | int
) -> Int[Array, " K"]:
    """Blocks on every device of one cluster, at most ``most`` in all, uniform over ways that fit.

    Devices are drawn one by one: a device gets d blocks with a probability proportional
    to the number of ways for those after it to hold the rest.
    All are zeros where the devices cannot hold the blocks together.
    """
    held = jnp.arange(most + 1)

    def draw(rest, device):
        key, room, log_ways_after = device
        log_weight = jnp.where(held <= room, _at_rest(log_ways_after, rest - held), -jnp.inf)
        mine = jax.random.categorical(key, log_weight).astype(jnp.int32)
        return rest - mine, mine

    keys = jax.random.split(key, capacity.shape[0])
    devices = keys, capacity, log_ways(capacity, most)[1:]
    _, segments = jax.lax.scan(draw, jnp.int32(blocks), devices)
    return jnp.where(jnp.sum(capacity) >= blocks, segments, 0)


def log_ways(capacity: Int[Array, " K"], blocks: int) -> Array:
    """Logarithm of the number of ways for the devices from the k-th on to hold l blocks.

    The numbers themselves leave the range of floats: 300 blocks on 120 devices can be split
    in 1e107 ways.

    Returns:
      ``[K + 1, L + 1]``, of k and l; minus infinity where there is no way.
    """
    held = jnp.arange(blocks + 1)
    nobody = jnp.where(held == 0, 0.0, -jnp.inf)

    def add_device(after, most):
        log_rest = _at_rest(after, held[:, None] - held[None])
        ways = jax.nn.logsumexp(jnp.where(held[None] <= most, log_rest, -jnp.inf), axis=1)
        return ways, ways

    _, ways = jax.lax.scan(add_device, nobody, capacity, reverse=True)
    return jnp.concatenate([ways, nobody[None]])


def _at_rest(log_ways_after: Array, rest: Array) -> Array:
    """``log_ways_after`` at the blocks left, minus infinity where negative."""
    return jnp.where(rest >= 0, log_ways_after[jnp.maximum(rest, 0)], -jnp.inf)


def _random_shares(key: Array, members: Array) -> Array:
    """Uniform on the simplex of the members, 0 for others: exponential spacings over their sum."""
    spacing = jnp.where(members, -jnp.log(_open_uniform(key, members.shape)), 0.0)
    total = jnp.sum(spacing, axis=-1, keepdims=True)
    return spacing / jnp.where(total > 0, total, 1.0)


def _random_powers(key: Array, members: Array, power_max_w: Array) -> Array:
    """Uniform up to the maximum; 0 for others. All ``[...]``."""
    return jnp.where(members, power_max_w * _open_uniform(key, members.shape), 0.0)


def _open_uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform on the open interval (0, 1).

    A message without power or share would break its whole round. Draws are multiples of the
    rounding of 1; half of it more keeps them off both ends and their mean at one half.
    """
    draw = jax.random.uniform(key, shape)
    return draw + 0.5 * jnp.finfo(draw.dtype).eps


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


def near_equal_sizes(blocks: Array | int, partitions: Array, devices: int) -> Array:
    """Sizes ``[T, K]`` of ``S`` partitions that differ by at most one block, larger ones first.

    They are 0 from the S-th on, and where blocks run out; ``partitions`` is ``S``, ``[T]``.
    """
    index, partitions = jnp.arange(devices)[None], partitions[:, None]
    sizes = blocks // partitions + (index < blocks % partitions)
    return jnp.where(index < partitions, sizes, 0)


def _attempts(problem: RoundProblem, micro_batches: int, partitions: int) -> tuple[Array, Array]:
    """What every cluster tries, first choice first: sizes ``[T, N, K]`` and counts ``[T, N]``."""
    choices, devices = problem.workload.micro_batch_choices, problem.devices
    blocks = problem.workload.cluster_blocks
    wanted = choices[jnp.argmin(jnp.abs(choices - micro_batches))]
    numbers = jnp.arange(min(partitions, devices), devices + 1)
    sizes = jnp.repeat(near_equal_sizes(blocks, numbers, devices), 2, axis=0)
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
