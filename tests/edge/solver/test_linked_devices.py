"""Sets of devices that links join, against all subsets in plain loops."""

import itertools

import jax
import numpy as np
from support.random_problems import random_problems, to_batch_last, with_unusable_links

from collapipe_jax.edge.network.channel import LEAST_SNR_PER_W
from collapipe_jax.edge.policies.dssra import (
    LEAST_USEFUL_SNR,
    has_useless_link,
    linked_devices,
)

NETWORKS, CLUSTERS, DEVICES, BLOCKS = 40, 2, 3, 5


def _some_unusable(index, rng, network):
    """Networks of which every fourth has ordinary links, and every third little room."""
    if index % 4:
        with_unusable_links(index, rng, network)
    if index % 3 == 0:
        network["compute"]["memory_bytes"] *= 0.1


def _full_snr(network, cluster):
    """SNR of every pair of a cluster at full power, 0 where a link carries nothing."""
    radio = network.radio
    noise_w = float(radio.d2d_bandwidth_hz) * float(radio.node_noise_w_per_hz)
    gain = np.asarray(radio.d2d_gain[cluster], np.float64)
    power_w = np.asarray(radio.d2d_power_max_w[cluster], np.float64)[:, None]
    return np.where(gain >= LEAST_SNR_PER_W * noise_w, gain * power_w / noise_w, 0.0)


def _weakest(snr, chain):
    """Least SNR of both directions along a chain and back, and to and from every device."""
    nodes = [0, *chain]
    pairs = [*zip(nodes, [*chain, 0], strict=True), *((0, k) for k in chain)]
    return min(min(snr[a, b], snr[b, a]) for a, b in pairs)


def _room(network, cluster, chain):
    """Blocks that the devices of a chain hold with the most micro-batches."""
    work, memory = network.workload, np.asarray(network.compute.memory_bytes[cluster])
    working = float(work.batch) / np.max(work.micro_batch_choices) * work.block_working_bytes
    per_block = work.block_static_bytes + work.batch * work.block_kept_bytes
    fits = np.floor((memory - float(working)) / float(per_block) * (1 + 1e-6))
    return sum(int(np.clip(fits[k - 1], 0, work.blocks)) for k in chain)


def test_sets_and_useless_links_are_those_of_plain_loops():
    problem = jax.device_get(random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, _some_unusable))
    with jax.numpy_rank_promotion("allow"):  # batch axes come last
        batch = to_batch_last(problem)
        useless = np.asarray(jax.jit(has_useless_link)(batch))
        chosen = dict(zip((True, False), np.asarray(jax.jit(linked_devices)(batch)), strict=True))
    subsets = [
        chain
        for size in range(1, DEVICES + 1)
        for chain in itertools.combinations(range(1, DEVICES + 1), size)
    ]
    kinds = set()
    for index in range(NETWORKS):
        network = jax.tree.map(lambda leaf, at=index: leaf[at], problem)
        expected = False
        for n in range(CLUSTERS):
            snr = _full_snr(network, n)
            present = [0, *(1 + np.flatnonzero(network.compute.memory_bytes[n] > 0))]
            expected |= any(
                snr[a, b] < LEAST_USEFUL_SNR for a, b in itertools.permutations(present, 2)
            )
            roomy = {c: _weakest(snr, c) for c in subsets if _room(network, n, c) >= BLOCKS}
            sets = {
                many: tuple(1 + np.flatnonzero(chosen[many][n, :, index])) for many in (True, False)
            }
            if not roomy:
                kinds.add("no room")
                assert len(sets[True]) == len(sets[False]) == DEVICES
                continue
            best = max(roomy.values())
            is_linked = best >= LEAST_USEFUL_SNR
            kinds.add("linked" if is_linked else "not linked")
            np.testing.assert_allclose(roomy[sets[False]], best, rtol=1e-5)
            if is_linked:
                linked = {c: each for c, each in roomy.items() if each >= LEAST_USEFUL_SNR}
                assert sets[True] in linked
                assert len(sets[True]) == max(map(len, linked))
        assert useless[index] == expected
        kinds.add(expected)
    assert kinds == {"no room", "linked", "not linked", True, False}
