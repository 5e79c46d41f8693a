"""Results as labelled datasets: axes, units, and nan where a policy or point lacks a number."""

import itertools
import json

import numpy as np
import pytest
import xarray

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.results import datasets
from collapipe_jax.runs.results.checkpoints import RunRecord
from collapipe_jax.runs.results.datasets import open_results
from collapipe_jax.runs.results.experiment import Results, Variable
from collapipe_jax.runs.results.realisations import (
    coordinates,
    load_points,
    load_realisations,
    parts_of,
)

OPTIONS = {"rounds": 2, "realisations": 3, "chunk": 2, "policies": ["a", "b"]}
SIZES = {"policy": 2, "realisation": 3, "round": 2, "cluster": 2, "node": 4}
CONFIG = {"control": {"v": 3.0}, "network": {"devices": 3}}


def latencies(policy, v=None, point=0):
    value = 100.0 * len(policy) + (v or 0.0) + 1000.0 * point
    return value + np.arange(6.0).reshape(3, 2) * (1.0 if policy == "a" else 2.0)


def write(folder, experiment="compare", lost=(), nodes=(4,), **changed):
    """What an experiment leaves, but for the parts that are lost."""
    options = OPTIONS | changed
    results = Results.create(folder, experiment, options, CONFIG, coordinates(options))
    for name, part in parts_of(options).items():
        if name in lost:
            continue
        if part.policy:
            values = latencies(part.policy, part.v, part.point)
            data = {"latency_s": Variable("realisation round", values)}
            if part.policy == "b":
                data["violated.samples"] = Variable("realisation", np.arange(3, dtype=np.int32))
        else:
            budgets_j = np.ones((3, 2, nodes[part.point % len(nodes)]))
            data = {"energy_budget_j": Variable("realisation cluster node", budgets_j)}
            data["can_run"] = Variable("realisation cluster", np.eye(3, 2) > 0)
        rows = slice(part.place.start, part.place.start + 2)
        chunk = {field: one.replace(values=one.values[rows]) for field, one in data.items()}
        results.write(name, chunk, part.place)
    return folder


def axis(name, values):
    return {"name": name, "columns": {name: values}, "label": "", "log": False}


def test_a_comparison_has_an_axis_of_policies(tmp_path):
    found = open_results(write(tmp_path / "run"))
    assert dict(found.sizes) == SIZES
    assert found.energy_budget_j.dims == ("realisation", "cluster", "node")
    assert found.latency_s.attrs == {"units": "s"}
    for policy in "ab":
        np.testing.assert_array_equal(found.latency_s.sel(policy=policy), latencies(policy))
    samples = found["violated.samples"]
    assert np.all(np.isnan(samples.sel(policy="a")))
    assert samples.sel(policy="b").values.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found.can_run, np.eye(3, 2))
    assert json.loads(found.attrs["options"]) == OPTIONS


def test_what_is_not_written_yet_is_nan(tmp_path):
    found = open_results(write(tmp_path / "run", lost=["a/000000", "networks/000002"]))
    assert found.latency_s.sel(policy="a").isnull().values.tolist() == [[True] * 2] * 2 + [
        [False] * 2
    ]
    assert found.can_run.isnull().sum() == 2


def test_several_v_have_an_axis(tmp_path):
    found = open_results(write(tmp_path / "run", experiment="closed_loop", v=[1.0, 8.0]))
    assert found.latency_s.dims == ("policy", "v", "realisation", "round")
    np.testing.assert_array_equal(found.latency_s.sel(policy="a", v=8.0), latencies("a", 8.0))
    cases = load_realisations(tmp_path / "run", "closed_loop").cases
    assert [(case.policy, case.v) for case in cases] == [
        (policy, v) for policy in "ab" for v in (1.0, 8.0)
    ]


