"""Results on file: whole or not there, labelled, refused where they are another's."""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import zarr

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import write_json
from collapipe_jax.runs.results import experiment as module
from collapipe_jax.runs.results.experiment import Results, Variable, as_columns, as_rows
from collapipe_jax.runs.results.store import Place, chunk_file

DATA = {
    "latency_s": Variable("realisation round", np.arange(6.0).reshape(2, 3)),
    "policy": Variable("realisation", np.array(["dssra", "greedy"])),
}


@pytest.fixture
def results(tmp_path):
    return Results.create(tmp_path / "run", "study", {"rounds": 3}, {"seed": 0})


def labels(results, name, table=""):
    """Names of the axes and the unit of an array on file, as any reader of zarr finds them."""
    array = zarr.open_array(results.store / table / name, mode="r")
    return array.metadata.dimension_names, array.attrs["units"]


def write_rows(results, part="first", start=0, name="latency_s", rows=2):
    """A part of 5 realisations in chunks of 2."""
    values = np.arange(3.0 * rows).reshape(rows, 3) + start
    place = Place({"policy": (1, 2)}, start, 5, 2)
    results.write(part, {name: Variable("realisation round", values)}, place)
    return place, values


def test_a_table_is_what_was_written_with_its_labels(results):
    results.write("table", DATA)
    found = Results.open(results.folder, "study")
    assert (found.options, found.config) == ({"rounds": 3}, {"seed": 0})
    read = found.read("table")
    np.testing.assert_array_equal(read["latency_s"], DATA["latency_s"].values)
    assert read["policy"].tolist() == ["dssra", "greedy"]
    assert labels(found, "latency_s", "table") == (("realisation", "round"), "s")
    assert labels(found, "policy", "table") == (("realisation",), "")


def test_a_table_replaces_the_one_by_its_name(results):
    results.write("table", DATA)
    results.write("table", {"seed": Variable("run", np.arange(3))})
    assert list(results.read("table")) == ["seed"]
    assert [path.name for path in results.store.glob("table*")] == ["table"]


def test_parts_lie_in_one_array(results):
    written = {f"{start}": write_rows(results, f"{start}", start) for start in (0, 2)}
    place, last = write_rows(results, "4", 4, rows=1)
    found = results.read_parts({name: place for name, (place, _) in written.items()})
    for name, (_, values) in written.items():
        np.testing.assert_array_equal(found[name]["latency_s"], values)
    np.testing.assert_array_equal(results.read_parts({"4": place})["4"]["latency_s"], last)
    whole = zarr.open_array(results.store / "latency_s", mode="r")
    assert (whole.shape, whole.chunks) == ((2, 5, 3), (1, 2, 3))
    assert np.all(np.isnan(whole[0]))
    assert labels(results, "latency_s") == (("policy", "realisation", "round"), "s")


def test_a_part_that_is_written_again_takes_the_place_of_the_file(results, tmp_path):
    """A file that was open keeps its bytes: nobody sees half of the old and half of the new."""
    place, _ = write_rows(results)
    axes = ("policy", "realisation", "round")
    chunk = chunk_file(results.store, "latency_s", place.chunk_index(axes))
    before, open_file = chunk.read_bytes(), tmp_path / "open"
    open_file.hardlink_to(chunk)
    results.write("first", {"latency_s": Variable("realisation round", np.ones((2, 3)))}, place)
    assert chunk.read_bytes() != before
    assert open_file.read_bytes() == before


@pytest.mark.parametrize(
    ("values", "missing"),
    [(np.array([True, False]), -1), (np.array([3, 4], np.int32), -(2**31))],
)
def test_integers_and_booleans_have_a_value_for_what_is_missing(values, missing, results):
    place = Place({}, 0, 4, 2)
    results.write("part", {"x": Variable("realisation", values)}, place)
    assert zarr.open_array(results.store / "x", mode="r")[2:].tolist() == [missing] * 2
    found = results.read_parts({"part": place})["part"]["x"]
    np.testing.assert_array_equal(found, values)
    assert found.dtype == values.dtype


