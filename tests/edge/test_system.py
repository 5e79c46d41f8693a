import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import ROOT
from support.compiled import evaluate
from support.tiny_system import tiny_params

from collapipe_jax.edge.cost.convergence import lossless_divergence
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.queues import control_unit_floor_j
from collapipe_jax.edge.system import sample_system


@jax.jit
def draw(params):
    """Sixteen systems, and the floor of the budget of their control units."""
    keys = jax.random.split(jax.random.key(0), 16)
    systems = jax.vmap(sample_system, in_axes=(0, None))(keys, params)
    return systems, jax.vmap(control_unit_floor_j)(systems.mean_problem)


@pytest.fixture(scope="module")
def systems():
    return draw(tiny_params())[0]


def test_gains_are_reciprocal_and_of_one_network(systems):
    radio = systems.mean_problem.radio
    cross = np.asarray(radio.cross_gain)
    np.testing.assert_allclose(cross, cross.transpose(0, 3, 4, 1, 2), rtol=1e-5)
    clusters = np.arange(cross.shape[1])
    own = cross[:, clusters, :, clusters, :].transpose(1, 0, 2, 3)
    np.testing.assert_allclose(radio.d2d_gain, own, rtol=1e-5)
    assert np.all(cross > 0)
    assert np.all(np.asarray(radio.d2e_gain) > 0)


def test_the_reference_is_the_static_pipeline_at_mean_gains(systems):
    problem = systems.mean_problem
    count = tiny_params().control.reference_micro_batches
    static = jax.jit(jax.vmap(lambda one: evaluate(one, static_pipeline(one, count))))
    cost = static(problem)
    np.testing.assert_allclose(problem.control.reference_latency_s, cost.latency_s, rtol=1e-5)
    assert np.all(np.isfinite(cost.latency_s))
    assert np.unique(np.asarray(cost.latency_s)).size == 16


def test_budgets_powers_and_empty_queues(systems):
    params, problem = tiny_params(), systems.mean_problem
    budget_j = np.asarray(problem.control.energy_budget_j)
    assert np.all(budget_j[..., 0] == np.float32(params.control.control_unit_budget_j))
    assert np.all(budget_j[..., 1:] == np.float32(params.control.device_budget_j))
    power_w = np.asarray(problem.radio.d2d_power_max_w)
    assert np.all(power_w[..., 0] == np.float32(params.radio.control_unit_power_max_w))
    assert np.all(power_w[..., 1:] == np.float32(params.radio.d2d_power_max_w))
    assert not np.any(problem.control.energy_queue)
    assert not np.any(problem.control.divergence_queue)
    floor = lossless_divergence(
        params.learning, params.workload.batch, jnp.ones(params.topology.clusters, bool)
    )
    target = np.asarray(problem.control.divergence_target)
    np.testing.assert_allclose(target, params.control.divergence_ratio * floor, rtol=1e-6)


def test_another_key_draws_another_network(systems):
    gain = np.asarray(systems.mean_problem.radio.d2e_gain).reshape(16, -1)
    assert np.unique(gain[:, 0]).size == 16


def test_a_control_unit_gets_a_margin_over_its_floor():
    params = tiny_params()
    changed = {"control_unit_margin": 2.0, "control_unit_budget_j": 1e-6}
    changed = {name: jax.device_put(value) for name, value in changed.items()}
    systems, floor_j = draw(params.replace(control=params.control.replace(**changed)))
    budget_j = np.asarray(systems.mean_problem.control.energy_budget_j)[..., 0]
    np.testing.assert_allclose(budget_j, 2.0 * np.asarray(floor_j), rtol=1e-6)
    assert np.all(np.asarray(floor_j) > 1e-6)


def test_a_network_is_defined_without_any_policy():
    code = (
        "import sys, collapipe_jax.edge.system as _; "
        "print([name for name in sys.modules if name.startswith('collapipe_jax.edge.policies')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert found.stdout == "[]\n", found.stderr
