"""Policies on common random numbers, in chunks, against direct simulation."""

import functools
import itertools
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from support.tiny_system import tiny_params

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.environment import reset, simulate
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.runs.results.experiment import Results, Variable
from collapipe_jax.runs.results.store import Place, Shard, read_shard
from collapipe_jax.runs.studies.montecarlo import (
    Setup,
    Work,
    policy_options,
    realisation_keys,
    run_parts,
    with_v,
)
from collapipe_jax.runs.studies.sweep_records import per_round
from experiments.studies.closed_loop_limits import limit_use, time_means

ROUNDS, REALISATIONS, CHUNK = 3, 5, 2
POLICY = make_policy("static_pipeline", 4)


@pytest.fixture(scope="module")
def params():
    return tiny_params()


def latencies(system, history):
    return {"latency_s": Variable("round", history.cost.latency_s)}


def places(cases):
    starts = range(0, REALISATIONS, CHUNK)
    return {
        name: {
            f"{name}/{start:06d}": Place({"case": (index, len(cases))}, start, REALISATIONS, CHUNK)
            for start in starts
        }
        for index, name in enumerate(cases)
    }


def run(folder, cases):
    results = Results.create(folder, "study", {"rounds": ROUNDS, "cases": list(cases)})
    config = {"seed": 7, "network": {}}
    works = {
        part: Work(cases[name], place, config)
        for name, parts in places(cases).items()
        for part, place in parts.items()
    }
    run_parts(results, works, latencies, Console(quiet=True))
    return results


def read(results, name):
    chunks = results.read_parts(places(results.options["cases"])[name])
    return np.concatenate([chunk["latency_s"] for chunk in chunks.values()])


@functools.cache
def simulated_by(name):
    """The program of a network's history under a policy, and what reducers make of it."""

    @jax.jit
    def simulated(key, params):
        start = reset(key, params)
        history = simulate(start, make_policy(name, 4), ROUNDS)
        reducers = per_round, time_means, limit_use
        return history, [reduce(start.system, history) for reduce in reducers]

    return simulated


@pytest.fixture(scope="module")
def finished(params, tmp_path_factory):
    """A run of one case; its folder is not to be changed."""
    return run(tmp_path_factory.mktemp("finished"), {"one": Setup(POLICY, params)})


def test_chunks_are_the_realisations_one_by_one(finished, params):
    assert list(places(["one"])["one"]) == ["one/000000", "one/000002", "one/000004"]
    keys = realisation_keys(7, REALISATIONS)
    expected = [simulated_by("static_pipeline")(key, params)[0].cost.latency_s for key in keys]
    np.testing.assert_allclose(read(finished, "one"), expected, rtol=1e-5)


def test_more_realisations_leave_the_first_ones_as_they_are():
    few, many = realisation_keys(3, 2), realisation_keys(3, 5)
    assert jnp.all(jax.random.key_data(few) == jax.random.key_data(many[:2]))


def test_arguments_of_a_policy_and_v_compile_nothing_anew(tmp_path, params):
    chex.clear_trace_counter()

    @chex.assert_max_traces(n=1)
    def thrifty(key, problem, power):
        decision = POLICY(key, problem)
        return decision.replace(d2e_power_w=power * problem.control.v * decision.d2e_power_w)

    cases = {
        f"{v}_{power}": Setup(thrifty, with_v(params, v), (power,))
        for v in (0.5, 1.0)
        for power in (0.5, 1.0)
    }
    results = run(tmp_path, cases)
    slow, middle, other, fast = (read(results, name).mean() for name in cases)
    assert slow > middle > fast
    assert other == pytest.approx(middle)


def test_a_stopped_run_simulates_what_is_missing(finished, params, tmp_path):
    stopped = Results.open(shutil.copytree(finished.folder, tmp_path / "run"), "study")
    stopped.path("one/000002").unlink()
    kept = stopped.path("one/000000").stat().st_mtime_ns
    run(stopped.folder, {"one": Setup(POLICY, params)})
    np.testing.assert_array_equal(read(stopped, "one"), read(finished, "one"))
    assert stopped.path("one/000000").stat().st_mtime_ns == kept


def test_options_are_checked_before_any_work():
    sizes = {"rounds": 2, "realisations": 3, "chunk": 8}
    options = policy_options(["random", "dssra", "random"], v=[3], **sizes)
    assert (options["policies"], options["v"], options["chunk"]) == (["random", "dssra"], [3.0], 3)
    with pytest.raises(InputError, match=r"policy\.name"):
        policy_options(["best"], **sizes)
    with pytest.raises(InputError, match="--chunk"):
        policy_options(["dssra"], **{**sizes, "chunk": 0})


@pytest.mark.parametrize(
    "name",
    [
        "static_pipeline",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("splitfed", "control_unit_fl")),
    ],
)
def test_reducers_keep_what_the_history_has(name, params):
    """Of one network, against sums over its whole history; axes are those of the arrays."""
    history, variables = simulated_by(name)(realisation_keys(0, 1)[0], params)
    kept = {}
    for found in variables:
        for label, variable in found.items():
            assert len(variable.axes.split()) == variable.values.ndim
            kept[label] = np.asarray(variable.values)
    cost = jax.tree.map(np.asarray, history.cost)
    np.testing.assert_allclose(kept["parts_s"].sum(axis=1), cost.latency_s, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(kept["energy_j"], cost.energy_j.sum(axis=(1, 2)), rtol=1e-5)
    np.testing.assert_allclose(kept["mean_latency_s"], cost.latency_s.mean(), rtol=1e-5)
    np.testing.assert_allclose(kept["latency"].mean(), kept["latency_over_reference"], rtol=1e-5)
    assert np.all(kept["participation"] == 1.0)
    fullest = cost.control_unit_memory_bytes if name == "control_unit_fl" else cost.memory_bytes
    np.testing.assert_allclose(kept["device_memory_bytes"], fullest.reshape(ROUNDS, -1).max(axis=1))
    nodes = kept["energy_over_budget"].size
    assert kept["use"].shape == (ROUNDS, nodes + 1)
    np.testing.assert_allclose(
        kept["use"].mean(axis=0)[:-1], kept["energy_over_budget"].ravel(), rtol=1e-5
    )
    np.testing.assert_allclose(kept["last_queue"][-1], history.queues.divergence[-1], rtol=1e-6)
    queue = np.vstack([kept["queue"][1:], kept["last_queue"]])
    grown = np.maximum(kept["queue"] + kept["use"] - 1.0, 0.0)
    np.testing.assert_allclose(queue, grown, rtol=1e-5, atol=1e-6)
    assert np.all(kept["effective_queue"] >= kept["queue"])


@pytest.mark.parametrize("count", [1, 3, 7])
def test_every_part_is_of_one_shard(count):
    parts = [str(index) for index in range(5)]
    shards = [Shard(index, count).of(parts) for index in range(count)]
    assert sorted(itertools.chain(*shards)) == parts


def test_a_shard_is_a_number_of_a_count():
    assert read_shard("2/3") == (2, 3)
    for wrong in ("3/3", "1", "-1/3", "a/b", "1/0"):
        with pytest.raises(InputError, match="--shard"):
            read_shard(wrong)
