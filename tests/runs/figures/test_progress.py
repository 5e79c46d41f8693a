"""Score and losses against rounds and the simulated clock."""

import re

import numpy as np
from support.drawing import line_values, make_record

from collapipe_jax.runs.figures import training


def test_progress_joins_evaluated_rounds_only():
    record = make_record(rounds=12, evaluated=4)
    figure = training.draw_progress([record])
    score = figure.axes[0].lines[0]
    np.testing.assert_array_equal(score.get_xdata(), [4, 8, 12])
    np.testing.assert_array_equal(score.get_ydata(), record.history["score"][3::4])
    assert any(np.all(values == 3.2) for values in line_values(figure.axes[0]))


def test_progress_time_axis_is_the_simulated_clock():
    record = make_record(rounds=12)
    figure = training.draw_progress([record])
    unit = re.search(r"\[(.*)\]", figure.axes[3].get_xlabel())[1]
    seconds = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600}[unit]
    curve = figure.axes[3].lines[0]
    np.testing.assert_allclose(curve.get_xdata() * seconds, record.history["simulated_time_s"])


def test_progress_says_when_nothing_was_evaluated():
    figure = training.draw_progress([make_record(evaluated=0)])
    assert [text.get_text() for text in figure.axes[0].texts] == ["no evaluation yet"]
    assert not training.draw_progress([make_record()]).axes[0].texts


def test_progress_of_a_task_of_ones_own():
    own = {
        "policy": {"name": "dssra"},
        "task": {"kind": "collapipe_jax.learning.tasks.tagging:Tagging"},
    }
    figure = training.draw_progress([make_record()._replace(config=own)])
    assert figure.axes[0].get_ylabel() == "span F1 [%]"
