"""The command that maps who wins where."""

import json

import pytest
from support.compilations import compiles

from collapipe_jax.cli import figures, map
from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.report.gather import report_data
from collapipe_jax.runs.results.checkpoints import load_run
from collapipe_jax.runs.results.realisations import load_map, load_points
from collapipe_jax.runs.studies.montecarlo import simulate_reduced

X, Y = "devices.memory_share=0.004,0.5", "training.local_steps=1,2"


def run(workdir, *options, x=X, y=Y):
    map.main(
        [
            f"--workdir={workdir}",
            "--config=support.tiny_run",
            f"--x={x}",
            f"--y={y}",
            "--networks=3",
            "--rounds=3",
            "--chunk=2",
            "--policies=static_pipeline,vanilla_fl",
            # Equal shares and parts of clients compile in a moment.
            *("--config.policy.shares=equal", "--config.policy.split=even"),
            *options,
        ]
    )


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """A map of four cells, whose two policies are compiled once each."""
    workdir = tmp_path_factory.mktemp("map") / "run"
    with compiles(simulate_reduced, 2):
        run(workdir)
    return workdir


@pytest.mark.slow
def test_every_cell_is_a_comparison_under_its_keys(mapped):
    summary = load_map(mapped)
    assert (summary["x_values"], summary["y_values"]) == ([0.004, 0.5], [1, 2])
    assert len(summary["cells"]) == 4
    budgets, points = [], load_points(mapped, "map")
    for index, cell in enumerate(summary["cells"]):
        config = points[index].settings["config"]
        assert config["devices"]["memory_share"] == summary["x_values"][index % 2]
        assert config["training"]["local_steps"] == summary["y_values"][index // 2]
        budgets.append(config["control"]["device_budget_j"])
        assert set(cell["policies"]) == {"static_pipeline", "vanilla_fl"}
        assert cell["networks"] + cell["networks_left_out"] == 3
    assert budgets[2] == 2 * budgets[0]


def test_it_goes_on_with_the_cells_on_file_and_another_tolerance(mapped):
    before = (mapped / "summary.json").read_bytes()
    with compiles(simulate_reduced, 0):
        run(mapped, "--tolerance=0.9")
    assert json.loads((mapped / "summary.json").read_text())["tolerance"] == 0.9
    run(mapped)
    assert (mapped / "summary.json").read_bytes() == before


def test_its_figure_is_drawn(mapped, tmp_path):
    figures.main([f"--workdir={mapped}", f"--out={tmp_path}"])
    assert {path.name for path in tmp_path.iterdir()} == {"map.pdf", "map.png"}


@pytest.mark.slow
def test_its_page_is_that_of_a_sweep_and_it_is_no_training_run(mapped):
    page = report_data([str(mapped)])
    assert page["title"] == "Map"
    assert len(page["tables"][0]["rows"]) == 8  # four cells, two policies
    with pytest.raises(InputError, match=r"of map\. Name the workdir of a single"):
        load_run(mapped)


@pytest.mark.parametrize(
    ("options", "axes", "key"),
    [
        (["--tolerance=1"], {}, "--tolerance"),
        (["--networks=0"], {}, "--networks"),
        (["--policies=fastest"], {}, "policy.name"),
        ([], {"x": "devices.memory_share"}, "--x"),
        ([], {"x": "devices.memory=1"}, "devices.memory"),
        ([], {"x": "policy.name=dssra,greedy"}, "policy.name"),
        ([], {"y": "devices.memory_share=0.1"}, "devices.memory_share"),
        ([], {"x": "devices.memory_share=2"}, "devices.memory_share"),
    ],
)
def test_wrong_input_is_refused_before_there_is_a_workdir(options, axes, key, tmp_path):
    with pytest.raises(InputError) as caught:
        run(tmp_path / "run", *options, **axes)
    assert caught.value.key == key
    assert not (tmp_path / "run").exists()


def test_an_unfinished_map_is_reported(mapped, tmp_path):
    with pytest.raises(InputError, match="no results of map"):
        load_map(tmp_path)
    path = mapped / "summary.json"
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(InputError, match="missing or damaged"):
        load_map(mapped)
    path.write_bytes(content)
