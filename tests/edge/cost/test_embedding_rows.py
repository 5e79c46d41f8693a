"""Rows of the embedding that a round reads, in the cost of a round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.against_reference import base_case
from support.compiled import (
    client_links,
    control_unit_floor_j,
    decide,
    evaluate,
    in_numpy,
    least_latency_s,
    replica_links,
)
from support.random_networks import WHOLE_TABLE, rows_section
from support.random_problems import with_ends
from support.reference_cost import embedding_bits, request_bits
from support.structs import as_decision, as_problem

from collapipe_jax.edge.cost.terms import reading, rows_read

DECIDED = ("vanilla_fl", "splitfed", "selected_fl", "control_unit_fl", "hierarchical_fl")
DECIDED += ("static_pipeline",)


def slow(*values):
    """Cases of clients who send as others do."""
    return pytest.param(*values, marks=pytest.mark.slow)


def network_with_rows(**changes):
    return {**base_case()[0], "embedding_rows": {**rows_section(), **changes}}


def whole_and_read(**changes):
    """The base case in which whole tables travel, and the same with rows."""
    return as_problem(base_case()[0]), as_problem(network_with_rows(**changes))


def decision_of(name):
    """Of a policy whose clients have equal shares and parts, or drawn."""
    if name not in DECIDED:
        return as_decision(base_case()[1])
    problem = with_ends(as_problem(base_case()[0]))
    return jax.device_get(decide(name, problem, shares="equal", split="even"))


@pytest.mark.usefixtures("x64")
def test_rows_are_on_the_lines_between_points():
    rows = whole_and_read()[1].embedding_rows
    samples = np.linspace(0, 120, 241)
    expected = np.interp(samples, rows.samples, rows.rows_read)

    read = in_numpy(rows_read)
    np.testing.assert_allclose(read(rows, samples), expected, rtol=1e-12)
    # Points of a mini-batch of one sample are the same.
    rows = rows.replace(
        samples=np.array([0.0, 1, 1, 1, 1, 2]), rows_read=np.array([0.0, 5, 5, 5, 5, 8])
    )
    np.testing.assert_allclose(read(rows, np.clip(samples, 0, 2))[[0, 2, -1]], [0, 5, 8])


@pytest.mark.parametrize(
    "name",
    [
        *("hierarchical_fl", "base_case"),
        *map(slow, ("splitfed", "vanilla_fl", "selected_fl", "control_unit_fl", "static_pipeline")),
    ],
)
@pytest.mark.usefixtures("x64")
def test_all_rows_cost_as_whole_tables_and_their_numbers(name):
    """Each sender's upload has the numbers besides, and nothing else changes."""
    plain, same = (with_ends(each) for each in whole_and_read(**WHOLE_TABLE))
    decision = decision_of(name)
    before, after = evaluate(plain, decision), evaluate(same, decision)
    for part in ("latency_s", "energy_j", "objective", "cluster_latency_s", "divergence"):
        np.testing.assert_allclose(getattr(after, part), getattr(before, part), rtol=1e-12)
    numbered = with_ends(whole_and_read(**WHOLE_TABLE | {"number_bits": 1.7e3})[1])
    more_s = evaluate(numbered, decision).parts.upload_s - before.parts.upload_s
    assert np.all(more_s > 0.0)


@pytest.mark.parametrize(
    ("name", "broadcast"),
    [
        ("vanilla_fl", False),
        ("splitfed", True),
        ("hierarchical_fl", False),
        ("hierarchical_fl", True),
        slow("vanilla_fl", True),
        slow("splitfed", False),
        *(
            slow(name, each)
            for name in ("selected_fl", "control_unit_fl")
            for each in (False, True)
        ),
    ],
)
@pytest.mark.usefixtures("x64")
def test_clients_exchange_the_rows_of_their_own_samples(name, broadcast):
    network = network_with_rows()
    plain = with_ends(as_problem(network_with_rows(**WHOLE_TABLE)))
    problem = with_ends(as_problem(network))
    decision = decision_of(name).replace(broadcast=broadcast)
    before, after = evaluate(plain, decision).clients, evaluate(problem, decision).clients
    links, samples = client_links(plain, decision), decision.samples
    whole = network["workload"]["embedding_param_bits"]

    def fewer(counts):
        return np.vectorize(lambda b: whole - embedding_bits(network, b))(counts)

    def asked(counts):
        return np.vectorize(lambda b: request_bits(network, b))(counts)

    spoken = samples.sum(1, keepdims=True) if name == "hierarchical_fl" else samples
    heard = np.full_like(spoken, samples.sum()) if broadcast else spoken
    down_s = fewer(heard) * links.parameter_bit_s
    up_s = (fewer(spoken) - asked(spoken)) * links.uplink_bit_s
    if name == "hierarchical_fl":
        inside, trains = replica_links(plain, decision), samples > 0
        own_s = np.where(trains, fewer(spoken if broadcast else samples) * inside.down_bit_s, 0.0)
        if broadcast:  # of the same rows for all, at the slowest link
            own_s = own_s.max(1, keepdims=True)
        down_s = down_s + own_s.sum(1, keepdims=True)
        back_s = np.where(trains, (fewer(samples) - asked(samples)) * inside.up_bit_s, 0.0)
        up_s = up_s + back_s.sum(1, keepdims=True)
    trains = samples > 0
    saved_s = before.download_s - after.download_s, before.upload_s - after.upload_s
    np.testing.assert_allclose(saved_s[0], np.where(trains, down_s, 0.0), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(saved_s[1], np.where(trains, up_s, 0.0), rtol=1e-7, atol=1e-12)
    np.testing.assert_array_equal(after.computing_s, before.computing_s)


@pytest.mark.usefixtures("x64")
def test_a_part_of_the_embedding_that_is_no_table_travels_whole():
    _, problem = whole_and_read()
    work, rows = problem.workload, problem.embedding_rows
    nothing = jax.jit(reading)(problem, jnp.array(0)).embedding_param_bits
    rest = work.embedding_param_bits - rows.table_rows * rows.row_bits
    np.testing.assert_allclose(nothing, rest, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_floors_foresee_it():
    plain, problem = whole_and_read(number_bits=13.0)
    assert np.all(control_unit_floor_j(problem) < control_unit_floor_j(plain))
    assert least_latency_s(problem) < least_latency_s(plain)
