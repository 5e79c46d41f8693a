"""One command for all figures, and what holds for every figure of training runs."""

import re

import numpy as np
import pytest
from matplotlib.text import Text
from support.drawing import assert_units, make_record, rendered
from support.made_up_comparisons import write_comparison, write_gaps, write_loop, write_sweep

from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.figures.draw import KINDS
from collapipe_jax.runs.figures.training import slowest_parts_s
from collapipe_jax.runs.results.checkpoints import Checkpoints, load_run
from collapipe_jax.runs.results.experiment import Results, open_workdir
from collapipe_jax.runs.results.record import choose_round, runs_pipeline
from figures import __main__ as all_figures

NAMES = ("progress", "latency", "queues", "gantt")
DRAWINGS = {one.name: one for one in KINDS["run"].drawings if one.name in NAMES}
CASES = {
    "one": lambda: [make_record()],
    "two": lambda: [make_record(), make_record("static_pipeline", load=3.0, seed=1)],
    "one_round": lambda: [make_record(rounds=1, evaluated=1, absent=False)],
    "no_evaluation": lambda: [make_record(evaluated=0)],
}


@pytest.mark.parametrize(
    "case",
    [pytest.param("one", marks=pytest.mark.slow), *(name for name in CASES if name != "one")],
)
@pytest.mark.parametrize("name", DRAWINGS)
def test_draws_with_units(name, case):
    """Also without text smaller than 7 points."""
    figure = rendered(DRAWINGS[name].draw(CASES[case]()))
    assert_units(figure)
    assert figure.get_figwidth() in (style.COLUMN_WIDTH_IN, style.DOUBLE_WIDTH_IN)
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    assert min(sizes) >= 7


def test_all_sit_out_in_one_round():
    record = make_record(rounds=3)
    for name in ("parts_s", "cluster_latency_s", "latency_s", "forward_flow_s", "backward_flow_s"):
        record.history[name][2] = 0
    for drawing in DRAWINGS.values():
        rendered(drawing.draw([record]))
    assert choose_round(record, None, None)[0] == 1


def test_a_broken_cluster_breaks_no_figure():
    record = make_record(rounds=4)
    for name in ("parts_s", "cluster_latency_s", "energy_j", "energy_queue", "forward_flow_s"):
        record.history[name][3, 0] = np.inf
    for name in ("latency_s", "simulated_time_s", "divergence", "divergence_queue"):
        record.history[name][3] = np.inf
    for drawing in DRAWINGS.values():
        rendered(drawing.draw([record]))
    assert not runs_pipeline(record)[3, 0]


def test_all_figures_in_both_formats(tmp_path, monkeypatch, capsys):
    runs = {
        str(tmp_path / "a"): make_record(rounds=3),
        str(tmp_path / "b"): make_record("vanilla_fl", rounds=3, pipeline=False),
    }
    for workdir, record in runs.items():
        open_workdir(workdir, {"policy": {"name": record.policy}}, resume=False)
    monkeypatch.setitem(KINDS, "run", KINDS["run"]._replace(load=runs.get))
    out = tmp_path / "out"
    arguments = [*(f"--workdir={workdir}" for workdir in runs), f"--out={out}"]
    assert run_reporting_errors(all_figures.main, arguments) == 0
    written = sorted(path.name for path in out.iterdir())
    stems = ["gantt_dssra", "latency", "progress", "queues"]
    assert written == [f"{stem}{suffix}" for stem in stems for suffix in (".pdf", ".png")]
    printed = re.findall(r"written: (.*)", capsys.readouterr().out)
    assert sorted(printed) == sorted(str(out / name) for name in written)


