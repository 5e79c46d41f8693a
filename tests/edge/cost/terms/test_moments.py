"""Optimiser state that follows its blocks: by owners of blocks, link by link, and in decisions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import evaluate, in_numpy
from support.random_problems import pick, plain_problems
from support.solver_checks import assert_as_good_as_exhaustive, assert_decides_for

from collapipe_jax.edge.cost import terms
from collapipe_jax.edge.cost.problem import Switching
from collapipe_jax.edge.cost.static_pipeline import with_equal_allocation
from collapipe_jax.edge.network import channel
from collapipe_jax.learning.models.counts import block_parameters
from collapipe_jax.runs.config import default
from collapipe_jax.runs.config.system import build_system_params

changed_blocks = in_numpy(terms.changed_blocks)
d2d_sinr, narrowed_bit_time_s = in_numpy(channel.d2d_sinr), in_numpy(channel.narrowed_bit_time_s)
CLUSTERS, DEVICES, BLOCKS, BITS = 2, 3, 6, 5e6
BEFORE = np.array([[2, 2, 2], [0, 6, 0]], np.int32)
AFTER = np.array([[3, 3, 0], [1, 4, 1]], np.int32)


def owners(segments):
    return np.repeat(np.arange(len(segments)), segments)


def after(problem, before, bits=BITS):
    """The problem after a round with a partition, whose moments count unless ``bits`` is None."""
    counts = np.ones(CLUSTERS, np.int32)
    switching = Switching(
        segments=before,
        micro_batches=counts,
        switching_cost=np.zeros(()),
        hysteresis=np.zeros(()),
        block_moment_bits=None if bits is None else np.asarray(bits),
    )
    return problem.replace(switching=switching)


@pytest.fixture(scope="module")
def problem():
    """With power to receive, and an empty queue at no node."""
    problem = pick(plain_problems(1, CLUSTERS, DEVICES, BLOCKS), 0)
    compute = problem.compute.replace(receive_power_w=np.asarray(0.3))
    return jax.device_get(problem.replace(compute=compute))


@pytest.fixture(scope="module")
def costs(problem):
    """A decision with the moments that it moves, and without."""
    decision = in_numpy(with_equal_allocation)(problem, AFTER, np.full(CLUSTERS, 2))
    return decision, *(evaluate(after(problem, BEFORE, bits), decision) for bits in (BITS, None))


def test_changed_blocks_by_their_owners():
    rng = np.random.default_rng(0)
    rows = rng.multinomial(BLOCKS, np.full(DEVICES, 1 / DEVICES), (2, 60))
    rows[:, ::7] *= rng.integers(0, 2, (2, 9, 1))  # clusters that held or hold nothing
    taken, given = changed_blocks(*(row.T for row in rows))
    for case, (before, now) in enumerate(zip(*rows, strict=True)):
        changes, old, new = before.any() and now.any(), owners(before), owners(now)
        for k in range(DEVICES):
            gets = np.sum((new == k) & (old != k)) if changes else 0
            gives = np.sum((old == k) & (new != k)) if changes else 0
            assert (taken[k, case], given[k, case]) == (gets, gives)


def test_time_and_energy_link_by_link(problem, costs):
    decision, counted, free = costs
    radio, watt, bit_s = problem.radio, problem.compute.receive_power_w, {}
    power_w = decision.d2d_power_w
    drawn_w = power_w / radio.amplifier_efficiency
    most_w = radio.d2d_power_max_w / radio.amplifier_efficiency
    energy_j = np.zeros((CLUSTERS, DEVICES + 1))
    for n in range(CLUSTERS):
        moving_s, other = 0.0, 1 - n
        for k in range(1, DEVICES + 1):
            old, new = owners(BEFORE[n]), owners(AFTER[n])
            gives = BITS * np.sum((old == k - 1) & (new != k - 1))
            gets = BITS * np.sum((new == k - 1) & (old != k - 1))
            sinr = d2d_sinr(radio, radio.d2d_power_max_w[n, k], radio.d2d_gain[n, k, 0], 1.0, 0.0)
            return_s = gives * narrowed_bit_time_s(radio, radio.d2d_bandwidth_hz, sinr)
            heard_w = radio.d2d_activity * power_w[other] @ radio.cross_gain[other, :, n, k]
            sinr = d2d_sinr(radio, power_w[n, 0], radio.d2d_gain[n, 0, k], 1.0, heard_w)
            bit_s[n, k] = narrowed_bit_time_s(radio, radio.d2d_bandwidth_hz, sinr)
            moving_s += return_s + gets * bit_s[n, k]
            energy_j[n, k] += most_w[n, k] * return_s + watt * gets * bit_s[n, k]
            energy_j[n, 0] += watt * return_s + drawn_w[n, 0] * gets * bit_s[n, k]
        grown_s = counted.cluster_latency_s[n] - free.cluster_latency_s[n]
        assert moving_s > 0.01 * free.cluster_latency_s[n]
        assert float(grown_s) == pytest.approx(float(moving_s), rel=2e-3)
        assert counted.parts.distribute_s[n] - free.parts.distribute_s[n] == pytest.approx(
            float(moving_s), rel=1e-3
        )
    np.testing.assert_allclose(counted.energy_j - free.energy_j, energy_j, rtol=1e-2, atol=1e-4)


def test_the_objective_charges_both(problem, costs):
    _, counted, free = costs
    control = problem.control
    drift = control.energy_queue / control.energy_budget_j * (counted.energy_j - free.energy_j)
    latency_s = counted.latency_s - free.latency_s
    grown = control.v / control.reference_latency_s * latency_s + np.sum(drift)
    assert float(counted.objective - free.objective) == pytest.approx(float(grown), rel=1e-3)


@pytest.mark.parametrize("before", [AFTER, 0 * AFTER])
def test_who_stays_or_starts_moves_nothing(problem, costs, before):
    decision, _, free = costs
    cost = evaluate(after(problem, before), decision)
    jax.tree.map(lambda *leaves: np.testing.assert_allclose(*leaves, rtol=1e-6), cost, free)


def test_what_is_behind_a_dead_link_is_lost(problem, costs):
    """The last device of the first cluster, which gives two blocks away, is out of reach."""
    decision, counted, free = costs
    gain = np.copy(problem.radio.d2d_gain)
    gain[0, 3] = 0.0
    dead = problem.replace(radio=problem.radio.replace(d2d_gain=gain))
    cost = evaluate(after(dead, BEFORE), decision)
    assert np.isfinite(cost.latency_s)
    assert cost.energy_j[0, 3] == free.energy_j[0, 3]
    assert free.cluster_latency_s[0] < cost.cluster_latency_s[0] < counted.cluster_latency_s[0]


@pytest.mark.parametrize(("optimizer", "numbers"), [("adam", 2), ("momentum", 1), ("sgd", 0)])
def test_an_optimiser_moves_the_numbers_that_it_keeps(optimizer, numbers):
    config = default.get_config()
    config.control.moments_move, config.training.client_optimizer = True, optimizer
    switching = build_system_params(config).control.switching
    if not numbers:
        assert switching is None
        return
    parameters = block_parameters(config.model.width, config.model.feed_forward_width)
    assert float(switching.block_moment_bits) == 32 * numbers * parameters
    config.control.moments_move = False
    assert build_system_params(config).control.switching is None


def _after_a_round(problem):
    """The problem after a round that began with the last device alone."""
    shape = problem.compute.memory_bytes.shape
    before = jnp.zeros(shape, jnp.int32).at[..., -1].set(problem.workload.blocks)
    batch = shape[:-2]
    switching = Switching(
        segments=before,
        micro_batches=jnp.ones(shape[:-1], jnp.int32),
        switching_cost=jnp.zeros(batch),
        hysteresis=jnp.zeros(batch),
        block_moment_bits=jnp.full(batch, 4 * 1.9e6),
    )
    return problem.replace(switching=switching)


@pytest.mark.slow
def test_dssra_decides_for_them():
    assert_decides_for(_after_a_round, share_optimal=0.7)


@pytest.mark.slow
def test_dssra_finds_what_the_exhaustive_search_finds():
    assert_as_good_as_exhaustive(_after_a_round)
