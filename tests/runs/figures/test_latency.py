"""Parts of the slowest cluster's latency."""

import numpy as np
from support.drawing import make_record, rendered

from collapipe_jax.runs.figures import training


def test_slowest_parts_sum_to_the_latency():
    record = make_record(rounds=30)
    np.testing.assert_allclose(
        training.slowest_parts_s(record).sum(1), record.history["latency_s"], rtol=1e-12
    )


def test_infinite_latency_is_crossed_not_stacked():
    record = make_record(rounds=4)
    record.history["latency_s"][2] = np.inf
    record.history["cluster_latency_s"][2, 0] = np.inf
    record.history["parts_s"][2, 0, 4] = np.inf
    parts = training.slowest_parts_s(record)
    assert np.isnan(parts[2]).all()
    assert np.isfinite(parts[[0, 1, 3]]).all()
    figure = rendered(training.draw_latency([record]))
    crosses = figure.axes[0].lines[0]
    np.testing.assert_array_equal(crosses.get_xdata(), [3])


def test_latency_panels_share_axes():
    records = [make_record(), make_record("static_pipeline", load=3.0, seed=1)]
    first, second = training.draw_latency(records).axes[:2]
    assert first.get_ylim() == second.get_ylim()
    tallest_s = max(record.history["latency_s"].max() for record in records)
    assert first.get_ylim()[1] >= tallest_s
