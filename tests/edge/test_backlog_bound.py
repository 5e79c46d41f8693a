"""Backlogs that nobody can avoid: a lower bound, near what can be reached."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from support.random_problems import pick
from support.tiny_system import tiny_params

from collapipe_jax.edge import queues
from collapipe_jax.edge.cost.convergence import excess_inverse_survival
from collapipe_jax.edge.environment import observed_problems, reset, simulate
from collapipe_jax.edge.network.channel import spectral_efficiency, transport_block_hazard
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.edge.queues import backlog_lower_bound, control_unit_floor_j

ROUNDS, NETWORKS = 12, 6
POLICY = make_policy("static_pipeline", 8)


@pytest.fixture(scope="module", autouse=True)
def floors_in_one_program():
    """Single operations would compile for longer."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(queues, "_floors", jax.jit(queues._floors))
        yield


@pytest.fixture(scope="module")
def params():
    """Budgets of control units near their floors, under fading without a direct path."""
    params = tiny_params(d2e_rician_factor=0.0)
    control = params.control.replace(control_unit_budget_j=1e-6, control_unit_margin=1.5)
    return params.replace(control=jax.tree.map(jnp.asarray, control))


@pytest.fixture(scope="module")
def channels(params):
    keys = jax.random.split(jax.random.key(1), NETWORKS)

    @jax.jit
    @jax.vmap
    def observe(key):
        return observed_problems(reset(key, params), POLICY, ROUNDS)

    return observe(keys)


def alone(path):
    """One network as a batch."""
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[None]), path)


def bound_of(path, limit):
    """Of one network, ``[N]``."""
    return backlog_lower_bound(alone(path), limit)[0]


def queue_of(spent):
    """(20) written out, ``[T, ...]``."""
    queue = 0.0
    for one in spent:
        queue = np.maximum(queue + one - 1.0, 0.0)
    return queue


def test_with_any_divergence_it_is_the_queue_of_the_floors(channels):
    floor_j = jax.jit(jax.vmap(jax.vmap(control_unit_floor_j)))(channels)
    floor = np.asarray(floor_j / channels.control.energy_budget_j[..., 0], float)
    found = backlog_lower_bound(channels, np.inf)
    np.testing.assert_allclose(found, queue_of(np.swapaxes(floor, 0, 1)), atol=1e-4)
    assert np.max(found) > 1.0


@pytest.mark.slow
def test_no_policy_ends_below_it(params, channels):
    """At many powers: those that lose too much for a limit are no counterexample to it."""
    keys = jax.random.split(jax.random.key(1), NETWORKS)

    @jax.jit
    @jax.vmap
    def run(key, decibel):
        def weaker(key, problem):
            decision = POLICY(key, problem)
            power_w = decision.d2e_power_w * 10.0 ** (-decibel / 10.0)
            return decision.replace(d2e_power_w=power_w)

        happened = simulate(reset(key, params), weaker, ROUNDS)
        return happened.queues.energy[-1, :, 0], happened.cost.divergence

    held = 0
    for decibel in (0.0, 5.0, 10.0, 15.0, 20.0, 30.0):
        ended, divergence = run(keys, jnp.full(NETWORKS, decibel))
        for index in range(NETWORKS):
            path = pick(channels, index)
            used = float(np.mean(divergence[index] / path.control.divergence_target))
            least = bound_of(path, used)
            assert np.all(ended[index] >= least * (1 - 1e-4) - 1e-4)
            assert np.all(least >= bound_of(path, np.inf) - 1e-4)
            held += int(np.sum(least > 0.5 * np.asarray(ended[index])))
    assert held > 3  # the bound is not idle


@pytest.mark.slow
def test_it_is_near_the_least_that_uplinks_can_reach(channels):
    """SINRs of all rounds by an outside solver, on the cluster with the largest backlog."""
    path = pick(channels, np.argmax(backlog_lower_bound(channels, 2.0).max(axis=1)))
    limit = 1.3
    cluster = int(np.argmax(bound_of(path, limit)))
    uplink, rest, loss_weight, loss_free = (
        np.asarray(x[0], float) for x in queues._floors(alone(path))
    )
    uplink, rest, loss_weight = uplink[:, cluster], rest[:, cluster], loss_weight[:, cluster]
    first = jax.device_get(pick(path, 0))
    work, radio = first.workload, first.radio
    bits = work.activation_bits + work.target_bits
    blocks = work.batch / work.micro_batch_choices.max() * bits / radio.transport_block_bits

    def spent(log_sinr):
        sinr = jnp.exp(log_sinr)
        factor = sinr / (radio.snr_gap * np.log(2.0) * spectral_efficiency(sinr, radio))
        return uplink * factor + rest

    def lost(log_sinr):
        hazard = blocks * transport_block_hazard(radio, jnp.exp(log_sinr))
        return jnp.sum(loss_weight * excess_inverse_survival(hazard)) + loss_free.sum()

    def last_sums(log_sinr):
        return jnp.cumsum((spent(log_sinr) - 1.0)[::-1])

    with jax.enable_x64(True):
        room, sums = jax.jit(lost), jax.jit(last_sums)
        slopes = jax.jit(jax.grad(lost)), jax.jit(jax.jacobian(last_sums))
        start = np.append(np.full(ROUNDS, 2.0), 100.0)
        found = minimize(
            lambda x: x[-1],
            start,
            jac=lambda x: np.eye(ROUNDS + 1)[-1],
            method="SLSQP",
            bounds=[(-8.0, 8.0)] * ROUNDS + [(0.0, None)],
            constraints=[
                {
                    "type": "ineq",
                    "fun": lambda x: limit * ROUNDS - float(room(x[:-1])),
                    "jac": lambda x: -np.append(slopes[0](x[:-1]), 0.0),
                },
                {
                    "type": "ineq",
                    "fun": lambda x: x[-1] - np.asarray(sums(x[:-1])),
                    "jac": lambda x: np.hstack(
                        [-np.asarray(slopes[1](x[:-1])), np.ones((ROUNDS, 1))]
                    ),
                },
            ],
            options={"maxiter": 500, "ftol": 1e-10},
        )
    assert found.success
    least = bound_of(path, limit)[cluster]
    assert least <= found.fun * (1 + 1e-5)
    assert least >= 0.99 * found.fun > 1.01 * bound_of(path, np.inf)[cluster]