@pytest.mark.parametrize(
    ("write", "names"),
    [
        (
            lambda folder: write_comparison(folder, names=["dssra", "random"]),
            ["policies", "memory", "constraints", "reduction"],
        ),
        (
            lambda folder: write_comparison(folder, names=["random"]),
            ["policies", "memory", "constraints"],
        ),
        (lambda folder: write_sweep(folder, names=["random"]), ["sweep", "sweep_mean"]),
        (write_loop, ["tradeoff"]),
        (lambda folder: write_gaps(folder, [1e-5, 1e-4]), ["gap"]),
    ],
)
def test_all_draws_what_belongs(write, names, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(style, "save", lambda figure, folder, name: [folder / f"{name}.pdf"])
    workdir = write(tmp_path / "run")
    assert run_reporting_errors(all_figures.main, [f"--workdir={workdir}"]) == 0
    told = capsys.readouterr().out
    written = [str(workdir / "figures" / f"{name}.pdf") for name in names]
    assert re.findall(r"written: (.*)", told) == written
    assert ("no reduction: the comparison lacks dssra" in told) == (names[-1] == "constraints")


@pytest.mark.parametrize("content", [None, "{", "[1]", '{"model_type": "bert"}'])
def test_all_refuses_what_it_does_not_know(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert run_reporting_errors(all_figures.main, [f"--workdir={tmp_path}"]) == 2
    told = capsys.readouterr().err
    assert str(tmp_path) in told
    assert "holds nothing that figures are drawn from" in told


def test_all_refuses_several_folders_but_of_runs(tmp_path, capsys):
    first, second = (write_comparison(tmp_path / name, names=("dssra",)) for name in "ab")
    arguments = [f"--workdir={first}", f"--workdir={second}"]
    assert run_reporting_errors(all_figures.main, arguments) == 2
    assert "only training runs are drawn together" in capsys.readouterr().err


def test_a_closed_loop_run_with_one_v_is_reported(tmp_path, capsys):
    workdir = write_loop(tmp_path / "run", v=(1.0,))
    assert run_reporting_errors(all_figures.main, [f"--workdir={workdir}"]) == 2
    assert "no trade-off" in capsys.readouterr().err


def test_a_missing_chunk_is_reported(tmp_path, capsys):
    workdir = write_comparison(tmp_path / "run")
    Results(workdir, {}).path("random/000003").unlink()
    assert run_reporting_errors(all_figures.main, ["policies", f"--workdir={workdir}"]) == 2
    assert "random/000003" in capsys.readouterr().err


def test_figure_from_a_checkpoint(tmp_path):
    record = make_record("titanic", rounds=3)
    config = {"policy": {"name": "titanic"}, "task": {"kind": "translation"}}
    workdir = open_workdir(tmp_path / "run", config, resume=False)
    with Checkpoints(workdir) as checkpoints:
        saved = {"constants": record.constants, "history": record.history}
        checkpoints.save(3, {"weights": np.zeros(2)}, saved)
    assert run_reporting_errors(all_figures.main, ["gantt", f"--workdir={workdir}"]) == 0
    names = {path.name for path in (workdir / "figures").iterdir()}
    assert names == {"gantt.pdf", "gantt.png"}
    loaded = load_run(workdir)
    np.testing.assert_array_equal(slowest_parts_s(loaded), slowest_parts_s(record))


def test_missing_run_is_reported(tmp_path, capsys):
    assert (
        run_reporting_errors(all_figures.main, ["gantt", f"--workdir={tmp_path / 'nowhere'}"]) == 2
    )
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["policies", "sweep", "tradeoff", "gap"])
def test_a_figure_of_one_folder_refuses_several(name, capsys):
    arguments = [name, "--workdir=x", "--workdir=y"]
    assert run_reporting_errors(all_figures.main, arguments) == 2
    assert "Name one folder at a time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "option"), [("latency", "--round=1"), ("gantt_clients", "--cluster=0")]
)
def test_an_option_of_another_figure_is_reported(name, option, capsys):
    assert run_reporting_errors(all_figures.main, [name, "--workdir=x", option]) == 2
    assert option.partition("=")[0] in capsys.readouterr().err


def test_a_chosen_round_of_several_runs_is_drawn_in_the_first_folder(tmp_path, monkeypatch):
    runs = {str(tmp_path / name): make_record(name, rounds=4) for name in "ab"}
    drawn = []
    record = DRAWINGS["gantt"]._replace(
        draw=lambda records, **given: drawn.append((records, given))
    )
    kinds = KINDS["run"]._replace(load=runs.get, drawings=(record,))
    monkeypatch.setitem(KINDS, "run", kinds)
    monkeypatch.setattr(style, "save", lambda figure, folder, name: [folder / f"{name}.pdf"])
    folders = [f"--workdir={workdir}" for workdir in runs]
    assert run_reporting_errors(all_figures.main, ["gantt", *folders, "--round=3"]) == 0
    assert drawn == [(list(runs.values()), {"round_number": 3})]
