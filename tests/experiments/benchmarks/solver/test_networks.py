"""Benchmarks network by network: what is on file is not measured again."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from collapipe_jax.core.errors import InputError
from experiments.benchmarks.solver.networks import (
    NetworkShape,
    run_networks,
    split_by_loss,
    spread,
    spread_table,
)

SHAPES = (NetworkShape(2, 2, 4), NetworkShape(2, 3, 6))
SETTINGS = {"seed": 7, "starts": 2}


def draw(seed, count, shape):
    return seed * 100 + np.arange(count), np.full(count, shape.blocks)


def run(path, networks, settings=SETTINGS, measured=None):
    def measure(drawn, blocks):
        if measured is not None:
            measured.append(int(drawn))
        return {"drawn": int(drawn), "blocks": int(blocks)}

    console = Console(file=io.StringIO())
    return run_networks(path, networks, settings, SHAPES, draw, measure, console)


def test_shapes_take_turns_and_rows_come_by_number(tmp_path):
    rows = run(tmp_path / "new" / "rows.jsonl", 5)
    assert [row["network"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["shape"] for row in rows] == [list(SHAPES[n % 2]) for n in range(5)]
    assert [row["drawn"] for row in rows] == [700, 800, 701, 801, 702]
    assert all(row["seed"] == 7 and row["starts"] == 2 for row in rows)


def test_a_killed_run_goes_on_after_a_line_that_was_cut_off(tmp_path):
    path, measured = tmp_path / "rows.jsonl", []
    whole = run(path, 5)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(lines[:2]) + "\n" + lines[2][:9], encoding="utf-8")
    assert run(path, 5, measured=measured) == whole
    kept = {json.loads(line)["drawn"] for line in lines[:2]}
    assert sorted(measured) == sorted({row["drawn"] for row in whole} - kept)


def test_fewer_networks_leave_the_others_on_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    whole, measured = run(path, 5), []
    assert run(path, 2, measured=measured) == whole[:2]
    assert run(path, 5, measured=measured) == whole
    assert not measured


def test_rows_of_other_settings_are_refused(tmp_path):
    run(tmp_path / "rows.jsonl", 2)
    with pytest.raises(InputError, match="--starts") as caught:
        run(tmp_path / "rows.jsonl", 2, {**SETTINGS, "starts": 3})
    assert "--workdir" in str(caught.value)


def test_a_setting_that_older_rows_lack_is_named_as_an_option(tmp_path):
    run(tmp_path / "rows.jsonl", 2)
    with pytest.raises(InputError, match=r"--allocation-steps.*written with None"):
        run(tmp_path / "rows.jsonl", 2, {**SETTINGS, "allocation_steps": [1, 2]})


def test_rows_of_heavy_losses_are_apart():
    rows = [{"loss": loss} for loss in (0.0, 0.9, 0.91)]
    assert split_by_loss(rows) == (rows[:2], rows[2:])


def test_spreads_and_their_table():
    summary = {"networks": 3, "gap": spread([0.0, 1.0, 4.0])}
    assert summary["gap"] == pytest.approx({"median": 1.0, "p95": 3.7, "max": 4.0})
    console = Console(file=io.StringIO(), width=80)
    console.print(spread_table("gaps", summary))
    assert "3.7e+00" in console.file.getvalue()
