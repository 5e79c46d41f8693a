"""The cut between clusters and edge server, decided in the first round."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import compiles
from support.tiny_system import tiny_params

from collapipe_jax.edge.environment import reset, simulate, trial_value, try_cut
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.runs.config.system import cuts_of

ROUNDS, NETWORKS = 3, 6
policy = make_policy("static_pipeline", 4)


@jax.jit
def decided(keys, params, cuts):
    return jax.vmap(lambda key: simulate(reset(key, params), policy, ROUNDS, cuts))(keys)


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None, None))
def at_cut(key, params, cut):
    """Value of a cut, and the horizon that has it; all devices are always there."""
    start = reset(key, params)
    whole = simulate(start._replace(system=start.system.with_cut(cut)), policy, ROUNDS)
    return value_of_first(whole), whole


def same_cut(params, cut):
    """Value of a cut, and the horizon of whom only this one is offered."""
    whole = decided(keys(), params, np.full(len(CUTS), cut))
    return first_value(whole), whole


def value_of_first(whole):
    first = jax.tree.map(lambda leaf: leaf[0], whole)
    return trial_value(first.cost, first.violations)


first_value = jax.jit(jax.vmap(value_of_first))


def params_of(es_flops_per_s=1e12, es_memory_bytes=0.0, memory_share=0.005):
    params = tiny_params()
    devices = {
        "es_flops_per_s": es_flops_per_s,
        "es_memory_bytes": es_memory_bytes,
        "memory_share": memory_share,
    }
    devices = {name: jnp.asarray(value, jnp.float32) for name, value in devices.items()}
    return params.replace(devices=params.devices.replace(**devices))


CASES = {
    "fast server": ({}, {4}),
    "slow server": ({"es_flops_per_s": 1e10}, {0, 4}),
    "server short of memory": ({"es_memory_bytes": 2e7}, {1}),
    "devices short of memory": ({"memory_share": 2e-3}, {1, 2, 3}),
    "no memory at all": ({"memory_share": 1e-9}, {0}),
}
"""What differs from other networks, and the cuts that are best in some."""
CUTS = np.arange(5)


def keys():
    return jax.random.split(jax.random.key(4), NETWORKS)


def test_the_horizon_has_the_best_cut_of_its_first_round_whatever_the_network():
    with compiles(decided, 1):
        for devices, bests in CASES.values():
            params = params_of(**devices)
            found = decided(keys(), params, CUTS)
            values, wholes = zip(*(same_cut(params, cut) for cut in CUTS), strict=True)
            absent, objective = np.array(values).transpose(1, 2, 0).astype(np.float64)
            # Fewest absent clusters, then the least objective, then the fewest blocks.
            best = np.lexsort((np.broadcast_to(CUTS, absent.shape), objective, absent))[:, 0]
            expected = jax.tree.map(
                lambda *leaves, best=best: np.stack(leaves)[best, np.arange(NETWORKS)], *wholes
            )
            jax.tree.map(np.testing.assert_array_equal, found, expected)
            assert set(best.tolist()) == bests


@pytest.mark.slow
def test_the_horizon_of_one_cut_is_that_of_a_network_with_it():
    for devices, _ in CASES.values():
        params = params_of(**devices)
        for cut in CUTS:
            found, expected = same_cut(params, cut), at_cut(keys(), params, cut)
            jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_all_devices_are_there_where_a_cut_is_tried():
    @jax.jit
    def tried(key, params):
        system = try_cut(reset(key, params).system, 2)
        return system.dynamics.availability, system.mean_problem.workload.server_blocks

    availability, server_blocks = tried(jax.random.key(0), tiny_params(availability=0.3))
    assert availability == 1.0
    assert server_blocks == 2


def test_cuts_follow_from_the_configuration():
    model = {"encoder_blocks": 5, "server_blocks": 1, "min_cluster_blocks": -1}
    config = {"model": model}
    assert cuts_of(config, "dssra") is None
    model["min_cluster_blocks"] = 2
    assert cuts_of(config, "dssra_wide").tolist() == [1, 2, 3, 3, 3]
    model["min_cluster_blocks"] = 0
    assert cuts_of(config, "dssra_wide").tolist() == [1, 2, 3, 4, 5]
    assert cuts_of(config, "splitfed") is None
