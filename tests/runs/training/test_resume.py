"""Runs that are stopped, killed, damaged or broken, and go on."""

import dataclasses
import io
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from support import ROOT, tiny_run
from support.compilations import compiles
from support.killed import states_on_disk
from support.metrics import read_metrics
from support.tiny_runs import ROUNDS, Killed, assert_same_run, interrupt_in, killed, results, run

import collapipe_jax as cp
from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.core.errors import InputError, InputWarning, TrainingError
from collapipe_jax.core.files import lock_folder
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.runs.config.experiment import build_optimizers
from collapipe_jax.runs.results import checkpoints as checkpoint
from collapipe_jax.runs.results.checkpoints import Checkpoints, load_run
from collapipe_jax.runs.training import loop as train
from collapipe_jax.runs.training import ongoing_run
from collapipe_jax.runs.training.learning_rounds import LearningRounds, learn
from collapipe_jax.runs.training.ongoing_run import OngoingRun


@pytest.fixture
def copied(undisturbed, tmp_path):
    return Path(shutil.copytree(undisturbed[0], tmp_path / "run"))


def test_complete_run_resumed_changes_nothing(undisturbed, experiment, tmp_path):
    workdir = Path(shutil.copytree(undisturbed[0], tmp_path / "run"))
    before = {p: p.read_bytes() for p in sorted(workdir.rglob("*")) if p.is_file()}
    record = run(experiment, workdir, resume=True)
    assert {p: p.read_bytes() for p in sorted(workdir.rglob("*")) if p.is_file()} == before
    np.testing.assert_array_equal(record.history["round"], np.arange(ROUNDS))


def test_results_are_not_overwritten_without_resume(undisturbed, experiment):
    before = results(undisturbed[0])
    with pytest.raises(InputError, match="--resume"):
        run(experiment, undisturbed[0])
    assert results(undisturbed[0]) == before


MOMENTS = {
    "before the first round": (LearningRounds, "advance", 1),
    "between metrics line and checkpoint": (Checkpoints, "save", 2),
    "between checkpoint and digests": (checkpoint, "_file_digests", 2),
    "after the second checkpoint": (LearningRounds, "advance", 5),
    "before the summary": (ongoing_run, "summarise", 1),
    "while the metrics file is begun": (ongoing_run, "write_text", 1),
    "while the summary is written": (ongoing_run, "write_sealed", 1),
}


@pytest.mark.parametrize(
    "moment",
    [
        moment
        if moment == "while the summary is written"
        else pytest.param(moment, marks=pytest.mark.slow)
        for moment in MOMENTS
    ],
)
def test_resumed_run_ends_with_the_same_bytes(
    moment, experiment, undisturbed, tmp_path, monkeypatch
):
    owner, name, count = MOMENTS[moment]
    whole, calls = getattr(owner, name), itertools.count(1)
    with monkeypatch.context() as patch:
        patch.setattr(
            owner, name, lambda *a, **k: (killed if next(calls) == count else whole)(*a, **k)
        )
        with pytest.raises(Killed):
            run(experiment, tmp_path)
    assert not (tmp_path / "summary.json").exists()
    with compiles(learn, 0):  # a restored state compiles nothing anew
        run(experiment, tmp_path, resume=True)
    assert_same_run(experiment, tmp_path, undisturbed[0])


def test_half_a_metrics_line_is_written_anew(experiment, undisturbed, tmp_path):
    workdir = Path(shutil.copytree(undisturbed[0], tmp_path / "run"))
    shutil.rmtree(workdir / "checkpoints" / "6")
    (workdir / "summary.json").unlink()
    whole = (workdir / "metrics.jsonl").read_bytes()
    (workdir / "metrics.jsonl").write_bytes(whole[:-100])
    run(experiment, workdir, resume=True)
    assert_same_run(experiment, workdir, undisturbed[0])


