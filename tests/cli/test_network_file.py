"""Training and comparison on networks on file, from the command line to the results."""

import json

import numpy as np
import pytest
from support import SUPPORT
from support.network_files import change, cut, write_sample

from collapipe_jax.cli import compare, train
from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.runs.results.checkpoints import load_run
from collapipe_jax.runs.results.realisations import load_realisations

TINY = f"--config={SUPPORT / 'tiny_run.py'}"
SIZES = ("network.clusters=2", "network.devices=3", "dynamics.availability=1.0")


@pytest.fixture
def network(tmp_path):
    """A network of clusters with 3 and 2 devices."""
    path = write_sample(tmp_path / "a.json", *SIZES)
    path.write_text(json.dumps(cut(json.loads(path.read_text()), [3, 2])))
    return path


@pytest.mark.slow
def test_training_on_a_ragged_network_goes_on_and_refuses_another(network, tmp_path, capfd):
    workdir = tmp_path / "run"
    argv = [TINY, f"--config.network.file={network}", f"--workdir={workdir}"]
    argv += ["--config.training.rounds=3", "--config.dynamics.availability=1.0"]
    train.main(argv)
    config = json.loads((workdir / "config.json").read_text())
    assert (config["network"]["clusters"], config["network"]["devices"]) == (2, 3)
    run = load_run(workdir)
    assert np.all(run.history["segments"][:, 1, 2] == 0)
    assert np.any(run.history["segments"][:, 1, :2] > 0)
    before = (workdir / "summary.json").read_bytes()
    (workdir / "summary.json").unlink()
    train.main([*argv, "--resume"])
    assert (workdir / "summary.json").read_bytes() == before
    change(network, "radio", "bs_power_w", 10.0)
    assert run_reporting_errors(train.main, [*argv, "--resume"]) == 2
    assert "network.file_digest" in capfd.readouterr().err


@pytest.mark.slow
def test_realisations_take_the_networks_of_a_folder_in_turn(network, tmp_path):
    other = change(write_sample(tmp_path / "b.json", *SIZES, "seed=1"), "radio", "bs_power_w", 30.0)
    argv = [TINY, "--rounds=2", "--realisations=4", "--policies=static_pipeline,vanilla_fl"]
    found = {}
    for name, place, chunk in (("both", tmp_path, 3), ("one", other, 4), ("again", tmp_path, 4)):
        place = f"--config.network.file={place}"
        compare.main([*argv, place, f"--workdir={tmp_path / name}", f"--chunk={chunk}"])
        found[name] = load_realisations(tmp_path / name, "compare")
    for policy in ("static_pipeline", "vanilla_fl"):
        both, one, again = (each.policies[policy]["latency_s"] for each in found.values())
        np.testing.assert_allclose(both, again, rtol=1e-6)  # whatever the chunk
        np.testing.assert_allclose(both[1::2], one[1::2], rtol=1e-6)
        assert not np.any(np.isclose(both[::2], one[::2]))
        assert not np.isclose(one[0, 0], one[1, 0])  # its own fading
    memory_bytes = found["both"].networks["memory_limit_bytes"]
    np.testing.assert_array_equal(memory_bytes[::2, 1, 2], [0.0, 0.0])
    assert np.all(memory_bytes[1::2] > 0)


@pytest.mark.parametrize("command", [train, compare])
def test_a_wrong_file_ends_with_one_message(command, tmp_path, capfd):
    argv = [TINY, f"--workdir={tmp_path / 'run'}", "--config.network.file=nowhere.json"]
    assert run_reporting_errors(command.main, argv) == 2
    message = capfd.readouterr().err
    assert message.count("\n") == 1
    assert message.startswith("error: network.file = 'nowhere.json': No such file")
    assert "Name a network, or a folder of them" in message
    assert not (tmp_path / "run").exists()
