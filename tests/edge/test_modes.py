"""Who trains: the mode that a network's first round chooses for all its rounds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import compiles
from support.tiny_system import tiny_params

from collapipe_jax.core.batch_axis import pick
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.environment import (
    best_trial,
    observe,
    reset,
    simulate,
    simulate_modes,
    trial_value,
)
from collapipe_jax.edge.policies.registry import make_policy

ROUNDS, NETWORKS = 2, 6
MODES = ("static_pipeline", "splitfed")
# Clients that only choose a cut: other searches take long to build, and modes are alike for all.
SIMPLE = {"split": "even", "shares": "equal", "client_micro_batches": 1, "cut": "best"}
CUTS = np.arange(5)


@jax.jit
def in_all_modes(keys, params, cuts):
    """Values and histories of both modes, and the budgets."""
    policy = make_policy("best_mode", 4, modes=MODES, **SIMPLE)

    def one(key):
        start = reset(key, params)
        return simulate_modes(start, policy, ROUNDS, cuts), start.system.mean_problem.control

    return jax.vmap(one)(keys)


@functools.partial(jax.jit, static_argnames="name")
def alone(keys, params, cuts, name):
    """The history of one policy, in which alone clusters of a pipeline try cuts."""
    policy = make_policy(name, 4, **SIMPLE)
    own = cuts if name == "static_pipeline" else None
    return jax.vmap(lambda key: simulate(reset(key, params), policy, ROUNDS, own))(keys)


def keys():
    return jax.random.split(jax.random.key(4), NETWORKS)


def with_server(params, flops_per_s):
    speed = jnp.asarray(flops_per_s, jnp.float32)
    return params.replace(devices=params.devices.replace(es_flops_per_s=speed))


def test_every_mode_is_its_policy_and_is_judged_by_its_first_round():
    """But for a cut with which the policy by itself overdraws a budget."""
    within = []
    with compiles(in_all_modes, 1):
        for flops_per_s in (1e12, 1e10):
            params = with_server(tiny_params(), flops_per_s)
            modes, budgets = in_all_modes(keys(), params, CUTS)
            for name, (value, history) in zip(MODES, modes, strict=True):
                expected = alone(keys(), params, CUTS, name)
                first = pick((expected.cost, expected.violations), (slice(None), 0))
                judged = jax.vmap(trial_value)(*first, budgets)
                keeps = np.isfinite(judged.objective)
                same = pick((history, value), keeps), pick((expected, judged), keeps)
                jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), *same)
                within.append(keeps.mean())
    assert min(within) < 0.9 < max(within)


def test_a_fast_server_is_for_split_learning():
    """Its clients have their best cut, and the pipelines keep four blocks in a cluster."""
    params = with_server(tiny_params(), 1e12)
    modes, _ = in_all_modes(keys(), params, np.zeros_like(CUTS))
    values = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *(value for value, _ in modes))
    best = jax.vmap(best_trial)(values)
    latency_s = np.stack([history.cost.latency_s[:, 0] for _, history in modes], axis=1)
    able = np.isfinite(values.absent)
    assert set(best.tolist()) == {0, 1}
    np.testing.assert_array_equal(best, np.where(able, latency_s, np.inf).argmin(axis=1))


def test_a_round_over_a_budget_or_the_target_counts_where_queues_are_ignored():
    @jax.jit
    def first(key, params):
        history = simulate(reset(key, params), make_policy("static_pipeline", 4), 1)
        return jax.tree.map(lambda leaf: leaf[0], (history.cost, history.violations))

    start = jax.jit(reset)(jax.random.key(0), tiny_params())
    budgets = start.system.mean_problem.control
    cost, limits = first(jax.random.key(0), tiny_params())
    kept = budgets.replace(
        energy_budget_j=cost.energy_j, divergence_target=jnp.asarray(cost.divergence)
    )
    assert trial_value(cost, limits) == trial_value(cost, limits, kept)
    assert trial_value(cost, limits).objective == cost.objective
    for short in (
        kept.replace(energy_budget_j=kept.energy_budget_j.at[0, 1].multiply(0.9)),
        kept.replace(divergence_target=0.9 * kept.divergence_target),
    ):
        assert np.isinf(trial_value(cost, limits, short)).all()


def test_no_single_round_has_a_mode():
    environment = jax.jit(reset)(jax.random.key(0), tiny_params())
    policy = make_policy("best_mode")
    with pytest.raises(InputError, match=r"policy.modes for all rounds.*Name one of the modes"):
        policy(jax.random.key(0), observe(environment))
    with pytest.raises(InputError, match=r"policy.modes for all rounds"):
        simulate(environment, policy, 1)


@pytest.mark.parametrize("modes", [(), ("dssra", "dssra"), ("best_mode",), ("hierarchical_fl",)])
def test_modes_are_different_policies_with_one_way_of_adding_up(modes):
    with pytest.raises(InputError, match=r"policy.modes.*Name policies, each once"):
        make_policy("best_mode", modes=modes)
