"""Second stage of a round's cost: what shares and powers make of a fixed partition."""

from typing import NamedTuple

from collapipe_jax.batching import fusion_barrier
from collapipe_jax.cost.chain import Messages
from collapipe_jax.cost.decision import Allocation
from collapipe_jax.cost.energy import energy_cost, message_energy_j
from collapipe_jax.cost.fixed_partition import FixedPartition
from collapipe_jax.cost.latency import (
    AirTimes,
    FlowTimes,
    LatencyParts,
    air_times,
    cluster_latency_s,
    flow_times,
    latency_parts,
)
from collapipe_jax.cost.links import BitTimes, Links, link_bit_times, round_links
from collapipe_jax.cost.maximum import MaximumRule, hard_max
from collapipe_jax.cost.shapes import PerCluster


class RoundTerms(NamedTuple):
    """Terms of a round's cost."""

    links: Links
    bit_time: BitTimes
    air: AirTimes
    flows: FlowTimes
    parts: LatencyParts
    cluster_latency_s: PerCluster
    message_j: Messages  # energy on air
    divergence: PerCluster
    cluster_cost: PerCluster  # drift of the queues and cost of switching


def round_terms(
    fixed: FixedPartition,
    allocation: Allocation,
    maximum: MaximumRule = hard_max,
    links: Links | None = None,
) -> RoundTerms:
    """Terms of a round at given shares and powers in watts; what is idle counts for nothing.

    Args:
      fixed: the partition.
      allocation: the shares and powers.
      maximum: how maxima are taken.
      links: quality of the links, where it is known already.
    """
    links = round_links(fixed, allocation) if links is None else links
    bit_time = link_bit_times(fixed, allocation, links, maximum)
    air = air_times(fixed, bit_time)
    flows = flow_times(fixed, air, maximum)
    parts = latency_parts(fixed, air, flows)
    message_j = message_energy_j(fixed, allocation, air)
    divergence = fixed.divergence.at(links.hazard)
    drift = energy_cost(fixed, message_j) + fixed.costs.divergence * divergence
    latency_s, cluster_cost = fusion_barrier(
        (cluster_latency_s(parts), drift + fixed.switching_cost)
    )
    return RoundTerms(
        links=links,
        bit_time=bit_time,
        air=air,
        flows=flows,
        parts=parts,
        cluster_latency_s=latency_s,
        message_j=message_j,
        divergence=divergence,
        cluster_cost=cluster_cost,
    )