@pytest.mark.slow
def test_other_policy_is_resumed_too(experiment, tmp_path, monkeypatch):
    """One that draws its decisions, so that a round's key matters."""
    config = experiment.config | {"policy": experiment.config["policy"] | {"name": "random"}}
    drawn = dataclasses.replace(experiment, config=config, policy=make_policy("random"))
    run(drawn, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(ongoing_run, "summarise", killed)
        with pytest.raises(Killed):
            run(drawn, tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "6")
    run(drawn, tmp_path / "killed", resume=True)
    assert_same_run(drawn, tmp_path / "killed", tmp_path / "whole")
    with pytest.raises(InputError, match=r"policy\.name is 'random' there"):
        run(experiment, tmp_path / "whole", resume=True)


def _has_five_rounds(workdir):
    return (workdir / "metrics.jsonl").exists() and len(read_metrics(workdir)) >= 5


def phase(workdir):
    """Lines, newest checkpoint, and whether one is being written."""
    metrics = workdir / "metrics.jsonl"
    names = [p.name for p in workdir.glob("checkpoints/*")]
    whole = max((int(name) for name in names if name.isdigit()), default=0)
    lines = metrics.read_bytes().count(b"\n") if metrics.exists() else -1
    return lines, whole, any(not name.isdigit() for name in names)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "waitid"), reason="needs waitid, to stop a process at once")
