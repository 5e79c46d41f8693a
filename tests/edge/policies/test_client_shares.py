"""Min-max shares against optimality conditions and an outside solver."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from support.compiled import control_unit_fl, evaluate, hierarchical_fl, splitfed, vanilla_fl
from support.random_problems import pick, random_problems, with_ends

from collapipe_jax.edge.cost.client_round import (
    client_divergence,
    client_latency_s,
    client_links,
    sends,
)
from collapipe_jax.edge.policies.client_shares import (
    equal_shares,
    min_max_shares,
    reliable_shares,
)

UNPIPELINED = functools.partial(splitfed, client_micro_batches=1)
POLICIES = [UNPIPELINED, hierarchical_fl]
"""With limits of shares and without; others are slow, for they share as one of these."""
POLICIES += [
    pytest.param(policy, marks=pytest.mark.slow)
    for policy in (vanilla_fl, splitfed, control_unit_fl)
]


def test_shares_are_those_of_a_root_finder(x64):
    """Latencies ``a + b / share`` need shares ``b / (t - a)``."""
    rng = np.random.default_rng(0)
    fixed_s, bits = rng.uniform(0.0, 5.0, (3, 4)), rng.uniform(0.1, 3.0, (3, 4))
    used = rng.random((3, 4)) < 0.7

    def excess(limit_s):
        return np.sum(bits[used] / (limit_s - fixed_s[used])) - 1.0

    limit_s = brentq(excess, fixed_s[used].max() + 1e-9, 1e3, xtol=1e-13)
    share = min_max_shares(lambda share: fixed_s + bits / share, jnp.asarray(used))
    expected = np.where(used, bits / (limit_s - fixed_s), 0.0)
    np.testing.assert_allclose(share, expected, rtol=1e-9)


@functools.partial(jax.jit, static_argnums=0)
def decided(policy, problem):
    """A decision, ends of its senders, limits of shares, and latencies beside equal shares."""
    decision = policy(problem, split="even")
    end_s, used = client_latency_s(problem, decision), sends(decision)
    if not decision.whole_model:
        return decision, end_s, used, reliable_shares(problem, decision), None
    equal = policy(problem, split="even", shares="equal")
    latency_s = [evaluate(problem, each).latency_s for each in (decision, equal)]
    return decision, end_s, used, jnp.ones_like(decision.d2e_share), latency_s


@pytest.mark.parametrize("policy", POLICIES)
def test_all_senders_of_a_round_end_together(policy):
    """Or have the largest share they may: nobody can be faster without another being slower."""
    problems = random_problems(6, 3, 4, 5)
    for index in range(6):
        decision, *rest, latency_s = decided(policy, with_ends(pick(problems, index)))
        end_s, used, most = map(np.asarray, rest)
        if decision.tier == "hierarchical":
            end_s = end_s.max(axis=1, keepdims=True)
        share = np.asarray(decision.d2e_share)
        assert np.all(share <= most * 1.0001)
        free = used & (share < most * 0.999)
        assert float(share.sum()) <= 1.0001
        assert float(share.sum()) == pytest.approx(1.0, abs=1e-4) or not np.any(free)
        np.testing.assert_allclose(end_s[free], end_s[used].max(), rtol=2e-4)
        if latency_s is not None:
            assert latency_s[0] <= latency_s[1] * 1.0001


def test_alike_clients_share_equally_and_a_dead_link_leaves_equal_shares():
    used = jnp.array([[True, True, False], [True, True, True]])
    share_of = functools.partial(jax.jit, static_argnums=0)(min_max_shares)
    alike = share_of(lambda share: 1.0 + 1.0 / share, used)
    np.testing.assert_allclose(alike, equal_shares(used), rtol=1e-5)
    dead = share_of(lambda share: jnp.full_like(share, jnp.inf).at[0, 0].set(1.0), used)
    np.testing.assert_array_equal(dead, equal_shares(used))
    nobody = share_of(lambda share: 1.0 / share, jnp.zeros_like(used))
    assert np.all(nobody == 0.0)


def test_a_share_is_at_most_its_limit(x64):
    """With room for all limits everyone has its own; with less those below end together."""
    used, bits = jnp.ones((2, 2), bool), jnp.array([[1.0, 2.0], [3.0, 4.0]])

    def latency_s(share):
        return bits / share

    most = jnp.array([[0.1, 0.2], [0.3, 0.1]])
    np.testing.assert_allclose(min_max_shares(latency_s, used, most), most, rtol=1e-9)
    most = most.at[0, 1].set(1.0).at[0, 0].set(1.0)
    share = np.asarray(min_max_shares(latency_s, used, most))
    assert share[1, 1] == pytest.approx(0.1)  # the slowest, 40 s
    assert share.sum() <= 1.0
    assert np.max(np.asarray(latency_s(share))) == pytest.approx(40.0)


@pytest.mark.slow
def test_split_models_with_the_largest_reliable_shares_have_the_target_divergence(x64):
    """All hazards are then equal, and (19) is at the target."""
    problem = with_ends(pick(random_problems(1, 2, 3, 4), 0))
    radio = problem.radio.replace(bs_power_w=jnp.asarray(1e9))  # no loss on the way down
    decision = splitfed(problem, shares="equal")
    sinr = client_links(problem, decision).uplink_sinr
    radio = radio.replace(outage_threshold=jnp.min(sinr) / 10.0)
    problem = problem.replace(radio=radio)
    lossless = float(jnp.sum(client_divergence(problem, decision).lossless))
    control = problem.control.replace(divergence_target=jnp.asarray(1.3 * lossless))
    problem = problem.replace(control=control)
    most = reliable_shares(problem, decision)
    cost = evaluate(problem, decision.replace(d2e_share=most))
    inside = np.asarray(most) < 1.0
    assert inside.any()
    losses = np.asarray(cost.loss_probability)
    np.testing.assert_allclose(losses[inside], losses.max(), rtol=1e-6)
    if inside.all():
        assert float(cost.divergence) == pytest.approx(1.3 * lossless, rel=1e-6)
    else:
        assert float(cost.divergence) <= 1.3 * lossless * (1.0 + 1e-6)