@pytest.mark.parametrize("values", [np.full(2, np.nan), np.full(2, -(2**31), np.int32)])
def test_parts_of_missing_values_alone_are_written_like_others(values, results):
    for start in (0, 2):
        place = Place({}, start, 4, 2)
        results.write(f"{start}", {"x": Variable("realisation", values)}, place)
        found = results.read_parts({f"{start}": place})[f"{start}"]["x"]
        np.testing.assert_array_equal(found, values)


def test_unlike_types_in_one_array_are_refused(results):
    results.write("a", {"x": Variable("realisation", np.ones(2))}, Place({}, 0, 4, 2))
    with pytest.raises(TypeError, match="x is of type int64 here"):
        results.write("b", {"x": Variable("realisation", np.ones(2, int))}, Place({}, 2, 4, 2))


def test_parts_that_are_done_are_not_missing_and_half_written_ones_are(results, monkeypatch):
    write_rows(results, "a")

    def killed(path, value):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_sealed", killed)
    with pytest.raises(KeyboardInterrupt):
        write_rows(results, "b", 2)
    assert results.missing(["a", "b"]) == ["b"]


def test_the_same_data_are_the_same_bytes(tmp_path):
    found = []
    for name in "ab":
        results = Results.create(tmp_path / name, "study", {})
        write_rows(results)
        results.write("table", DATA)
        files = sorted(path for path in results.folder.rglob("*") if path.is_file())
        found.append({path.relative_to(results.folder): path.read_bytes() for path in files})
    assert found[0] == found[1]


def _take_part(folder, index):
    results = Results.create(folder, "study", {}, None, {"policy": ("policy", ["a", "b"])})
    write_rows(results, str(index), 2 * index)


def test_several_processes_may_start_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(_take_part, [tmp_path / "run"] * 8, [0, 1, 0, 1, 0, 1, 0, 1]))
    results = Results.open(tmp_path / "run", "study")
    assert not results.missing(["0", "1"])
    assert zarr.open_array(results.store / "latency_s", mode="r")[1, 3].tolist() == [5, 6, 7]


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


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("no part", "is missing"),
        ("no arrays", "is damaged"),
        ("no chunk", "is damaged"),
        ("half a chunk", "is damaged"),
        ("a folder for a chunk", "is damaged"),
    ],
)
def test_a_missing_or_damaged_part_is_named(damage, problem, results):
    place, _ = write_rows(results)
    chunk = results.store / "latency_s" / "c" / "1" / "0" / "0"
    if damage == "no part":
        results.path("first").unlink()
    elif damage == "no arrays":
        results.path("first").write_text("{}")
    elif damage == "no chunk":
        chunk.unlink()
    elif damage == "a folder for a chunk":
        chunk.unlink()
        chunk.mkdir()
    else:
        chunk.write_bytes(chunk.read_bytes()[:-3])
    with pytest.raises(InputError, match=problem) as caught:
        results.read_parts({"first": place})
    assert caught.value.value.endswith("first.json")


def test_a_missing_or_damaged_table_is_named(results):
    with pytest.raises(InputError, match="is missing"):
        results.read("table")
    results.write("table", DATA)
    (chunk := results.store / "table" / "latency_s" / "c" / "0" / "0").unlink()
    chunk.mkdir()
    with pytest.raises(InputError, match="is a folder"):
        results.read("table")
    results.path("table").write_text("half")
    with pytest.raises(InputError, match="is damaged"):
        results.read("table")


def test_a_table_is_its_rows_again(results):
    rows = [{"name": "one", "loss": 0.5, "many": 1}, {"name": "two", "loss": np.nan, "many": 2}]
    results.write("table", as_columns(rows, "case"))
    np.testing.assert_equal(as_rows(results.read("table")), rows)
    assert labels(results, "loss", "table")[0] == ("case",)


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
    results.write("part", {name: Variable("", 1.0)}, Place({}, 0, 1, 1))
    assert labels(results, name)[1] == unit


def test_json_is_strict_and_its_folder_is_made(tmp_path):
    path = tmp_path / "deep" / "value.json"
    numbers = [1.0, float("inf"), np.float64("nan"), (float("nan"), "x")]
    write_json(path, {"a": numbers, "b": None})
    assert json.loads(path.read_text()) == {"a": [1.0, None, None, [None, "x"]], "b": None}
