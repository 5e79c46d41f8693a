"""Several plans of a round side by side: layouts of all clusters with resources to go on from.

Plans are an axis of their own, ``C``, next to the lanes of networks ``R``.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.allocate import to_logs, to_resources
from collapipe_jax.allocation.variables import Multipliers, Resources, first_multipliers
from collapipe_jax.cost.chains import Chains, chains, heard_w
from collapipe_jax.cost.decision import Decision
from collapipe_jax.cost.messages import sinr_at_hazard
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.terms import hop_pull

_START_POWERS = (1.0, 0.3, 0.1, 0.03)
_LARGEST_HAZARD = 1.0
"""Of a message in a start."""


class Plans(NamedTuple):
    """Plans, lanes last.

    Attributes:
      segments: whole numbers, ``[N, K, C, R]``.
      micro_batches: ``[N, C, R]``.
      logs: logarithms of shares and powers, each with ``[..., C, R]``.
      multipliers: of their maxima, likewise.
    """

    segments: Array
    micro_batches: Array
    logs: Resources
    multipliers: Multipliers


def with_plan_axis(tree):
    """Leaves ``[..., R]`` as ``[..., 1, R]``, the same for every plan."""
    return jax.tree.map(lambda leaf: leaf[..., None, :], tree)


def repeat_plans(tree, count: int):
    """Leaves ``[..., R]`` as ``[..., count, R]``."""
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(
            leaf[..., None, :], (*leaf.shape[:-1], count, leaf.shape[-1])
        ),
        tree,
    )


def static_plans(
    problem: RoundProblem,
    static: Decision,
    count: int,
    make_chains: Callable[..., Chains] = chains,
) -> Plans:
    """One layout with all powers at different levels, the decision as it is first.

    Args:
      problem: with lanes ``[R]``.
      static: the layout.
      count: ``C``.
      make_chains: of layouts, as :func:`chains` makes them.
    """
    chain = make_chains(problem, static.segments, static.micro_batches)
    logs = repeat_plans(to_logs(problem, chain, static), count)
    levels = jnp.array([_START_POWERS[i % len(_START_POWERS)] for i in range(count)])
    number = logs.d2d_power.dtype
    logs = logs._replace(d2d_power=logs.d2d_power + jnp.log(levels)[:, None])
    narrowed = _narrow_to_be_heard(with_plan_axis(problem), repeat_plans(chain, count), logs)
    own = jnp.arange(count)[:, None] == 0
    return Plans(
        repeat_plans(static.segments, count).astype(number),
        repeat_plans(static.micro_batches, count).astype(number),
        jax.tree.map(lambda old, new: jnp.where(own, old, new), logs, narrowed),
        repeat_plans(first_multipliers(chain), count),
    )


def _narrow_to_be_heard(problem: RoundProblem, chain: Chains, logs: Resources) -> Resources:
    """Shares narrowed until a micro-batch mostly survives every message.

    From where nearly all is lost a descent takes long to come back.
    """
    radio, point = problem.radio, to_resources(problem, logs)
    power_w = jnp.where(chain.active, point.d2d_power, 0.0)
    pull = hop_pull(chain, power_w, chain.noise_w + heard_w(chain.cross_gain, power_w))

    def narrow(log_share, pull, blocks):
        wanted = sinr_at_hazard(radio, _LARGEST_HAZARD / jnp.maximum(blocks, 1.0))
        return jnp.minimum(log_share, jnp.log(jnp.maximum(pull, 1e-30) / wanted))

    up_pull = point.d2e_power * chain.uplink_gain
    return logs._replace(
        d2d_share=narrow(logs.d2d_share, jnp.min(pull, axis=0), chain.hazard_per_hop),
        d2e_share=narrow(logs.d2e_share, up_pull, chain.hazard_per_uplink),
    )


def take_plan(tree, index: Array):
    """One plan of every lane, without the axis of plans.

    Args:
      tree: leaves with ``[..., C, R]``, or ``[..., 1, R]`` where all plans have the same.
      index: ``[R]``.
    """
    count = max(leaf.shape[-2] for leaf in jax.tree.leaves(tree))
    chosen = jnp.arange(count)[:, None] == index

    def take(leaf):
        if leaf.shape[-2] == 1:
            return leaf[..., 0, :]
        pick = jnp.any if leaf.dtype == bool else jnp.sum
        return pick(leaf, axis=-2, where=chosen)

    return jax.tree.map(take, tree)


def with_last_plan(plans: Plans, last: Plans) -> Plans:
    """Plans with another one in the last place.

    Args:
      plans: ``C`` of them.
      last: a single one.
    """
    return jax.tree.map(
        lambda many, one: jnp.concatenate([many[..., :-1, :], one], axis=-2), plans, last
    )


def mix_plans(candidates: Plans, choices: Array, cluster_weight: Array) -> Plans:
    """Plans whose clusters come from different candidates.

    Args:
      candidates: of every cluster by itself, ``J`` of them.
      choices: candidate of every cluster in every plan, ``[N, C, R]``.
      cluster_weight: multipliers of the round's maximum to start with, ``[N, 1, R]``.
    """

    def take(leaf, axis):
        shape = [1] * leaf.ndim
        shape[axis], shape[-2:] = choices.shape[0], choices.shape[1:]
        wide = jnp.broadcast_to(choices.reshape(shape), (*leaf.shape[:-2], *choices.shape[1:]))
        return jnp.take_along_axis(leaf, wide, axis=-2)

    logs, multipliers = candidates.logs, candidates.multipliers
    return Plans(
        take(candidates.segments, 0),
        take(candidates.micro_batches, 0),
        Resources(
            take(logs.d2d_share, 1),
            take(logs.d2d_power, 1),
            take(logs.d2e_share, 0),
            take(logs.d2e_power, 0),
        ),
        Multipliers(
            forward=take(multipliers.forward, 1),
            backward=take(multipliers.backward, 1),
            cluster=jnp.broadcast_to(cluster_weight, choices.shape),
            hop=take(multipliers.hop, 2),
            move=take(multipliers.move, 2),
            up=take(multipliers.up, 0),
            caps=None if multipliers.caps is None else take(multipliers.caps, 1),
        ),
    )


def join_plans(first: Plans, second: Plans) -> Plans:
    """All plans of both."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=-2), first, second)
