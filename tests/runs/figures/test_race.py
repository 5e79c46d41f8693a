"""Races side by side: a row each, a panel a seed."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.drawing import make_record
from support.made_up_comparisons import assert_readable

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import draw, style, training
from collapipe_jax.runs.results.checkpoints import Run

POLICIES = ("dssra", "titanic", "vanilla_fl", "splitfed")


def made_up_race(kind, seeds, load=1.0):
    return [
        Run(
            policy,
            rate=1.0,
            seed=seed,
            folder=f"{policy}_seed{seed}",
            headline="test_bleu",
            summary={},
            record=make_record(policy, load=load * (1 + index), seed=10 * seed + index)._replace(
                config={"task": {"kind": kind}}
            ),
        )
        for seed in range(seeds)
        for index, policy in enumerate(POLICIES)
    ]


def test_every_seed_has_its_panel_and_its_clock():
    races = [made_up_race("tagging", 3), made_up_race("translation", 2, load=1e3)]
    figure = training.draw_race(races)
    assert_readable(figure)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title("left") for axes in panels] == [
        *(f"tagging, seed {seed}" for seed in range(3)),
        *(f"translation, seed {seed}" for seed in range(2)),
    ]
    looks = style.policy_looks(POLICIES)
    first = [run for run in races[0] if run.seed == 0]
    for run, line in zip(first, panels[0].lines, strict=False):
        known = np.isfinite(run.record.history["score"])
        elapsed_s = 60.0 * line.get_xdata()
        np.testing.assert_allclose(elapsed_s, run.record.history["simulated_time_s"][known])
        np.testing.assert_allclose(line.get_ydata(), run.record.history["score"][known])
        assert line.get_color() == looks[run.policy]["color"]
    trivial = panels[0].lines[len(POLICIES)]
    np.testing.assert_allclose(trivial.get_ydata(), 3.2)
    units = {axes.get_xlabel() for axes in panels}
    assert units == {"Simulated time [min]", "Simulated time [h]"}


def test_a_race_of_a_task_of_ones_own():
    (panel,) = training.draw_race(
        [made_up_race("collapipe_jax.learning.tasks.tagging:Tagging", 1)]
    ).axes
    assert panel.get_ylabel() == "span F1 [%]"


def test_races_are_drawn_together_and_with_nothing_else(tmp_path, monkeypatch):
    races = {str(tmp_path / kind): made_up_race(kind, 2) for kind in ("tagging", "translation")}
    run = str(tmp_path / "run")
    for workdir, settings in [*((each, {"experiment": "race"}) for each in races), (run, {})]:
        Path(workdir).mkdir()
        (Path(workdir) / "config.json").write_text(json.dumps({"policy": {}} | settings))
    monkeypatch.setitem(draw.KINDS, "race", draw.KINDS["race"]._replace(load=races.get))
    monkeypatch.setattr(style, "save", lambda figure, folder, name: [folder / name])
    assert draw.draw_folders(list(races), tmp_path) == [tmp_path / "race"]
    with pytest.raises(InputError, match="Name one folder at a time"):
        draw.draw_folders([run, *races], tmp_path)


def test_one_race_of_one_seed_fits_a_column():
    figure = training.draw_race([made_up_race("tagging", 1)])
    assert_readable(figure)
    assert figure.get_size_inches()[0] == style.COLUMN_WIDTH_IN
