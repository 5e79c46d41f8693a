"""Caps on the energy of nodes: room on air, penalties, and powers scaled down to them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compiled import evaluate
from support.random_problems import random_rounds, to_batch_last

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.decision import decision_partition, make_decision
from collapipe_jax.edge.cost.evaluate import air_energy_j, node_energy_j, round_terms
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.solver.allocate import descend_jointly
from collapipe_jax.edge.solver.energy_caps import (
    IN_REACH,
    air_energy_and_slope,
    fix_capped_partition,
    least_air_energy_j,
    scale_powers_to_caps,
)
from collapipe_jax.edge.solver.limits import LEAST_LOG_POWER, to_allocation, to_logs
from collapipe_jax.edge.solver.smooth_maximum import initial_weights
from collapipe_jax.edge.solver.smooth_objective import evaluate_allocation

pytestmark = pytest.mark.usefixtures("double")
CLUSTERS, DEVICES, BLOCKS, BATCH = 2, 3, 5, 12


@pytest.fixture(scope="module")
def some(double):
    """Problems and decisions; budgets are 0.6 of what the decisions spend."""

    def sits_out(index):
        return (1,) if index % 4 == 3 else ()

    problems, decisions = random_rounds(BATCH, CLUSTERS, DEVICES, BLOCKS, sits_out, seed=30)
    spent_j = np.asarray(quick_jit(jax.vmap(evaluate))(problems, decisions).energy_j)
    control = problems.control.replace(
        energy_budget_j=np.where(spent_j > 0, 0.6 * spent_j, 1.0),
        energy_queue=np.zeros_like(spent_j),
    )
    return to_batch_last((problems.replace(control=control), decisions))


def fixed_of(problem, decision):
    return fix_capped_partition(problem, *decision_partition(decision))


def fixed_with_least(problem, decision):
    fixed = fixed_of(problem, decision)
    return fixed, least_air_energy_j(fixed)


def with_powers(logs, shift):
    return logs._replace(d2d_power=logs.d2d_power + shift, d2e_power=logs.d2e_power + shift)


def test_energy_on_air_falls_to_its_least_as_powers_vanish(some):
    problem, decision = some
    gain_factor = np.zeros(problem.radio.cross_gain.shape)
    problem = problem.replace(radio=problem.radio.replace(cross_gain=gain_factor))

    @quick_jit
    def energies(problem, decision, shift):
        fixed = fix_decision(problem, decision)
        logs = with_powers(to_logs(fixed, decision), shift)
        terms = round_terms(fixed, to_allocation(fixed, logs))
        return air_energy_j(fixed, terms.message_j), least_air_energy_j(fixed), fixed.active

    last = np.inf
    for shift in (0.0, -4.0, -10.0, -20.0):
        air_j, least_j, active = (np.asarray(leaf) for leaf in energies(problem, decision, shift))
        assert np.all(air_j[active] >= least_j[active] * (1 - 1e-6))
        assert np.all(air_j <= last)
        last = air_j
    np.testing.assert_allclose(air_j, least_j, rtol=1e-4)
    assert np.all(least_j[~active] == 0)
    assert np.all(least_j[active] > 0)


def test_a_cap_leaves_its_budget_less_computing_where_that_is_in_reach(some):
    problem, decision = some
    fixed, least_j = quick_jit(fixed_with_least)(problem, decision)
    least_j, active = np.asarray(least_j), np.asarray(fixed.active)
    left_j = np.swapaxes(problem.control.energy_budget_j, 0, 1) - np.asarray(fixed.constant_j)
    in_reach = left_j >= IN_REACH * least_j
    room_j = np.asarray(fixed.caps.room_j)
    np.testing.assert_allclose(room_j[active & in_reach], left_j[active & in_reach], rtol=1e-12)
    assert np.all(room_j[active & ~in_reach] > left_j[active & ~in_reach])
    np.testing.assert_allclose(
        room_j[active & ~in_reach], 2 * least_j[active & ~in_reach], rtol=1e-12
    )
    assert np.all(room_j[~active] == 1)
    assert 0.1 < np.mean(in_reach[active]) < 1
    # Budgets are caps now: what the objective charges is no queue's.
    assert not np.any(fixed.costs.energy_per_j)


def test_the_slope_of_energy_on_air_is_that_of_differences_below_the_ceiling(some):
    problem, decision = some
    radio = problem.radio
    wide = 1e3 * radio.max_spectral_efficiency
    silent = np.zeros(radio.cross_gain.shape)
    problem = problem.replace(radio=radio.replace(max_spectral_efficiency=wide, cross_gain=silent))

    @quick_jit
    def found(problem, decision, shift):
        fixed = fixed_of(problem, decision)
        logs = with_powers(to_logs(fixed, decision), shift)
        weights = initial_weights(fixed)
        ones = jax.tree.map(jnp.ones_like, weights)
        return air_energy_and_slope(fixed, logs, ones)

    step = 1e-5
    slope_j = found(problem, decision, 0.0)[1]
    ends = (found(problem, decision, end)[0] for end in (step, -step))
    wanted = np.subtract(*ends) / (2 * step)
    np.testing.assert_allclose(slope_j, wanted, rtol=1e-6, atol=1e-12)
    assert np.any(np.asarray(wanted) > 0)


def test_powers_are_scaled_until_caps_hold_and_no_further(some):
    problem, decision = some
    control = problem.control
    factor = np.random.default_rng(0).choice([1.0, 4.0], control.energy_budget_j.shape)
    generous = control.replace(energy_budget_j=factor * control.energy_budget_j)
    problem = problem.replace(control=generous)

    @quick_jit
    def scaled(problem, decision):
        fixed = fixed_of(problem, decision)
        logs, weights = to_logs(fixed, decision), initial_weights(fixed)
        lower = scale_powers_to_caps(fixed, logs, weights)
        before, _ = air_energy_and_slope(fixed, logs, weights)
        after, _ = air_energy_and_slope(fixed, lower, weights)
        return fixed, logs, lower, before, after

    fixed, logs, lower, before, after = scaled(problem, decision)
    logs, lower, before, after = jax.device_get((logs, lower, before, after))
    active, room_j = np.asarray(fixed.active), np.asarray(fixed.caps.room_j)
    exceeded = active & (before > room_j)
    assert 0.1 < np.mean(exceeded[active]) < 0.9
    assert np.all((after <= room_j * (1 + 1e-2))[active])
    shift = np.asarray(lower.d2d_power - logs.d2d_power)
    assert np.all(shift <= 0)
    assert np.all(shift[exceeded] < 0)
    untouched = active & (shift == 0)
    assert untouched.any()
    assert np.all((after <= room_j)[untouched])
    # A power is lowered for its cap alone, which is then met.
    lowered = active & (shift < 0) & (np.asarray(lower.d2d_power) > LEAST_LOG_POWER + 1e-6)
    assert lowered.any()
    np.testing.assert_allclose(after[lowered], room_j[lowered], rtol=1e-2)
    of_control_units = np.maximum(shift[0], LEAST_LOG_POWER - logs.d2e_power)
    np.testing.assert_allclose(lower.d2e_power - logs.d2e_power, of_control_units, atol=1e-12)
    np.testing.assert_array_equal(lower.d2d_share, logs.d2d_share)


@pytest.mark.slow
def test_a_descent_under_caps_comes_near_them_and_multipliers_of_slack_caps_vanish(some):
    problem, decision = some

    @quick_jit
    def solved(problem, decision):
        fixed = fixed_of(problem, decision)
        logs, weights = to_logs(fixed, decision), initial_weights(fixed)
        end = descend_jointly(fixed, logs, weights, 3000)
        terms = round_terms(fixed, to_allocation(fixed, end.logs))
        point = evaluate_allocation(fixed, end.logs, end.weights)
        lower = scale_powers_to_caps(fixed, end.logs, end.weights)
        kept_j, _ = air_energy_and_slope(fixed, lower, end.weights)
        return fixed, air_energy_j(fixed, terms.message_j), kept_j, end.weights.caps, point

    fixed, air_j, kept_j, multiplier, point = solved(problem, decision)
    assert np.all((kept_j <= fixed.caps.room_j * (1 + 1e-2))[np.asarray(fixed.active)])
    ratio = np.asarray(air_j / fixed.caps.room_j)[np.asarray(fixed.active)]
    multiplier = np.asarray(multiplier / fixed.caps.least_multiplier)[np.asarray(fixed.active)]
    assert np.quantile(ratio, 0.95) < 1.02
    assert np.max(ratio) < 1.2
    slack, tight = ratio < 0.7, multiplier > 100
    assert slack.any()
    assert tight.any()
    assert np.all(multiplier[slack] < 2)
    # A node may still swing around its cap where the descent ends.
    assert np.mean(ratio[tight] > 0.99) > 0.9
    assert np.all(ratio[tight] > 0.8)
    assert np.all(np.isfinite(point.objective))


def test_energy_of_a_decision_is_computing_and_air(some):
    problem, decision = some

    @quick_jit
    def both(problem, decision):
        fixed = fixed_of(problem, decision)
        allocation = to_allocation(fixed, to_logs(fixed, decision))
        made = make_decision(*decision_partition(decision), allocation, fixed.chain.used)
        return node_energy_j(fixed, round_terms(fixed, allocation)), jax.vmap(evaluate, -1, -1)(
            problem, made
        ).energy_j

    by_node, wanted = both(problem, decision)
    np.testing.assert_allclose(by_node, np.swapaxes(wanted, 0, 1), rtol=1e-10)
