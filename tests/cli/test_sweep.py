import itertools
import json

import pytest
from support import ROOT

from collapipe_jax.cli import sweep
from collapipe_jax.config.files import read_config, read_sweep
from collapipe_jax.errors import InputError
from collapipe_jax.files.realisations import load_sweep, point_folder
from configs import sweeps

CONFIGS = str(ROOT / "configs" / "sweeps.py")
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


def run(config, workdir):
    sweep.main(
        [
            f"--config={config}",
            f"--workdir={workdir}",
            "--rounds=2",
            "--realisations=2",
            "--policies=static_pipeline",
        ]
    )


def test_every_point_is_a_comparison_under_its_own_keys(config, tmp_path):
    run(config, tmp_path / "run")
    result = load_sweep(tmp_path / "run")
    assert (result.axis, result.log, result.values) == ("V", True, [1.0, 10.0])
    for value, point in zip(result.values, result.points, strict=True):
        assert point.settings["config"]["control"]["v"] == value
        assert point.policies["static_pipeline"]["latency_s"].shape == (2, 2)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [point["value"] for point in summary["points"]] == [1.0, 10.0]
    before = (tmp_path / "run" / "summary.json").read_bytes()
    (point_folder(tmp_path / "run", 1) / "summary.json").unlink()
    run(config, tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").read_bytes() == before


@pytest.mark.parametrize("name", sweeps.SWEEPS)
def test_every_sweep_sets_keys_that_there_are(name):
    """All points pass the checks of a configuration; nothing is simulated."""
    path = f"{CONFIGS}:{name}"
    checked, found = read_sweep(path), []
    for _, overrides in checked["points"]:
        found.append(read_config(path, overrides).to_dict())
    assert all(one != other for one, other in itertools.pairwise(found))
    values = [value for value, _ in checked["points"]]
    assert len(set(values)) == len(values)
    if not isinstance(values[0], str):
        assert values == sorted(values)


def test_a_wrong_sweep_is_reported(config, tmp_path):
    config.write_text(SMALL.replace('"log"', '"logarithmic"'))
    with pytest.raises(InputError, match="no sweep"):
        run(config, tmp_path / "run")
    config.write_text(SMALL.replace("control.v", "control.w"))
    with pytest.raises(InputError, match=r"control\.w"):
        run(config, tmp_path / "run")
    config.write_text("def get_config(): pass")
    with pytest.raises(InputError, match="get_sweep"):
        run(config, tmp_path / "run")


def test_a_sweep_that_there_is_not_is_reported_with_all_names():
    for wrong in (f"{CONFIGS}:w", CONFIGS):
        with pytest.raises(InputError, match=r"no such variant.*bandwidth"):
            read_sweep(wrong)


def test_a_folder_without_a_sweep_is_reported(tmp_path):
    with pytest.raises(InputError, match="no results of sweep"):
        load_sweep(tmp_path)
