"""Networks on file take the place of drawn ones, and other keys follow them."""

import hashlib
import json
import shutil

import jax
import numpy as np
import pytest
from support.changed_keys import TINY, changed
from support.network_files import change, cut, write_sample

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.evaluate import evaluate
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.environment import Environment, initial_state, observe
from collapipe_jax.edge.system import sample_system
from collapipe_jax.runs.config.checks import check_config, read_networks
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.config.files import read_config
from collapipe_jax.runs.config.system import build_system, build_system_params
from collapipe_jax.runs.documents import read_network


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three clusters, of 3 devices in the first network and 2 in the second."""
    folder = tmp_path_factory.mktemp("networks")
    sizes = ("network.clusters=3", "network.devices=3", "dynamics.availability=1.0")
    document = json.loads(write_sample(folder / "a.json", *sizes).read_text())
    (folder / "b.json").write_text(json.dumps(cut(document, [2, 2, 2])))
    return folder


def with_file(place, base=TINY):
    return changed("network.file", str(place), base)


def test_clusters_devices_and_digest_follow_the_file(folder):
    config = check_config(with_file(folder / "b.json"))
    assert (config.network.clusters, config.network.devices) == (3, 2)
    content = (folder / "b.json").read_bytes()
    assert config.network.file_digest == hashlib.sha256(content).hexdigest()
    assert check_config(config) == config
    both = check_config(with_file(folder))
    assert (both.network.clusters, both.network.devices) == (3, 3)
    assert both.network.file_digest != config.network.file_digest
    assert check_config(changed("network.file", "", both)).network.file_digest == ""


@pytest.mark.slow
def test_radio_and_devices_are_those_of_the_file_and_all_else_of_the_configuration(folder):
    config = changed("dynamics.availability", 1.0, with_file(folder / "a.json"))
    given, problem = read_network(folder / "a.json"), build_system(config).mean_problem
    for name in ("radio", "compute"):
        jax.tree.map(np.testing.assert_array_equal, getattr(given, name), getattr(problem, name))
    assert problem.workload.blocks == TINY.model.encoder_blocks
    assert np.all(problem.control.energy_budget_j[:, 1:] == TINY.control.device_budget_j)
    count = TINY.policy.micro_batches
    static = evaluate(problem, static_pipeline(problem, count))
    np.testing.assert_allclose(problem.control.reference_latency_s, static.latency_s, rtol=1e-5)
    for name, law in (("rate_law", "ergodic"), ("duplex", "half"), ("retransmissions", "reliable")):
        params = build_system_params(changed(f"radio.{name}", law, config))
        assert getattr(params.networks.radio, name) == law  # no document has it


@pytest.mark.slow
def test_fading_is_on_top_of_the_gains_of_the_file(folder, tmp_path):
    """Entries of a document that mean nothing are not read."""
    path = shutil.copy(folder / "a.json", tmp_path / "network.json")
    given, own = read_network(path).radio, np.arange(3)
    cross_gain = np.array(given.cross_gain)
    cross_gain[own, :, own, :] = 0.0
    change(path, "radio", "cross_gain", cross_gain.tolist())
    frozen = changed("dynamics.d2e_rician_factor", 1e9, with_file(path))
    gains = []
    for d2d_rician_factor in (1e9, 1.0):
        config = changed("dynamics.d2d_rician_factor", d2d_rician_factor, frozen)
        system = build_system(config)
        state = initial_state(jax.random.key(0), system)
        radio = observe(Environment(system, state, jax.random.key(1))).radio
        np.testing.assert_allclose(radio.d2e_gain, given.d2e_gain, rtol=1e-3)
        gains.append(np.asarray(radio.d2d_gain) / given.d2d_gain)
    np.testing.assert_allclose(gains[0], 1.0, rtol=1e-3)
    assert not np.any(np.isclose(gains[1], 1.0, rtol=1e-3))


def test_receive_power_is_0_in_documents_that_lack_it(folder):
    change(folder / "a.json", "compute", "receive_power_w", 0.5)
    compute = build_system_params(with_file(folder)).networks.compute
    assert compute.receive_power_w.tolist() == [0.5, 0.0]


def test_networks_of_a_folder_come_in_turn(folder):
    params = build_system_params(with_file(folder))
    draw = jax.jit(lambda index: sample_system(jax.random.key(0), params, index))
    gains = [np.asarray(draw(index).mean_problem.radio.d2e_gain) for index in range(4)]
    first, second = (read_network(folder / f"{name}.json", 3).radio for name in "ab")
    for index, gain in enumerate(gains):
        np.testing.assert_array_equal(gain, (first, second)[index % 2].d2e_gain)
    assert not np.any(draw(1).mean_problem.compute.memory_bytes[:, 2])
    of_seeds = [build_system(changed("seed", seed, with_file(folder))) for seed in (2, 3)]
    for index, system in enumerate(of_seeds):
        np.testing.assert_array_equal(system.mean_problem.radio.d2e_gain, gains[index])


def test_all_that_depends_on_sizes_follows(folder):
    built = build_experiment(with_file(folder))
    assert len(built.cluster_indices) == len(built.cluster_weight) == 3
    assert (built.system.mean_problem.clusters, built.system.mean_problem.devices) == (3, 3)
    assert built.config["network"]["clusters"] == built.config["network"]["devices"] == 3


def test_sizes_may_not_be_given_beside_a_file(folder):
    for name in ("network.clusters", "network.devices", "network.file_digest"):
        with pytest.raises(InputError, match=f"^{name} = .*Leave it out"):
            read_config("default", {"network.file": str(folder / "a.json"), name: 3})
    assert read_config("default", {"network.file": str(folder)}).network.clusters == 3


def test_devices_without_positions_do_not_walk(folder):
    walking = changed("dynamics.speed_m_per_s", 1.4, with_file(folder))
    with pytest.raises(InputError, match=r"^dynamics.speed_m_per_s = 1.4: .* Give 0, or clear"):
        check_config(walking)


def test_wrong_files_are_named(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.json").write_text("{")
    mixed = tmp_path / "mixed"
    shutil.copytree(folder, mixed)
    write_sample(mixed / "c.json")
    dB = shutil.copy(folder / "a.json", tmp_path / "dB.json")
    change(dB, "radio", "d2e_gain", [[93.5] * 4] * 3)
    for place, message in (
        ("nowhere.json", r"nowhere.json': No such file.* Name a network, or a folder"),
        ("a\0b", "unreadable.* Name a network, or a folder"),
        ("empty", r"empty': a folder without \*.json"),
        ("notes.json", r"notes.json': .*not JSON"),
        ("dB.json", r"dB.json': radio.d2e_gain\[0\]\[0\] = 93.5: out of bounds .* loss in dB\?"),
        ("mixed", r"c.json': it has 2 clusters, and .*a.json has 3"),
    ):
        with pytest.raises(InputError, match=f"^network.file = .*{message}"):
            check_config(with_file(tmp_path / place))


def test_a_file_that_changes_is_read_anew(folder, tmp_path):
    network = tmp_path / "network.json"
    document = json.loads((folder / "a.json").read_text())
    network.write_text(json.dumps(document))
    before = check_config(with_file(network))
    change(network, "radio", "bs_power_w", 10.0)
    after = check_config(with_file(network))
    assert after.network.file_digest != before.network.file_digest
    assert build_system_params(after).networks.radio.bs_power_w == 10.0
    with pytest.raises(InputError, match=r"^network.file = .*it changed after"):
        build_system_params(before)


def test_networks_with_and_without_memory_of_control_units_go_together(folder, tmp_path):
    """One without has no limit."""
    for name in ("a", "b"):
        shutil.copy(folder / f"{name}.json", tmp_path)
    document = json.loads((tmp_path / "b.json").read_text())
    given = document["compute"].pop("control_unit_memory_bytes")
    (tmp_path / "b.json").write_text(json.dumps(document))
    networks, _ = read_networks(str(tmp_path))
    memory_bytes = networks.compute.control_unit_memory_bytes
    assert len(given) == 3
    assert np.all(np.isfinite(memory_bytes[0]))
    assert np.all(np.isinf(memory_bytes[1]))
