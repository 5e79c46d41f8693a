"""Reliable links: blocks are repeated until they arrive, at their time and energy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from support.compiled import decide, evaluate, in_numpy, splitfed, static_pipeline, vanilla_fl
from support.random_problems import pick, plain_problems, random_problems, with_ends
from support.solver_checks import assert_as_good_as_exhaustive, assert_decides_for

from collapipe_jax.edge.cost.client_round import client_latency_s, sends
from collapipe_jax.edge.cost.convergence import lossless_divergence
from collapipe_jax.edge.network import channel
from collapipe_jax.edge.policies.dssra import dssra
from collapipe_jax.edge.policies.greedy import greedy
from collapipe_jax.edge.policies.registry import POLICIES
from collapipe_jax.edge.solver.allocate import BROKEN

bit_time_s, efficient_sinr = in_numpy(channel.bit_time_s), in_numpy(channel.efficient_sinr)
narrowed_bit_time_s = in_numpy(channel.narrowed_bit_time_s)
with_attempts = in_numpy(channel.with_attempts)
with_least_attempts = in_numpy(channel.with_least_attempts)
CLUSTERS, DEVICES, BLOCKS = 2, 3, 5


def made_reliable(problem, threshold=1.0):
    """The problem with reliable links, its outage threshold scaled."""
    outage_threshold = np.asarray(threshold * problem.radio.outage_threshold)
    radio = problem.radio.replace(retransmissions="reliable", outage_threshold=outage_threshold)
    return problem.replace(radio=radio)


@pytest.fixture(scope="module")
def problem():
    return pick(plain_problems(1, CLUSTERS, DEVICES, BLOCKS), 0)


def test_nothing_is_lost_and_every_time_grows(problem):
    decision = static_pipeline(problem, 6)
    free = evaluate(problem, decision)
    cost = evaluate(made_reliable(problem), decision)
    assert np.all(cost.loss_probability == 0)
    everyone = np.ones(CLUSTERS, bool)
    least = jax.jit(lossless_divergence)(problem.learning, problem.workload.batch, everyone)
    np.testing.assert_allclose(cost.divergence, least, rtol=1e-6)
    assert np.all(cost.cluster_latency_s > free.cluster_latency_s)
    assert np.all(cost.energy_j > free.energy_j)
    assert cost.compute_latency_s == free.compute_latency_s
    for part, before in zip(cost.parts, free.parts, strict=True):
        assert np.all(part > before)


@pytest.mark.parametrize(
    "name",
    [
        *("static_pipeline", "hierarchical_fl"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("splitfed", "vanilla_fl")),
    ],
)
def test_without_a_threshold_one_attempt_is_enough(problem, name):
    problem = with_ends(problem)
    perfect = problem.replace(
        radio=problem.radio.replace(outage_threshold=np.zeros((), np.float32))
    )
    decision = decide(name, problem, shares="equal", split="even")
    jax.tree.map(
        np.testing.assert_array_equal,
        evaluate(perfect, decision),
        evaluate(made_reliable(problem, 0.0), decision),
    )


@pytest.mark.usefixtures("x64")
def test_attempts_are_those_of_a_geometric_law():
    """Fast fading of mean 1 fails with ``1 - e^-z``, and the first success ends the attempts."""
    radio = made_reliable(pick(plain_problems(1, 1, 2, 3), 0)).radio
    sinr = np.array([0.3, 1.0, 7.0])
    succeeds = np.exp(-np.asarray(radio.outage_threshold) / sinr)
    attempts = np.arange(1, 2000)
    expected = [np.sum(attempts * p * (1 - p) ** (attempts - 1)) for p in succeeds]
    np.testing.assert_allclose(with_attempts(radio, sinr, np.ones(3)), expected, rtol=1e-9)


@pytest.mark.parametrize("rate_law", ["mean", "ergodic"])
@pytest.mark.parametrize(
    "threshold", [0.2, *(pytest.param(far, marks=pytest.mark.slow) for far in (1e-3, 1.0, 40.0))]
)
@pytest.mark.usefixtures("x64")
def test_at_the_efficient_sinr_bands_are_fastest_and_bits_cheapest(rate_law, threshold):
    radio = made_reliable(pick(plain_problems(1, 1, 2, 3), 0), threshold).radio
    radio = radio.replace(rate_law=rate_law, max_spectral_efficiency=np.asarray(100.0))
    best, whole_band_sinr = float(efficient_sinr(radio)), 0.05 * float(efficient_sinr(radio))

    def time_s(log_share):
        share = np.exp(log_share)
        return float(bit_time_s(radio, share, np.asarray(whole_band_sinr / share)))

    found = minimize_scalar(time_s, bounds=(-8.0, 0.0), method="bounded", options={"xatol": 1e-9})
    assert whole_band_sinr / np.exp(found.x) == pytest.approx(best, rel=1e-4)
    narrowed_s = narrowed_bit_time_s(radio, 1.0, np.asarray(whole_band_sinr))
    assert float(narrowed_s) == pytest.approx(found.fun, rel=1e-6)
    # Power times time on a band of one hertz, over that at vanishing power and without attempts.
    sinr = best * np.logspace(-2, 2, 2001)
    energy = sinr * bit_time_s(radio, 1.0, sinr)
    least = float(with_least_attempts(radio, np.log(2.0) * np.asarray(radio.snr_gap)))
    assert energy.min() == pytest.approx(least, rel=1e-4)
    assert sinr[energy.argmin()] == pytest.approx(best, rel=0.05)


@pytest.mark.parametrize("rate_law", ["mean", "ergodic"])
@pytest.mark.usefixtures("x64")
def test_the_logarithm_of_a_time_is_convex_in_that_of_the_sinr(rate_law):
    radio = made_reliable(pick(plain_problems(1, 1, 2, 3), 0)).radio.replace(rate_law=rate_law)
    log_time = np.log(bit_time_s(radio, 1.0, np.exp(np.linspace(-4.0, 9.0, 400))))
    assert np.all(np.diff(log_time, 2) > -1e-9)


@pytest.mark.parametrize("link", ["uplink", "hop"])
def test_a_link_whose_attempts_overflow_is_a_dead_one(problem, link):
    reliable, decision = made_reliable(problem), static_pipeline(problem, 6)
    if link == "uplink":
        decision = decision.replace(d2e_power_w=decision.d2e_power_w.at[1].multiply(1e-5))
    else:
        decision = decision.replace(d2d_power_w=decision.d2d_power_w.at[1, 1].multiply(1e-5))
    cost = evaluate(reliable, decision)
    assert np.isfinite(evaluate(problem, decision).latency_s)
    for leaf in jax.tree.leaves(cost.replace(parts=0, flows=0)):
        assert not np.any(np.isnan(leaf))
    assert np.isinf(cost.cluster_latency_s[1])
    assert np.isinf(cost.objective)
    assert np.isfinite(cost.cluster_latency_s[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_decides_with_reliable_links(problem, name):
    problem = made_reliable(with_ends(problem))
    cost = evaluate(problem, decide(name, problem))
    assert np.isfinite(cost.latency_s)
    assert np.all(cost.loss_probability == 0)


@pytest.mark.slow
def test_dssra_decides_for_reliable_links():
    assert_decides_for(made_reliable, share_optimal=0.5)


@pytest.mark.slow
def test_dssra_goes_around_links_whose_attempts_overflow():
    """Feeble links of a device that nobody needs, within what a receiver still hears."""

    def feeble(_, __, network):
        network["compute"]["memory_bytes"][:] = 1e12
        network["radio"]["d2d_gain"][0, 1] *= 1e-5
        network["radio"]["d2d_gain"][0, :, 1] *= 1e-5

    problem = made_reliable(random_problems(12, CLUSTERS, DEVICES, BLOCKS, feeble, seed=7))

    def decide(problem):
        static = evaluate(problem, static_pipeline(problem, 6)).latency_s
        found = dssra(problem), greedy(problem)
        return static, *(evaluate(problem, each.decision) for each in found), found[0].status

    static_s, ours, greedys, status = jax.jit(jax.vmap(decide))(problem)
    assert np.mean(np.isinf(static_s)) > 0.5
    assert np.all(np.isfinite(ours.objective))
    assert np.all(np.isfinite(greedys.latency_s))
    assert not np.any(status == BROKEN)


@pytest.mark.slow
def test_dssra_finds_what_the_exhaustive_search_finds():
    assert_as_good_as_exhaustive(made_reliable)


@pytest.mark.parametrize(
    "policy",
    [
        vanilla_fl,
        pytest.param(functools.partial(splitfed, client_micro_batches=1), marks=pytest.mark.slow),
    ],
)
def test_shares_of_clients_are_min_max_shares(policy):
    """No random shares are faster, and those of weak clients end where they are fastest."""
    problem = made_reliable(with_ends(pick(random_problems(1, 2, 3, 5), 0)), 8.0)
    decision = policy(problem, split="even")
    latency_s = jax.jit(
        jax.vmap(lambda share: client_latency_s(problem, decision.replace(d2e_share=share)))
    )
    share, used = np.asarray(decision.d2e_share), np.asarray(sends(decision))
    ours_s = np.asarray(latency_s(decision.d2e_share[None]))[0]
    rng = np.random.default_rng(0)
    others = rng.dirichlet(np.ones(share.size), 4000).reshape(-1, *share.shape)
    near = share * np.exp(0.1 * rng.normal(size=(4000, *share.shape)))
    near /= np.maximum(near.sum(axis=(1, 2), keepdims=True), 1.0)
    tried_s = np.asarray(latency_s(jnp.concatenate([others, near]).astype(jnp.float32)))
    assert share.sum() <= 1.0001
    assert ours_s.max() <= tried_s.max(axis=(1, 2)).min() * 1.0001
    grid = np.exp(np.linspace(-9.0, 0.0, 2001))[:, None, None] + np.zeros_like(share)
    alone_s = np.asarray(latency_s(jnp.asarray(grid, jnp.float32)))
    slowest = used & (ours_s > 0.999 * ours_s.max())
    assert slowest.any()
    assert np.all(ours_s >= alone_s.min(axis=0) * 0.9999)
