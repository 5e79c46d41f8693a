"""The command that sweeps keys."""

import json

import numpy as np
import pytest

from collapipe_jax.cli import figures, sweep
from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.results.datasets import open_results
from collapipe_jax.runs.results.realisations import load_points, load_sweep

SMALL = """
from support import tiny_run
get_config = tiny_run.get_config
def get_sweep():
    return {"axis": "V", "log": True, "points": [(v, {"control.v": v}) for v in (1.0, 10.0)]}
"""


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "small.py"
    file.write_text(SMALL)
    return file


def run(config, workdir, *more):
    sizes = ["--rounds=3", "--realisations=2", "--policies=static_pipeline"]
    sweep.main([f"--config={config}", f"--workdir={workdir}", *sizes, *more])


def test_every_point_is_a_comparison_under_its_own_keys(config, tmp_path):
    run(config, tmp_path / "run")
    (line,) = load_sweep(tmp_path / "run")
    assert (line.axis, line.log, line.values) == ("V", True, [1.0, 10.0])
    for value, point in zip(line.values, line.points, strict=True):
        assert point.settings["config"]["control"]["v"] == value
        assert point.cases[0].v == value
        assert point.policies["static_pipeline"]["latency_s"].shape == (2, 3)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [point["at"] for point in summary["points"]] == [{"V": 1.0}, {"V": 10.0}]
    before = (tmp_path / "run" / "summary.json").read_bytes()
    (tmp_path / "run" / "parts" / "static_pipeline" / "0001" / "000000.json").unlink()
    run(config, tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").read_bytes() == before


@pytest.mark.slow
def test_axes_of_the_file_and_the_command_line_and_seeds_make_a_product(config, tmp_path):
    """Also of sizes, whose arrays are of unlike shapes."""
    run(config, tmp_path / "run", "--sweep", "network.devices=2,3 devices.memory_share=0.5,1")
    found = open_results(tmp_path / "run")
    assert found.latency_s.dims == ("policy", "V", "network.devices", "realisation", "round")
    assert found["devices.memory_share"].dims == ("network.devices",)
    energy_j = found.energy_budget_j.sel({"V": 1.0})
    assert energy_j.isnull().any(["realisation", "cluster", "node"]).values.tolist() == [
        True,
        False,
    ]
    points = load_points(tmp_path / "run", "sweep")
    for point, own in enumerate(points):
        devices = own.settings["config"]["network"]["devices"]
        assert devices == 2 + point % 2
        assert own.policies["static_pipeline"]["mean_energy_j"].shape == (2, 2, devices + 1)
    figures.main([f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'figures'}"])
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert names == {"sweep_1", "sweep_mean_1", "sweep_2", "sweep_mean_2"}


def test_seeds_draw_other_networks(tmp_path):
    run("support.tiny_run", tmp_path / "run", "--seeds=2", "--config.seed=3")
    found = open_results(tmp_path / "run")
    assert found.seed.values.tolist() == [3, 4]
    latency_s = found.latency_s.sel(policy="static_pipeline")
    assert not np.any(latency_s.sel(seed=3) == latency_s.sel(seed=4))


@pytest.mark.parametrize(
    ("more", "key"),
    [
        (["--sweep", "control.w=1,2"], "control.w"),
        (["--sweep", "control.v=1,2 policy.name=dssra,greedy"], "policy.name"),
        (["--sweep", "control.v=1,2", "--config.control.v=3"], "control.v"),
        (["--sweep", "control.v=1,2", "--sweep", "network.devices=2,-1"], "network.devices"),
        (["--seeds=2", "--config.network.seed=3"], "network.seed"),
        (["--sweep", "control.v=1,2", "--shard=2/2"], "--shard"),
        (["--sweep", "control.v=1,2", "--cluster=cloud"], "--cluster"),
        (["--sweep", "control.v=1,2", "--shards=2", "--workers=2"], "--shards"),
        (["--sweep", "control.v=1,2", "--cluster-options=time=3"], "--cluster-options"),
        ([], "--sweep"),
    ],
)
def test_what_is_wrong_is_reported_before_there_is_a_workdir(more, key, tmp_path):
    with pytest.raises(InputError) as caught:
        run("support.tiny_run", tmp_path / "run", *more)
    assert caught.value.key == key
    assert not (tmp_path / "run").exists()


def test_a_wrong_file_is_reported(config, tmp_path):
    config.write_text(SMALL.replace('"log"', '"logarithmic"'))
    with pytest.raises(InputError, match="no sweep"):
        run(config, tmp_path / "run")
    config.write_text(SMALL.replace("control.v", "control.w"))
    with pytest.raises(InputError, match=r"control\.w"):
        run(config, tmp_path / "run")
    config.write_text("def get_config(): pass")
    with pytest.raises(InputError, match="get_sweep"):
        run(config, tmp_path / "run")


def test_a_folder_without_a_sweep_is_reported(tmp_path):
    with pytest.raises(InputError, match="no results of sweep"):
        load_sweep(tmp_path)
