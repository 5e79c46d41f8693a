"""Random feasible decisions: the reference that uses no information."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from collapipe_jax.edge.cost.decision import Decision, active_nodes, participates
from collapipe_jax.edge.cost.feasibility import usable_blocks
from collapipe_jax.edge.cost.problem import RoundProblem


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
    compose = jax.vmap(random_composition, in_axes=(0, 0, None))
    keys = jax.random.split(segments_key, problem.clusters)
    segments = compose(keys, capacity, problem.workload.blocks)
    active, runs = active_nodes(segments), participates(segments)
    return Decision(
        segments=segments,
        micro_batches=count.astype(jnp.int32),
        d2d_share=_random_shares(share_key, active),
        d2d_power_w=_random_powers(power_key, active, problem.radio.d2d_power_max_w),
        d2e_share=_random_shares(d2e_share_key, runs),
        d2e_power_w=_random_powers(d2e_power_key, runs, problem.radio.d2e_power_max_w),
    )


def _random_micro_batches(key: Array, problem: RoundProblem) -> Array:
    """Uniform over the numbers with which a cluster holds the encoder; any if none, ``[N]``."""
    choices = problem.workload.micro_batch_choices
    capacity = jax.vmap(lambda count: usable_blocks(problem, count))(choices)
    fits = jnp.sum(capacity, axis=-1) >= problem.workload.blocks
    return choices[jax.random.categorical(key, jnp.where(fits, 0.0, -jnp.inf), axis=0)]


def random_composition(key: Array, capacity: Int[Array, " K"], blocks: int) -> Int[Array, " K"]:
    """Blocks on every device of one cluster, uniform over all ways that fit.

    Devices are drawn one by one: a device gets d blocks with a probability proportional
    to the number of ways for those after it to hold the rest.
    All are zeros where the devices cannot hold the blocks together.
    """
    held = jnp.arange(blocks + 1)

    def draw(rest, device):
        key, most, log_ways_after = device
        log_weight = jnp.where(held <= most, _at_rest(log_ways_after, rest - held), -jnp.inf)
        mine = jax.random.categorical(key, log_weight).astype(jnp.int32)
        return rest - mine, mine

    keys = jax.random.split(key, capacity.shape[0])
    devices = keys, capacity, log_ways(capacity, blocks)[1:]
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