def test_a_sweep_has_axes_of_its_keys_and_clusters_of_unlike_sizes(tmp_path):
    bandwidths, seeds = [5e6, 2e7, 8e7], [0, 1]
    devices = axis("network.devices", [2, 3])
    devices["columns"]["policy.cut"] = ["half", "best"]
    axes = [axis("radio.d2e_bandwidth_hz", bandwidths), devices, axis("seed", seeds)]
    swept = {"axes": axes, "points": [{}] * 12, "sizes": {"node": 4}}
    write(tmp_path / "sweep", "sweep", nodes=(3, 3, 4, 4), **swept)
    found = open_results(tmp_path / "sweep")
    assert found["radio.d2e_bandwidth_hz"].attrs == {"units": "Hz"}
    assert found.latency_s.dims[:4] == ("policy", *(one["name"] for one in axes))
    assert found["policy.cut"].dims == ("network.devices",)
    where = itertools.product(bandwidths, [2, 3], seeds)
    for point, (hertz, count, seed) in enumerate(where):
        at = {"radio.d2e_bandwidth_hz": hertz, "network.devices": count, "seed": seed}
        cell = found.sel(at)
        np.testing.assert_array_equal(cell.latency_s.sel(policy="b"), latencies("b", None, point))
        assert cell.energy_budget_j.isnull().sum() == (3 * 2 if count == 2 else 0)
    points = load_points(tmp_path / "sweep", "sweep")
    assert [one.networks["energy_budget_j"].shape[2] for one in points] == [3, 3, 4, 4] * 3
    assert points[5].networks["can_run"].dtype == bool
    np.testing.assert_array_equal(points[5].policies["b"]["latency_s"], latencies("b", None, 5))


@pytest.mark.parametrize(("clients", "axis"), [(3, "device"), (1, "client")])
def test_a_training_run_has_axes_of_rounds_and_nodes(clients, axis, tmp_path, monkeypatch):
    rounds, clusters, devices = 5, 2, 3
    by_cluster = rounds, clusters
    history = {
        "latency_s": np.ones(rounds),
        "absent": np.zeros(by_cluster, bool),
        "energy_j": np.ones((*by_cluster, devices + 1)),
        "parts_s": np.ones((*by_cluster, 5)),
        "samples": np.ones((*by_cluster, clients)),
        "client_parts_s": np.ones((*by_cluster, clients, 4)),
        "forward_flow_s": np.ones((*by_cluster, 12)),
    }
    constants = {
        "energy_budget_j": np.ones((clusters, devices + 1)),
        "memory_limit_bytes": np.ones((clusters, devices)),
        "baseline_score": np.float32(0.5),
    }
    record = RunRecord({"seed": 0}, constants, history)
    monkeypatch.setattr(datasets, "load_run", lambda workdir: record)
    (tmp_path / "config.json").write_text("{}")
    found = open_results(tmp_path)
    per_cluster = ("round", "cluster")
    assert {name: found[name].dims for name in (*history, *constants)} == {
        "latency_s": ("round",),
        "absent": per_cluster,
        "energy_j": (*per_cluster, "node"),
        "parts_s": (*per_cluster, "part"),
        "samples": (*per_cluster, axis),
        "client_parts_s": (*per_cluster, axis, "client_part"),
        "forward_flow_s": (*per_cluster, "forward_stage"),
        "energy_budget_j": ("cluster", "node"),
        "memory_limit_bytes": ("cluster", "device"),
        "baseline_score": (),
    }
    assert json.loads(found.attrs["config"]) == {"seed": 0}


def test_a_race_has_an_axis_of_runs(tmp_path):
    results = Results.create(tmp_path / "race", "race", {})
    table = {"seed": Variable("run", np.arange(2)), "policy": Variable("run", np.array(["a", "b"]))}
    results.write("runs", table)
    found = open_results(results.folder)
    assert found.seed.dims == ("run",)
    assert found.policy.values.tolist() == ["a", "b"]


def test_tables_of_a_study_open_by_their_names(tmp_path):
    results = Results.create(tmp_path / "bound", "bound", {})
    with pytest.raises(InputError, match="holds no results settings"):
        open_results(results.folder, "settings")
    results.write("settings", {"loss": Variable("case", np.ones(3))})
    assert open_results(results.folder, "settings").loss.sizes == {"case": 3}
    with pytest.raises(InputError, match="Choose among: settings"):
        open_results(results.folder, "setting")
    with pytest.raises(
        InputError, match=r"such folder\. .* wrote: train, compare, sweep, map, race"
    ):
        open_results(tmp_path / "missing")


def test_a_dataset_becomes_a_table_and_a_file(tmp_path):
    found = open_results(write(tmp_path / "run"))
    table = found.latency_s.to_dataframe()
    assert table.loc[("b", 2, 1)].latency_s == latencies("b")[2, 1]
    found.to_netcdf(tmp_path / "run.nc", engine="scipy")
    with xarray.open_dataset(tmp_path / "run.nc", engine="scipy") as again:
        xarray.testing.assert_equal(again, found)
        assert again.latency_s.attrs["units"] == "s"


def test_results_of_an_older_version_are_refused(tmp_path):
    folder = write(tmp_path / "run")
    (folder / "results").mkdir()
    (folder / "results" / "networks.npz").touch()
    for use in (open_results, write):
        with pytest.raises(InputError, match="older version"):
            use(folder)
