"""Lower bounds of joint layouts as sums over clusters, each cluster by itself.

Clusters meet in three places (docs/system-model.md, section 5), and each can be cut without
raising the optimum: a maximum of latencies is at least any mean of them with weights of sum
1; no interference is at most what there is; and with the D2E band lent at a price, minus
what all of it earns, shares need not add up. The bound of a joint layout is then the best
over some weights of a sum of numbers that depend on one cluster's layout each.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.allocate import tune_clusters
from collapipe_jax.allocation.projected_gradient import certify
from collapipe_jax.allocation.variables import Multipliers, PricedPoint, Resources, Surroundings
from collapipe_jax.batching import on_lanes
from collapipe_jax.cost.chains import Chains, chains
from collapipe_jax.cost.problem import RoundProblem


class ClusterBounds(NamedTuple):
    """Bounds of the clusters' own prices, and where they were found.

    Attributes:
      lower_bound: of weight x price of the round's latency x the cluster's + energy and
        divergence + price of the band x share, ``[N]``.
      logs: logarithms of shares and powers, nodes first.
      multipliers: those of the flows are of use to go on with.
    """

    lower_bound: Array
    logs: Resources
    multipliers: Multipliers


def bound_clusters(
    problem: RoundProblem,
    segments: Array,
    micro_batches: Array,
    weight: Array,
    price_per_share: Array,
    steps: int,
) -> ClusterBounds:
    """Bound the price of every cluster as if it were alone. Meant for ``jax.vmap``.

    Args:
      problem: one round of one network.
      segments: ``[N, K]``; clusters need not be able to run these together.
      micro_batches: ``[N]``.
      weight: of each cluster's latency in the round's, scalar, positive.
      price_per_share: of the whole D2E band, scalar.
      steps: gradient steps (fixes the length of the loop).
    """

    def solve(problem, segments, micro_batches, weight, price_per_share):
        chain = chains(problem, segments, micro_batches)
        chain = chain.replace(price_per_s=weight * chain.price_per_s)
        around = _alone(chain, price_per_share)
        start = _equal_split(chain)
        found = tune_clusters(problem, chain, start, around, steps, with_price=True)
        bound = _certify_each(found.priced, found.logs, chain.active)
        return ClusterBounds(bound, found.logs, found.multipliers)

    return on_lanes(solve)(problem, segments, micro_batches, weight, price_per_share)


def _alone(chain: Chains, price_per_share: Array) -> Surroundings:
    """Nothing heard, nobody disturbed, and no other price of latency but the weight's."""
    nothing = jnp.zeros_like(chain.price_per_w_s)
    per_cluster = jnp.zeros_like(chain.cluster_price)
    return Surroundings(
        heard_w=nothing,
        price_per_w=nothing,
        price_per_s=per_cluster + chain.price_per_s[None],
        round_s=jnp.zeros_like(chain.price_per_s),
        price_per_share=price_per_share,
    )


def _equal_split(chain: Chains) -> Resources:
    """Full power; shares of 1, which the descent scales to its limits."""
    node, cluster = jnp.zeros_like(chain.price_per_w_s), jnp.zeros_like(chain.cluster_price)
    return Resources(node, node, cluster - jnp.log(1.0 * cluster.shape[0]), cluster)


def _certify_each(priced: PricedPoint, logs: Resources, active: Array) -> Array:
    """Certified lower bound of every cluster's own price, ``[N, ...]``."""

    def bound(n):
        def only(resources):
            d2d_share, d2d_power, d2e_share, d2e_power = resources
            here = slice(n, n + 1)
            return Resources(
                d2d_share[:, here], d2d_power[:, here], d2e_share[here], d2e_power[here]
            )

        alone = priced._replace(
            smooth=priced.smooth[n], objective=priced.objective[n], slope=only(priced.slope)
        )
        return certify(alone, only(logs), active[:, n : n + 1]).lower_bound

    return jnp.stack([bound(n) for n in range(active.shape[1])])
