"""Planes of two keys."""

import pytest

from collapipe_jax.config.plane import Axis, axis_values, plane_configs, read_axis
from collapipe_jax.errors import InputError

V = Axis("control.v", ["1", "10"])
STEPS = Axis("training.local_steps", ["2", "8"])


def test_an_axis_is_a_key_and_its_values():
    assert read_axis("--x", "control.v=1, 1e1") == Axis("control.v", ["1", "1e1"])


@pytest.mark.parametrize("text", ["control.v", "control.v=", "=1", "control.v=1,,2"])
def test_an_axis_of_another_form_is_refused(text):
    with pytest.raises(InputError, match="KEY=v1,v2"):
        read_axis("--x", text)


def test_cells_are_rows_of_x():
    cells = Axis("policy.cut", ["half", "best", "0"])
    configs = plane_configs("default", {"network.devices": "3"}, cells, V)
    assert [(one.policy.cut, one.control.v) for one in configs] == [
        (cut, v) for v in (1.0, 10.0) for cut in ("half", "best", "0")
    ]
    assert {one.network.devices for one in configs} == {3}
    assert axis_values(V, configs) == [1.0, 10.0]


def test_budgets_follow_local_steps_but_not_a_budget_on_an_axis():
    given = {"control.control_unit_budget_j": "10", "control.device_budget_j": "20"}
    own = plane_configs("paper", given, STEPS, V)[0]
    assert own.training.local_steps == 2  # of 4
    assert (own.control.control_unit_budget_j, own.control.device_budget_j) == (5.0, 10.0)
    budget = Axis("control.device_budget_j", ["7"])
    own = plane_configs("paper", given, STEPS, budget)[1]
    assert (own.control.control_unit_budget_j, own.control.device_budget_j) == (20.0, 7.0)


@pytest.mark.parametrize(
    ("x", "key"),
    [
        (Axis("control.w", ["1"]), "control.w"),
        (Axis("control.v", ["fast"]), "control.v"),
        (Axis("control.v", ["-1"]), "control.v"),
        (STEPS, "--y"),
    ],
)
def test_wrong_axes_are_refused_by_their_key(x, key):
    with pytest.raises(InputError) as caught:
        plane_configs("default", {}, x, STEPS)
    assert caught.value.key == key


def test_steps_both_given_and_swept_are_refused():
    with pytest.raises(InputError, match="it is an axis"):
        plane_configs("default", {"training.local_steps": 4}, STEPS, V)


def test_a_value_written_twice_is_refused():
    twice = Axis("control.v", ["1", "1.0"])
    with pytest.raises(InputError, match="there twice"):
        axis_values(twice, plane_configs("default", {}, twice, STEPS))
