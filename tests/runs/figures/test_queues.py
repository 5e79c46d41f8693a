"""Means over budgets and targets, and queues."""

import numpy as np
import pytest
from support.drawing import CLUSTERS, DEVICES, line_values, make_record, panels_of, rendered

from collapipe_jax.runs.figures import limits


def test_ratios_at_the_last_round_are_time_averages_over_budget():
    record = make_record(rounds=9)
    expected = record.history["energy_j"].mean(0) / record.constants["energy_budget_j"]
    np.testing.assert_allclose(limits.record_energy_over_budget(record)[-1], expected)
    np.testing.assert_allclose(
        limits.divergence_over_target(record)[-1], record.history["divergence"].mean() / 1.1
    )


def test_worst_node_of_each_class_is_bold():
    record = make_record()
    energy, queue = limits.draw_queues([record]).axes[:2]
    ratio = limits.record_energy_over_budget(record)[-1]
    mean_queue = record.history["energy_queue"].mean(0)
    for axes, worth, told in (
        (energy, ratio, lambda line: line.get_ydata()[-1]),
        (queue, mean_queue, lambda line: np.mean(line.get_ydata())),
    ):
        bold = [line for line in axes.lines if line.get_linewidth() > 1]
        worst = sorted([worth[:, 0].max(), worth[:, 1:].max()])
        np.testing.assert_allclose(sorted(told(line) for line in bold), worst)
        thin = [line for line in axes.lines if line.get_linewidth() < 0.5]
        assert len(thin) == CLUSTERS * (DEVICES + 1)


@pytest.mark.parametrize("load", [1.0, 200.0])
def test_queue_axes_hold_everything(load):
    figure = rendered(limits.draw_queues([make_record(), make_record("random", load=load)]))
    for axes in panels_of(figure):
        highest = max(values.max() for values in line_values(axes))
        assert axes.get_ylim()[1] >= highest
        assert axes.get_ylim()[0] == 0
