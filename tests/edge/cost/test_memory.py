"""Memory by its formula, and the capacity as its exact inverse."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compiled import in_numpy
from support.random_networks import random_decision, random_network
from support.reference_cost import reference_cost
from support.structs import as_problem

from collapipe_jax.edge.cost import computing
from collapipe_jax.edge.cost.problem import SCHEDULES

NETWORK = random_network(np.random.default_rng(3), 2, 4, 7)
WORK = NETWORK["workload"]

capacity = in_numpy(computing.block_capacity)
device_memory_bytes = in_numpy(computing.device_memory_bytes)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_memory_is_that_of_the_reference(schedule):
    network = NETWORK | {"workload": WORK | {"schedule": schedule}}
    workload = as_problem(network).workload
    for seed in range(9):
        decision = random_decision(np.random.default_rng(seed), network, skipped=seed % 3)
        decision["micro_batches"][0] = (6, 12, 24)[seed // 3]
        expected = reference_cost(network, decision)["memory_bytes"]
        partition = decision["segments"], decision["micro_batches"]
        got = device_memory_bytes(workload, *partition)
        np.testing.assert_allclose(got, expected, 1e-12)


@given(
    memory=st.lists(st.floats(0, 3e9), min_size=4, max_size=4),
    count=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]),
    exact=st.integers(1, 7),
)
def test_capacity_is_the_largest_number_of_blocks_that_fits(memory, count, exact):
    with jax.enable_x64(True):
        workload = as_problem(NETWORK).workload

        def used(blocks):
            """Memory of four devices with these blocks, idle or not."""
            per_block = WORK["block_static_bytes"] + WORK["batch"] * WORK["block_kept_bytes"]
            return blocks * per_block + WORK["batch"] / count * WORK["block_working_bytes"]

        memory = np.array([*memory, used(exact), used(exact) * (1 - 1e-5)])
        got = capacity(workload, memory, np.asarray(count), 1)
        assert got[4:].tolist() == [exact, exact - 1]  # to the byte, and just under
        # The package grants a millionth of slack, in which hypothesis may land.
        assert np.all((used(got) <= memory * (1 + 2e-6)) | (got == 0))
        assert np.all((used(got + 1) > memory * (1 - 2e-6)) | (got == WORK["blocks"]))
        assert got.dtype == np.int32


def test_capacity_takes_leading_axes():
    workload = as_problem(NETWORK).workload
    counts = np.array([1, 2, 24])
    got = capacity(workload, np.full((1, 2, 4), 1.1e9), counts[:, None, None], 1)
    assert got.shape == (3, 2, 4)
    assert np.all(np.diff(got, axis=0) >= 0)  # smaller micro-batches leave more room


def test_no_device_holds_more_than_the_encoder_or_less_than_nothing():
    workload = as_problem(NETWORK).workload
    got = capacity(workload, np.array([0.0, 1.0, 1e15, 1e7]), np.asarray(2), 1)
    assert got.tolist() == [0, 0, WORK["blocks"], 0]
