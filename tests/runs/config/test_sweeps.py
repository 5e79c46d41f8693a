"""Sweeps: axes from the command line and from files, and the points of their product."""

import itertools

import pytest
from support import ROOT

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.config.sweeps import file_axes, read_axis, read_sweep
from configs import sweeps

V, STEPS = "control.v=1,10", "training.local_steps=2,8"


def axes(*texts):
    return [read_axis("--sweep", text) for text in texts]


def swept(*texts, path="default", overrides=None, **options):
    return read_sweep(path, overrides or {}, axes(*texts), **options)


def test_an_axis_is_a_key_and_its_values():
    axis = read_axis("--x", "control.v=1, 1e1")
    assert (axis.name, axis.keys) == ("control.v", [{"control.v": "1"}, {"control.v": "1e1"}])


def test_commas_in_brackets_and_quotes_do_not_separate():
    axis = read_axis("--sweep", "devices.kinds=('a','b'),('c,d',),()")
    assert [one["devices.kinds"] for one in axis.keys] == ["('a','b')", "('c,d',)", "()"]


def test_keys_after_a_blank_go_together():
    found = swept("network.clusters=2,4  network.devices=5,3", V)
    assert [axis.name for axis in found.axes] == ["network.clusters", "control.v"]
    assert found.axes[0].columns == {"network.clusters": [2, 4], "network.devices": [5, 3]}
    sizes = [(own.network.clusters, own.network.devices) for _, own in found.points]
    assert sizes == [(2, 5), (2, 5), (4, 3), (4, 3)]


@pytest.mark.parametrize("text", ["control.v", "control.v=", "=1", "control.v=1,,2"])
def test_an_axis_of_another_form_is_refused(text):
    with pytest.raises(InputError, match="KEY=v1,v2"):
        read_axis("--x", text)


def test_the_last_axis_runs_fastest_and_seeds_after_it():
    found = swept(V, "policy.cut=half,best", seeds=2, overrides={"seed": "3"})
    assert [axis.values for axis in found.axes] == [[1.0, 10.0], ["half", "best"], [3, 4]]
    labels = [tuple(point.labels.values()) for point in found.points]
    assert labels == list(itertools.product([1.0, 10.0], ["half", "best"], [3, 4]))
    for point in found.points:
        own = point.config
        assert tuple(point.labels.values()) == (own.control.v, own.policy.cut, own.seed)


def test_budgets_follow_local_steps_but_not_a_swept_budget():
    given = {"control.control_unit_budget_j": "10", "control.device_budget_j": "20"}
    own = swept(STEPS, V, path="paper", overrides=given).points[0].config
    assert own.training.local_steps == 2  # of 4
    assert (own.control.control_unit_budget_j, own.control.device_budget_j) == (5.0, 10.0)
    given = {"control.control_unit_budget_j": "10"}
    own = swept("control.device_budget_j=7", STEPS, path="paper", overrides=given).points[1].config
    assert (own.control.control_unit_budget_j, own.control.device_budget_j) == (20.0, 7.0)


@pytest.mark.parametrize(
    ("texts", "overrides", "key", "problem"),
    [
        (["control.w=1"], {}, "control.w", "unknown key"),
        (["control.v=fast"], {}, "control.v", "."),
        ([V, "control.device_budget_j=1,-1"], {}, "control.device_budget_j", "."),
        (["control.v=1,1.0"], {}, "control.v", "there twice"),
        ([V, V], {}, "control.v", "two axes have it"),
        ([V, "seed=1,2"], {}, "seed", "two axes have it"),
        ([V], {"control.v": "3"}, "control.v", "it is swept"),
        ([STEPS], {"training.local_steps": 4}, "training.local_steps", "it is swept"),
        (["control.v=1,1 network.devices=2,3"], {}, "control.v", "put a key first"),
    ],
)
def test_what_is_wrong_is_named(texts, overrides, key, problem):
    with pytest.raises(InputError, match=problem) as caught:
        swept(*texts, overrides=overrides, seeds=2)
    assert [each.key for each in caught.value.errors] == [key]


def test_unlike_numbers_of_values_that_go_together_are_refused():
    with pytest.raises(InputError, match="different numbers of values"):
        axes("control.v=1,2 network.devices=3")


def test_a_check_of_every_point_reports_all():
    def check(config):
        raise InputError("control.v", config.control.v, "bad", "Give another")

    with pytest.raises(InputError) as caught:
        swept(V, check=check)
    assert [each.value for each in caught.value.errors] == [1.0, 10.0]


def test_a_file_gives_axes_of_keys(tmp_path):
    path = tmp_path / "swept.py"
    path.write_text(
        "from collapipe_jax.runs.config.named import quickstart as get_config\n"
        "def get_sweep():\n"
        "    return [{'keys': {'control.v': [1, 10]}, 'label': 'V', 'log': True},\n"
        "            {'keys': {'network.devices': [2, 3], 'network.clusters': [3, 2]}}]\n"
    )
    found = read_sweep(str(path), {}, file_axes(str(path)))
    assert [(axis.label, axis.log) for axis in found.axes] == [("V", True), ("", False)]
    assert len(found.points) == 4
    assert file_axes("paper") == []


@pytest.mark.parametrize(
    "points", ["None", "[]", "3", "[1, 2]", "[(None, {})]", "[((1, 2), {})]", "[(1, {}, 2)]"]
)
def test_wrong_points_of_a_file_are_reported(tmp_path, points):
    path = tmp_path / "sweep.py"
    path.write_text(
        f"def get_sweep():\n    return {{'axis': 'V', 'log': False, 'points': {points}}}\n"
    )
    with pytest.raises(InputError, match=r"get_sweep\(\) has (no points|the point)"):
        file_axes(str(path))


@pytest.mark.parametrize("name", sweeps.SWEEPS)
def test_every_sweep_of_the_project_sets_keys_that_there_are(name):
    """All points pass the checks of a configuration; nothing is simulated."""
    path = str(ROOT / "configs" / f"sweeps.py:{name}")
    found = read_sweep(path, {}, file_axes(path))
    configs = [point.config.to_dict() for point in found.points]
    assert all(one != other for one, other in itertools.pairwise(configs))
    (axis,) = found.axes
    if not isinstance(axis.values[0], str):
        assert axis.values == sorted(axis.values)


def test_a_sweep_that_there_is_not_is_reported_with_all_names():
    path = str(ROOT / "configs" / "sweeps.py")
    for wrong in (f"{path}:w", path):
        with pytest.raises(InputError, match=r"no such variant.*bandwidth"):
            file_axes(wrong)
