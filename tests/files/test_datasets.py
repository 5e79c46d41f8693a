"""Results as labelled datasets: axes, units, and nan where a policy or point lacks a number."""

import json

import numpy as np
import pytest

from collapipe_jax.errors import InputError
from collapipe_jax.files import datasets
from collapipe_jax.files.checkpoints import RunRecord
from collapipe_jax.files.datasets import open_results
from collapipe_jax.files.realisations import case_name, chunk_parts, point_folder
from collapipe_jax.files.results import Results, Variable

OPTIONS = {"rounds": 2, "realisations": 3, "chunk": 2, "policies": ["a", "b"], "v": [3.0]}
SIZES = {"policy": 2, "realisation": 3, "round": 2, "cluster": 2, "node": 4}


def latencies(policy, v=3.0):
    return 100.0 * len(policy) + v + np.arange(6.0).reshape(3, 2)


def write_comparison(folder, *, experiment="compare", nodes=4, **changed):
    options = OPTIONS | changed
    results = Results.create(folder, experiment, options, {"seed": 0})
    budgets_j = np.ones((3, 2, nodes))
    networks = {"energy_budget_j": Variable("realisation cluster node", budgets_j)}
    results.write("networks", networks)
    for policy in options["policies"]:
        for v in options["v"]:
            data = {"latency_s": Variable("realisation round", latencies(policy, v))}
            if policy == "b":
                data["violated.samples"] = Variable("realisation", np.arange(3))
            for part, start in chunk_parts(case_name(policy, v), options).items():
                rows = slice(start, start + 2)
                chunk = {name: one.replace(values=one.values[rows]) for name, one in data.items()}
                results.write(part, chunk)
    return folder


def test_a_comparison_has_an_axis_of_policies(tmp_path):
    found = open_results(write_comparison(tmp_path / "run"))
    assert dict(found.sizes) == SIZES
    assert found.energy_budget_j.dims == ("realisation", "cluster", "node")
    assert found.latency_s.attrs == {"units": "s"}
    for policy in "ab":
        np.testing.assert_array_equal(found.latency_s.sel(policy=policy), latencies(policy))
    samples = found["violated.samples"]
    assert np.all(np.isnan(samples.sel(policy="a")))
    assert samples.sel(policy="b").values.tolist() == [0, 1, 2]
    assert json.loads(found.attrs["options"]) == OPTIONS


def test_several_v_have_an_axis(tmp_path):
    folder = write_comparison(tmp_path / "run", experiment="closed_loop", v=[1.0, 8.0])
    found = open_results(folder)
    assert found.latency_s.dims == ("policy", "v", "realisation", "round")
    np.testing.assert_array_equal(found.latency_s.sel(policy="a", v=8.0), latencies("a", 8.0))


def test_a_sweep_has_an_axis_of_its_values(tmp_path):
    swept = {"axis": "devices per cluster", "log": False, "values": [2, 3], "points": [{}, {}]}
    results = Results.create(tmp_path / "sweep", "sweep", swept)
    for index, nodes in enumerate((3, 4)):
        write_comparison(point_folder(results.folder, index), nodes=nodes)
    found = open_results(results.folder)
    assert found.energy_budget_j.sel({"devices per cluster": 2}).isnull().sum() == 3 * 2
    assert found.energy_budget_j.sel({"devices per cluster": 3}).notnull().all()


def test_a_map_has_two_axes(tmp_path):
    plane = {"x": "radio.d2e_bandwidth_hz", "x_values": [5e6, 2e7, 8e7]}
    plane |= {"y": "training.local_steps", "y_values": [1, 4], "points": [{}] * 6}
    results = Results.create(tmp_path / "map", "map", plane)
    for index in range(6):
        write_comparison(point_folder(results.folder, index), policies=["a" * (index + 1)])
    found = open_results(results.folder)
    assert found["radio.d2e_bandwidth_hz"].attrs == {"units": "Hz"}
    for y, local_steps in enumerate([1, 4]):
        for x, bandwidth_hz in enumerate([5e6, 2e7, 8e7]):
            cell = found.sel(
                {"radio.d2e_bandwidth_hz": bandwidth_hz, "training.local_steps": local_steps}
            )
            own = "a" * (3 * y + x + 1)
            assert (cell.latency_s.sel(policy=own) == latencies(own)).all()
            others = cell.latency_s.drop_sel(policy=own)
            assert others.isnull().all()


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
    results.write("runs", {"seed": Variable("run", np.arange(2))})
    assert open_results(results.folder).seed.dims == ("run",)


def test_other_experiments_and_folders_are_refused(tmp_path):
    results = Results.create(tmp_path / "bound", "bound", {})
    with pytest.raises(InputError, match="bound makes no dataset"):
        open_results(results.folder)
    with pytest.raises(InputError, match="workdir"):
        open_results(tmp_path / "missing")


def test_a_dataset_becomes_a_table(tmp_path):
    found = open_results(write_comparison(tmp_path / "run"))
    table = found.latency_s.to_dataframe()
    assert table.loc[("b", 2, 1)].latency_s == latencies("b")[2, 1]
