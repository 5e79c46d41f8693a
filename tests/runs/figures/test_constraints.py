"""Energy and queues over rounds."""

import numpy as np
from support.made_up_comparisons import EIGHT, break_all, break_first, compared

from collapipe_jax.core.statistics import mean_estimate, median_estimate
from collapipe_jax.runs.figures import limits


def test_energy_over_budget_is_the_running_mean_of_all_nodes(tmp_path):
    result = compared(tmp_path, rounds=6)
    told = limits.energy_over_budget(result, "greedy")
    energy = result.policies["greedy"]["energy_j"]
    budget = result.networks["energy_budget_j"].sum(axis=(1, 2))
    np.testing.assert_allclose(told[:, 0], energy[:, 0] / budget)
    np.testing.assert_allclose(told[:, -1], energy.mean(axis=1) / budget)


def test_constraints_show_estimates_of_every_round(tmp_path):
    result = compared(tmp_path)
    figure = limits.draw_constraints(result)
    for index, estimate in enumerate((mean_estimate, median_estimate)):
        queues = [own["worst_energy_queue"] for own in result.policies.values()]
        axes = figure.axes[3 * index + 1]
        lines = [line for line in axes.lines if line.get_linewidth() > 1]
        bands = [line for line in axes.lines if line.get_linewidth() < 1]
        for place, queue in enumerate(queues):
            told = estimate(queue)
            np.testing.assert_array_equal(lines[place].get_xdata(), np.arange(1, 6))
            np.testing.assert_allclose(lines[place].get_ydata(), told.value)
            low, high = bands[2 * place].get_ydata(), bands[2 * place + 1].get_ydata()
            np.testing.assert_allclose(low, np.maximum(told.low, 0))
            np.testing.assert_allclose(high, told.high)


def test_panels_without_a_finite_value_say_so(tmp_path):
    figure = limits.draw_constraints(compared(tmp_path, change=break_all, names=EIGHT[:2]))
    told = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert told == 2 * [["no finite value"], [], ["no finite value"]]


def test_lines_of_means_end_where_a_value_is_infinite(tmp_path):
    figure = limits.draw_constraints(compared(tmp_path, change=break_first, names=EIGHT[:2]))
    mean = [line.get_ydata() for line in figure.axes[2].lines if line.get_linewidth() > 1]
    median = [line.get_ydata() for line in figure.axes[5].lines if line.get_linewidth() > 1]
    np.testing.assert_array_equal(np.isfinite(mean[0]), [1, 1, 0, 0, 0])
    assert np.isfinite(mean[1]).all()
    assert np.isfinite(median).all()
