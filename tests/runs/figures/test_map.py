"""The figure of who wins where."""

import numpy as np
import pytest
from support.drawing import rendered
from support.made_up_comparisons import assert_readable

from collapipe_jax.core.quantity import axis_texts
from collapipe_jax.runs.figures import sweep

NAMES = ("dssra", "titanic_pipelined", "splitfed", "control_unit_fl", "hierarchical_fl", None)


def cell(name, low=1.0):
    margin = {"value": 12.4, "ci95": [low, 20.0]}
    return {"winner": name, "margin_percent": margin, "faster_share": 0.6}


def summary(columns=6, rows=6):
    cells = [cell(NAMES[(row + column) % 6]) for row in range(rows) for column in range(columns)]
    return {
        "x": "radio.d2e_bandwidth_hz",
        "x_values": [5e6 * 2**index for index in range(columns)],
        "y": "devices.memory_share",
        "y_values": [0.1 * (index + 1) for index in range(rows)],
        "realisations": 32,
        "rounds": 10,
        "tolerance": 0.25,
        "cells": cells,
    }


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (6, 6)])
def test_maps_are_readable(size):
    assert_readable(sweep.draw_map(summary(*size)))


def test_cells_name_their_winner_and_its_margin():
    made_up = summary(2, 2)
    made_up["cells"] = [cell("dssra"), cell("splitfed", low=-1.0), cell(None), cell("dssra")]
    made_up["cells"][3]["margin_percent"] = None
    axes = rendered(sweep.draw_map(made_up)).axes[0]
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    wanted = ["dssra\n12 %, 60 %", "splitfed\n~12 %, 60 %", "nobody", "dssra\nalone"]
    assert shown == dict(zip([(0, 0), (1, 0), (0, 1), (1, 1)], wanted, strict=True))
    image = axes.images[0].get_array()
    np.testing.assert_array_equal(image[0, 0], image[1, 1])
    assert len({tuple(color) for color in np.reshape(image, (4, 3))}) == 3
    assert len(axes.lines) == 4  # between all neighbours


def test_policies_of_one_colour_differ_in_lightness():
    colors = sweep.cell_colors(["vanilla_fl", "control_unit_fl", "hierarchical_fl"])
    assert len(set(colors.values())) == 3


@pytest.mark.parametrize(
    ("key", "values", "label", "texts"),
    [
        ("radio.d2e_bandwidth_hz", [5e6, 2e7], "D2E bandwidth [MHz]", ["5", "20"]),
        ("training.local_steps", [1, 64], "Local steps [–]", ["1", "64"]),
        ("control.device_budget_j", [120.0, 4800.0], "Device budget [J]", ["120", "4800"]),
        ("policy.cut", ["half", "0"], "Cut [–]", ["half", "0"]),
    ],
)
def test_axes_have_units(key, values, label, texts):
    assert axis_texts(key, values)[:2] == (label, texts)
