"""Networks that are computed anew are those that were."""

from itertools import pairwise

import jax
import numpy as np
import pytest
from support import ROOT

import collapipe_jax as cp
from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.system import sample_positions, sample_system
from collapipe_jax.runs.config.system import build_system_params, system_key
from collapipe_jax.runs.documents import read_decision, read_network
from collapipe_jax.runs.report.network import (
    NO_LINK,
    network_of_point,
    network_of_run,
    schematic,
    used_links,
)
from collapipe_jax.runs.results.checkpoints import load_run
from collapipe_jax.runs.results.realisations import load_realisations


@pytest.mark.parametrize("kind", ["pipeline", "clients"])
def test_rounds_of_a_run_take_as_long_as_on_file(folders, kind):
    record = load_run(folders[kind])
    network = network_of_run(record)
    np.testing.assert_allclose(network.latency_s, record.history["latency_s"], rtol=1e-5)
    held = record.history["segments" if kind == "pipeline" else "samples"] > 0
    assert np.all(network.is_there[held])
    assert not network.is_there.all()  # the configuration has devices that are away


def test_who_walks_stays_in_the_disc_of_the_cluster(folders):
    record = load_run(folders["pipeline"])
    position_m = network_of_run(record).position_m
    assert len(position_m) == len(record.history["round"])
    assert np.all(position_m[:, :, 0] == position_m[:1, :, 0])
    assert np.all(np.any(position_m[1:, :, 1:] != position_m[:-1, :, 1:], axis=-1))
    offset_m = np.linalg.norm(position_m[:, :, 1:] - position_m[:, :, :1], axis=-1)
    assert offset_m.max() <= record.config["network"]["cluster_radius_m"] * (1 + 1e-5)


def test_positions_are_those_of_the_network_that_is_drawn():
    overrides = {"network.clusters": 2, "dynamics.speed_m_per_s": 1.0}
    params = build_system_params(cp.read_config("quickstart", overrides))
    system = quick_jit(sample_system)(system_key(3), params)
    drawn = quick_jit(sample_positions)(system_key(3), params)
    np.testing.assert_allclose(system.mobility.start.position_m, drawn, rtol=1e-6)


def test_the_first_network_of_a_comparison_is_that_on_file(folders):
    result = load_realisations(folders["compare"], "compare")
    network = network_of_point(result.settings["config"], 2)
    found = network.mean_problem
    stored = {name: values[0] for name, values in result.networks.items()}
    np.testing.assert_array_equal(found.compute.memory_bytes, stored["memory_limit_bytes"])
    reference_s = stored["reference_latency_s"]
    np.testing.assert_allclose(found.control.reference_latency_s, reference_s, rtol=1e-5)


@pytest.fixture(scope="module")
def example():
    problem = read_network(ROOT / "docs/examples/edge.network.json")
    return problem, read_decision(ROOT / "docs/examples/edge.decision.json", problem)


def test_links_are_the_hops_of_the_chain_and_the_way_to_the_base_station(example):
    problem, decision = example
    links = jax.device_get(quick_jit(used_links)(problem, decision))
    for n, row in enumerate(np.asarray(decision.segments)):
        active = [0, *(np.flatnonzero(row) + 1), 0]
        hops = {int(j): int(to) for j, to in enumerate(links.d2d_to[n]) if to != NO_LINK}
        assert hops == dict(pairwise(active))
        assert links.talks_d2e[n].tolist() == [True, False, False, False]


def test_time_of_a_bit_is_the_stage_of_the_flow_over_its_bits(example):
    problem, decision = example
    links = jax.device_get(quick_jit(used_links)(problem, decision))
    flows = quick_jit(cp.evaluate)(problem, decision).flows
    work, overhead_s = problem.workload, float(problem.compute.link_overhead_s)
    samples = float(work.batch) / np.asarray(decision.micro_batches)[:, None]
    hop_s = links.d2d_bit_s * samples * float(work.activation_bits) + overhead_s
    expected_s = np.where(links.d2d_to == NO_LINK, 0.0, hop_s)
    np.testing.assert_allclose(flows.forward_s[:, 1:-2:2], expected_s, rtol=1e-5)


def test_schematic_distances_are_losses(example):
    problem, _ = example
    radio, place = problem.radio, schematic(problem.radio)
    loss_db = -10 * np.log10(np.asarray(radio.d2e_gain)[:, 0])
    np.testing.assert_allclose(np.linalg.norm(place[:, 0], axis=-1), loss_db, rtol=1e-6)
    loss_db = -10 * np.log10(np.asarray(radio.d2d_gain)[:, 0, 1:])
    away = np.linalg.norm(place[:, 1:] - place[:, :1], axis=-1)
    np.testing.assert_allclose(away / loss_db, (away / loss_db)[0, 0], rtol=1e-6)
