"""Results on file: whole or not there, labelled, refused where they are another's."""

import json

import numpy as np
import pytest
from support.labels import labels

from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_json
from collapipe_jax.files.results import Results, Variable, as_columns, as_rows

DATA = {
    "latency_s": Variable("realisation round", np.arange(6.0).reshape(2, 3)),
    "policy": Variable("realisation", np.array(["dssra", "greedy"])),
}


@pytest.fixture
def results(tmp_path):
    return Results.create(tmp_path / "run", "study", {"rounds": 3}, {"seed": 0})


def test_what_is_read_is_what_was_written_with_its_labels(results):
    results.write("some/part", DATA)
    found = Results.open(results.folder, "study")
    assert (found.options, found.config) == ({"rounds": 3}, {"seed": 0})
    read = found.read("some/part")
    assert list(read) == list(DATA)
    np.testing.assert_array_equal(read["latency_s"], DATA["latency_s"].values)
    assert read["policy"].tolist() == ["dssra", "greedy"]
    assert labels(found, "some/part") == {
        "latency_s": {"axes": ["realisation", "round"], "unit": "s"},
        "policy": {"axes": ["realisation"], "unit": ""},
    }


def test_parts_are_joined_along_their_first_axis(results):
    for part in "ab":
        results.write(part, DATA)
    joined = results.read("a", "b")
    assert joined["latency_s"].shape == (4, 3)
    assert joined["policy"].tolist() == ["dssra", "greedy"] * 2


def test_parts_that_are_done_are_not_missing_and_half_written_ones_are(results):
    results.write("a", DATA)
    results.path("b").with_name("b.npz.partial").write_bytes(b"half")
    assert results.missing(["a", "b"]) == ["b"]


def test_the_same_data_are_the_same_bytes(results):
    for part in "ab":
        results.write(part, DATA)
    assert results.path("a").read_bytes() == results.path("b").read_bytes()


def test_the_same_settings_go_on_and_others_are_refused(results):
    again = Results.create(results.folder, "study", {"rounds": 3}, {"seed": 0})
    assert again == results
    for changed in ({"rounds": 4}, {"rounds": 3, "seed": 1}):
        with pytest.raises(InputError, match="another configuration"):
            Results.create(results.folder, "study", changed, {"seed": 0})
    with pytest.raises(InputError, match="experiment is 'study' there and 'other' here"):
        Results.create(results.folder, "other", {"rounds": 3}, {"seed": 0})


def test_results_of_another_experiment_or_none_are_reported(results, tmp_path):
    for folder in (results.folder, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="holds no results of other"):
            Results.open(folder, "other")


@pytest.mark.parametrize(("content", "problem"), [(None, "is missing"), (b"PK half", "is damaged")])
def test_a_missing_or_damaged_part_is_named(content, problem, results):
    if content is not None:
        results.write("a", DATA)
        results.path("a").write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        results.read("a")
    assert caught.value.value.endswith("a.npz")


def test_a_table_is_its_rows_again(results):
    rows = [{"name": "one", "loss": 0.5, "many": 1}, {"name": "two", "loss": np.nan, "many": 2}]
    results.write("table", as_columns(rows, "case"))
    np.testing.assert_equal(as_rows(results.read("table")), rows)
    assert labels(results, "table")["loss"]["axes"] == ["case"]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("latency_s", "s"),
        ("energy_budget_j", "J"),
        ("device_memory_bytes", "byte"),
        ("divergence", ""),
        ("violated.d2d_power_w", ""),
        ("loss_probability", ""),
    ],
)
def test_a_unit_is_the_suffix_of_a_name(tmp_path, name, unit):
    results = Results.create(tmp_path, "units", {})
    results.write("part", {name: Variable("", 1.0)})
    assert labels(results, "part")[name]["unit"] == unit


def test_json_is_strict_and_its_folder_is_made(tmp_path):
    path = tmp_path / "deep" / "value.json"
    numbers = [1.0, float("inf"), np.float64("nan"), (float("nan"), "x")]
    write_json(path, {"a": numbers, "b": None})
    assert json.loads(path.read_text()) == {"a": [1.0, None, None, [None, "x"]], "b": None}
