"""Clusters of different sizes: what is padded is as if it were not there."""

import json

import jax
import numpy as np
import pytest
from support import ROOT
from support.network_files import cut
from support.tiny_system import tiny_params

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.policies.registry import POLICIES, make_policy
from collapipe_jax.runs.documents import read_network, write_network

EXAMPLE = json.loads((ROOT / "docs" / "examples" / "edge.network.json").read_text())


def ragged(*devices):
    return cut(EXAMPLE, devices)


@pytest.fixture
def read(tmp_path):
    def write_and_read(document, devices=0):
        (tmp_path / "network.json").write_text(json.dumps(document))
        return read_network(tmp_path / "network.json", devices)

    return write_and_read


def without_memory(problem, *devices):
    memory_bytes = problem.compute.memory_bytes
    for device in devices:
        memory_bytes = memory_bytes.at[device].set(0.0)
    return problem.replace(compute=problem.compute.replace(memory_bytes=memory_bytes))


def test_every_number_of_a_ragged_network_has_its_place(read):
    whole, problem = read(EXAMPLE), read(ragged(3, 2))
    assert (problem.clusters, problem.devices) == (2, 3)
    cross = np.asarray(problem.radio.cross_gain)
    assert cross.shape == (2, 4, 2, 4)
    np.testing.assert_array_equal(cross[0, :, 1, :3], whole.radio.cross_gain[0, :, 1, :3])
    np.testing.assert_array_equal(cross[1, :3, 0, :], whole.radio.cross_gain[1, :3, 0, :])
    np.testing.assert_array_equal(
        problem.radio.d2d_gain[1, :3, :3], whole.radio.d2d_gain[1, :3, :3]
    )
    np.testing.assert_array_equal(
        problem.compute.memory_bytes, without_memory(whole, (1, 2)).compute.memory_bytes
    )
    for leaf in jax.tree.leaves(problem):
        assert np.all(np.isfinite(leaf))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.slow
def test_padding_changes_no_decision_and_no_cost(name, read):
    """Against devices with other numbers and memory 0; what nobody reads is 0 on file."""
    document = ragged(3, 2)
    for n, size in enumerate((4, 3)):
        for j in range(size):
            document["radio"]["d2d_gain"][n][j][j] = 0
    padded, explicit = read(document), without_memory(read(EXAMPLE), (1, 2))
    policy, ends = make_policy(name, 2), tiny_params().workload.ends  # of clients' models

    @quick_jit
    def decide(problem):
        problem = problem.replace(workload=problem.workload.replace(ends=ends))
        decision = policy(jax.random.key(0), problem)
        return decision, evaluate(problem, decision)

    (decision, cost), (wanted, expected) = decide(padded), decide(explicit)
    work = "samples" if POLICIES[name].by_clients else "segments"
    np.testing.assert_array_equal(getattr(decision, work), getattr(wanted, work))
    np.testing.assert_allclose(decision.d2e_share, wanted.d2e_share, rtol=1e-5)
    for leaf, other in zip(jax.tree.leaves(cost), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-5)
    assert np.isfinite(cost.latency_s)
    assert cost.energy_j[1, 3] == 0.0
    if not POLICIES[name].by_control_units:  # they have no work for any device
        assert getattr(decision, work)[1, 2] == 0


def test_a_network_can_be_padded_to_more_devices(read):
    problem = read(EXAMPLE, 5)
    assert problem.devices == 5
    assert not np.any(problem.compute.memory_bytes[:, 3:])


def test_a_ragged_network_is_written_with_its_padding(read, tmp_path):
    problem = read(ragged(1, 3))
    write_network(tmp_path / "again.json", problem)
    assert json.loads((tmp_path / "again.json").read_text())["devices"] == 3
    again = read_network(tmp_path / "again.json")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), problem, again)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([3], "^devices = '1 entries': wrong shape"),
        ([3, 0], r"^devices\[1\] = 0.0: zero"),
        ([3, 2.5], r"^devices\[1\] = 2.5: not whole"),
        ([3, "2"], r"^devices\[1\] = '2': not a number"),
        ([3, 3], r"^radio.d2d_power_max_w\[1\] = '3 entries': wrong shape. Give a list of 4"),
        (3, r"^radio.d2d_power_max_w\[1\] = '3 entries': wrong shape. Give a list of 4"),
    ],
)
def test_lengths_that_do_not_fit_are_named(devices, message, read):
    with pytest.raises(InputError, match=message):
        read(ragged(3, 2) | {"devices": devices})


def test_lengths_between_clusters_are_those_of_both(read):
    document = ragged(3, 2)
    document["radio"]["cross_gain"][1][0][0].pop()
    with pytest.raises(InputError, match=r"^radio.cross_gain\[1\]\[0\]\[0\] = '3 entries'"):
        read(document)