def test_process_killed_at_any_moment(experiment, undisturbed, tmp_path):
    workdir, copies = tmp_path / "run", tmp_path / "copies"
    copies.mkdir()
    command = [sys.executable, "-m", "collapipe_jax", "train", f"--workdir={workdir}"]
    # On one device, as the runs here: several round otherwise.
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    with subprocess.Popen(
        [*command, "--config=tests/support/tiny_run.py"],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags},
        stdout=subprocess.DEVNULL,
    ) as process:
        taken = states_on_disk(process, workdir, copies, _has_five_rounds)
    assert process.returncode == -signal.SIGKILL
    by_phase = {phase(path): path for path in taken}
    half_written = [path for path in taken if phase(path)[2]]
    assert half_written
    middle = half_written[len(half_written) // 2]
    early = next(path for path in by_phase.values() if phase(path)[1] == 0)
    for path in {early, *list(by_phase.values())[1::4], middle, workdir}:
        run(experiment, path, resume=True)
        assert_same_run(experiment, path, undisturbed[0])


@pytest.mark.slow
def test_a_run_with_more_rounds_goes_on_as_if_it_had_had_them(tmp_path, experiment):
    """Under a constant schedule; validation in what was the last round is extra."""
    longer = with_rounds(experiment, ROUNDS, "constant")
    once = run(longer, tmp_path / "once")
    run(with_rounds(experiment, 4, "constant"), tmp_path / "twice")
    out = io.StringIO()
    console = Console(file=out, width=200)
    twice = train.train(longer, tmp_path / "twice", resume=True, console=console).record
    assert "2 rounds more than before; learning rates stay as they are" in out.getvalue()
    for name in ("train_loss", "latency_s", "energy_queue"):
        np.testing.assert_array_equal(twice.history[name], once.history[name])
    assert json.loads((tmp_path / "twice/config.json").read_text())["training"]["rounds"] == ROUNDS
    summaries = [(tmp_path / name / "summary.json").read_text() for name in ("once", "twice")]
    assert summaries[0] == summaries[1]
    with pytest.raises(InputError, match=r"training\.rounds is 6 there and 4 here"):
        run(with_rounds(experiment, 4, "constant"), tmp_path / "twice", resume=True)


def with_rounds(experiment, rounds, schedule):
    config = tiny_run.get_config()
    config.training.update({"rounds": rounds, "schedule": schedule})
    return dataclasses.replace(
        experiment, config=config.to_dict(), optimizers=build_optimizers(config)
    )


@pytest.mark.parametrize(
    ("owner", "name", "count", "saved"),
    [
        (LearningRounds, "advance", 3, 3),  # no checkpoint is due after it
        pytest.param(LearningRounds, "advance", 5, ROUNDS, marks=pytest.mark.slow),  # two at once
        # Too late for the checkpoint of this round.
        pytest.param(train, "_status", 3, 4, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_lets_the_round_end_and_saves(
    owner, name, count, saved, tmp_path, experiment, monkeypatch
):
    monkeypatch.setattr(train, "_CALL_S", 1e9)
    before = signal.getsignal(signal.SIGINT)
    interrupt_in(monkeypatch, owner, name, count)
    told = rf"{saved} of 6 rounds are saved in .*--resume goes on"
    with pytest.raises(KeyboardInterrupt, match=told):
        run(experiment, tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
    assert len(load_run(tmp_path).history["round"]) == saved
    assert len(run(experiment, tmp_path, resume=True).history["round"]) == ROUNDS


def test_sigterm_saves_as_an_interrupt_does_and_has_a_status_of_its_own(
    tmp_path, experiment, undisturbed, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        interrupt_in(patch, LearningRounds, "advance", 3, signal.SIGTERM)
        assert run_reporting_errors(lambda _: run(experiment, tmp_path), []) == 143
    assert "3 of 6 rounds are saved in" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    run(experiment, tmp_path, resume=True)
    assert_same_run(experiment, tmp_path, undisturbed[0])


def test_a_signal_after_the_last_round_says_what_is_saved(experiment, copied, monkeypatch, capsys):
    (copied / "summary.json").unlink()
    console = Console(file=io.StringIO(), width=200)
    with monkeypatch.context() as patch:
        interrupt_in(patch, OngoingRun, "_export", 1, signal.SIGTERM)

        def resume(_):
            train.train(experiment, copied, resume=True, console=console)

        assert run_reporting_errors(resume, []) == 143
    saved = f"6 of 6 rounds are saved in {copied}; the same command goes on"
    assert capsys.readouterr().err == f"stopped: {saved}\n"
    phases = ["scoring the trained model on the test set", "writing the trained model"]
    assert console.file.getvalue().splitlines()[-2:] == phases


@pytest.mark.parametrize("erased", [np.nan, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_run_in_which_nobody_trained_says_so_and_exports_nothing(
    erased, tmp_path, experiment, monkeypatch
):
    whole = LearningRounds.advance

    def nobody(*arguments):
        told = np.float32(np.nan if np.isnan(erased) else 1.0)
        return [
            [
                one._replace(loss=told, gradient_norm=told, erased_fraction=np.float32(erased))
                for one in own
            ]
            for own in whole(*arguments)
        ]

    monkeypatch.setattr(LearningRounds, "advance", nobody)
    with pytest.warns(InputWarning, match="nobody trained in any round, so no model is written"):
        run(experiment, tmp_path)
    assert not (tmp_path / "model").exists()
    assert json.loads((tmp_path / "summary.json").read_text())["untrained_rounds"] == ROUNDS


@pytest.mark.slow
def test_an_interrupt_without_a_workdir_names_no_folder(monkeypatch):
    interrupt_in(monkeypatch, LearningRounds, "advance", 1)
    with pytest.raises(KeyboardInterrupt, match="nothing is kept without a workdir"):
        cp.train(tiny_run.get_config(), quiet=True)


@pytest.mark.parametrize(
    ("limit_bytes", "file"),
    [pytest.param(9_000, "tokenizer.json", marks=pytest.mark.slow), (10**5, "checkpoints")],
)
def test_a_disk_without_room_is_named_and_nothing_is_lost(
    limit_bytes, file, experiment, undisturbed, tmp_path, capsys
):
    workdir, (_, most) = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, most))
    try:
        status = run_reporting_errors(lambda _: run(experiment, workdir), [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    message = capsys.readouterr().err
    assert (status, message.count("\n")) == (2, 1)
    for part in ("error: ", str(workdir / file), "--resume"):
        assert part in message
    assert not list(workdir.rglob("*.partial"))
    run(experiment, workdir, resume=True)
    assert_same_run(experiment, workdir, undisturbed[0])


@pytest.mark.parametrize("content", [pytest.param(b"", marks=pytest.mark.slow), b"\xff\x00"])
def test_resuming_mends_damaged_files(content, experiment, undisturbed, copied):
    for name in ("summary.json", "metrics.jsonl"):
        (copied / name).write_bytes(content)
    run(experiment, copied, resume=True)
    assert results(copied) == results(undisturbed[0])


def test_a_damaged_history_is_named_and_its_remedy_helps(experiment, undisturbed, copied):
    part = copied / "history" / "00000004.npz"
    part.write_bytes(part.read_bytes()[:-40])
    with pytest.raises(InputError, match=rf"{part.name}.*all checkpoints above 4"):
        run(experiment, copied, resume=True)
    part.unlink()
    shutil.rmtree(copied / "checkpoints" / "6")
    (copied / "summary.json").unlink()
    run(experiment, copied, resume=True)
    assert_same_run(experiment, copied, undisturbed[0])


@pytest.mark.parametrize("name", ["5", "8"])
def test_a_checkpoint_of_another_number_is_refused(name, experiment, copied):
    shutil.rmtree(copied / "checkpoints" / "4")
    (copied / "checkpoints" / "6").rename(copied / "checkpoints" / name)
    with pytest.raises(InputError, match="is that of 6 rounds"):
        load_run(copied)
    with pytest.raises(InputError, match="is that of 6 rounds"):
        run(experiment, copied, resume=True)


def test_a_workdir_has_one_process_at_a_time(experiment, copied):
    with lock_folder(copied):
        with pytest.raises(InputError, match=r"process \d+ on .* writes to it"):
            run(experiment, copied, resume=True)
        load_run(copied)  # reading is free
    run(experiment, copied, resume=True)  # the refused call left no lock


def break_loss(monkeypatch, name, index):
    """Let the loss of a round become nan in the run of this folder."""
    whole = OngoingRun.append

    def append(run, rounds, reports, params):
        if run.folder.name == name and run.done <= index < run.done + len(reports):
            place = index - run.done
            reports[place] = reports[place]._replace(loss=np.float32(np.nan))
        whole(run, rounds, reports, params)

    monkeypatch.setattr(OngoingRun, "append", append)


def test_a_run_that_breaks_down_leaves_the_others_and_its_last_checkpoint(
    experiment, undisturbed, tmp_path, monkeypatch, capsys
):
    good, bad = folders = [tmp_path / "good", tmp_path / "bad"]
    console = Console(file=io.StringIO())
    with monkeypatch.context() as patch:
        break_loss(patch, "bad", 3)
        status = run_reporting_errors(
            lambda _: train.train_together([experiment] * 2, folders, console=console), []
        )
    message = capsys.readouterr().err
    assert status == 1
    assert message.splitlines()[-1].startswith(
        f"error: training broke down: {bad} in round 3 (the loss is not"
    )
    assert "2 rounds are kept" in message
    assert results(good) == results(undisturbed[0])
    assert read_metrics(bad)[-1]["train_loss"] is None
    assert json.loads((bad / "breakdown.json").read_text())["round"] == 3
    assert not (bad / "summary.json").exists()
    assert not (bad / "model").exists()
    assert [path.name for path in (bad / "checkpoints").iterdir()] == ["2"]
    run(experiment, bad, resume=True)  # what broke it is gone
    assert_same_run(experiment, bad, undisturbed[0])
    assert not (bad / "breakdown.json").exists()


def test_parameters_that_are_not_finite_are_neither_saved_nor_exported(
    experiment, tmp_path, monkeypatch
):
    whole, calls = ongoing_run.broken_array, itertools.count(1)
    monkeypatch.setattr(
        ongoing_run, "broken_array", lambda state: "encoder" if next(calls) == 3 else whole(state)
    )
    with pytest.raises(TrainingError, match=r"round 5 .*in encoder\), 4 rounds are kept"):
        run(experiment, tmp_path)
    assert not (tmp_path / "model").exists()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "4"]
