"""Rates and losses of links, (1)-(6) of docs/system-model.md, written loop by loop in float64.

Nothing here uses the package, as in ``reference_cost``.
"""

import math
from itertools import pairwise
from typing import NamedTuple

from scipy.optimize import brentq
from scipy.special import exp1


def active_chain(segments_row) -> list[int]:
    """Active devices of a cluster, in index order, counted from 1."""
    return [k + 1 for k, blocks in enumerate(segments_row) if blocks > 0]


def gateway(decision, n) -> int:
    """Node that talks to the base station."""
    return decision.get("routes", {"gateway": [0] * (n + 1)})["gateway"][n]


def senders(decision, n) -> list[int]:
    """Nodes that send over D2D, in index order; none of a cluster that sits out."""
    chain = active_chain(decision["segments"][n])
    return sorted({0, *chain, int(gateway(decision, n))}) if chain else []


def interference_w(network, decision, n, j) -> float:
    """(1)."""
    total = 0.0
    for other in range(network["clusters"]):
        if other == n:
            continue
        for i in senders(decision, other):
            gain = network["radio"]["cross_gain"][other][i][n][j]
            total += decision["d2d_power_w"][other][i] * gain
    return network["radio"]["d2d_activity"] * total


def usable(gain, noise) -> float:
    """Section 2: below an SNR of 1e-7 for a watt sent, over the whole band, a link is none."""
    return gain if gain >= 1e-7 * noise else 0.0


def spectral_efficiency(radio, sinr) -> float:
    """(2), or its mean over Rayleigh fading."""
    nats = mean_nats(radio, sinr / radio["snr_gap"])
    return min(nats / math.log(2), radio["max_spectral_efficiency"])


def mean_nats(radio, x) -> float:
    """Nats a second and hertz at an SINR over the gap."""
    if radio.get("rate_law") == "ergodic" and x > 0:
        return math.exp(1 / x) * exp1(1 / x)
    return math.log1p(x)


def attempts(radio, sinr) -> float:
    """(31), infinite where it overflows."""
    if radio.get("retransmissions", "free") == "free":
        return 1.0
    z = radio["outage_threshold"] / sinr if sinr > 0 else math.inf
    if radio["retransmissions"] == "counted":
        return sum((-math.expm1(-z)) ** attempt for attempt in range(radio["harq_attempts"]))
    return math.exp(z) if z < 700 else math.inf


def d2d_link(network, decision, n, i, j, share) -> tuple[float, float]:
    """(3): rate and SINR from node i to node j."""
    radio = network["radio"]
    if share == 0:
        return 0.0, 0.0
    band = radio["d2d_bandwidth_hz"]
    thermal = band * radio["node_noise_w_per_hz"]
    noise, gain = thermal + interference_w(network, decision, n, j), radio["d2d_gain"][n][i][j]
    sinr = decision["d2d_power_w"][n][i] * usable(gain, thermal) / (share * noise)
    return share * band * spectral_efficiency(radio, sinr) / attempts(radio, sinr), sinr


def narrowed_d2d_rate(network, decision, n, i, j) -> float:
    """(32), (33): rate of parameters from node i to node j."""
    radio = network["radio"]
    rate, sinr = d2d_link(network, decision, n, i, j, 1.0)
    if radio.get("retransmissions", "free") != "reliable" or sinr == 0:
        return rate

    def excess(log_sinr):
        """Elasticities of efficiency and attempts, less 1."""
        ends = [math.exp(log_sinr + step) / radio["snr_gap"] for step in (1e-5, -1e-5)]
        up, down = (mean_nats(radio, x) for x in ends)
        elasticity = (math.log(up) - math.log(down)) / 2e-5
        return elasticity + radio["outage_threshold"] * math.exp(-log_sinr) - 1

    least = math.exp(brentq(excess, math.log(radio["outage_threshold"]) - 1, 20, xtol=1e-13))
    return d2d_link(network, decision, n, i, j, min(1.0, sinr / least))[0]


def uplink(network, decision, n) -> tuple[float, float]:
    """(4)."""
    radio, share = network["radio"], decision["d2e_share"][n]
    if share == 0:
        return 0.0, 0.0
    band = radio["d2e_bandwidth_hz"]
    thermal = band * radio["bs_noise_w_per_hz"]
    noise, gain = thermal + radio["d2e_interference_w"], radio["d2e_gain"][n][gateway(decision, n)]
    sinr = decision["d2e_power_w"][n] * usable(gain, thermal) / (share * noise)
    return share * band * spectral_efficiency(radio, sinr) / attempts(radio, sinr), sinr


def downlink(network, decision, n) -> tuple[float, float]:
    """(5)."""
    radio, share = network["radio"], decision["d2e_share"][n]
    band = radio["d2e_bandwidth_hz"]
    thermal = band * radio["node_noise_w_per_hz"]
    noise = thermal + radio.get("downlink_interference_w", radio["d2e_interference_w"])
    sinr = radio["bs_power_w"] * usable(radio["d2e_gain"][n][gateway(decision, n)], thermal) / noise
    return share * band * spectral_efficiency(radio, sinr) / attempts(radio, sinr), sinr


def hazard(radio, sinr) -> float:
    """(6), for one transport block."""
    if sinr == 0:
        return math.inf
    if radio["outage_threshold"] == 0 or radio.get("retransmissions") == "reliable":
        return 0.0
    z, attempts = radio["outage_threshold"] / max(sinr, 1e-18), radio["harq_attempts"]
    if z > 30:
        return z - math.log(attempts)
    if z < math.log(2):
        all_lost = math.exp(attempts * math.log(-math.expm1(-z)))
        return -math.log1p(-all_lost)
    log_all_lost = attempts * math.log1p(-math.exp(-z))
    return -math.log(-math.expm1(log_all_lost))


class Links(NamedTuple):
    """Rate and SINR of every message of a cluster; rates alone of its parameters."""

    hops: list  # sender, receiver, forward and backward
    uplink: tuple[float, float]
    downlink: tuple[float, float]
    collect: dict[int, float]  # to the gateway, by every other node that sends
    distribute: dict[int, float]  # and back

    def rates(self):
        """Of all messages."""
        rates = [self.uplink[0], self.downlink[0]]
        rates += [*self.collect.values(), *self.distribute.values()]
        return rates + [rate for hop in self.hops for rate, _ in hop[2:]]


def cluster_links(network, decision, n) -> Links:
    """Links of the chain, from the control unit over its active devices to the gateway."""
    chain, own = active_chain(decision["segments"][n]), gateway(decision, n)
    hops = []
    for here, there in pairwise([0, *chain, own]):
        if here == there:
            continue
        share = decision["d2d_share"][n][here]
        forward = d2d_link(network, decision, n, here, there, share)
        backward = d2d_link(network, decision, n, there, here, share)
        hops.append((here, there, forward, backward))
    others = [node for node in senders(decision, n) if node != own]
    return Links(
        hops=hops,
        uplink=uplink(network, decision, n),
        downlink=downlink(network, decision, n),
        collect={k: narrowed_d2d_rate(network, decision, n, k, own) for k in others},
        distribute={k: narrowed_d2d_rate(network, decision, n, own, k) for k in others},
    )
