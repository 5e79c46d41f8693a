import json
import time

import numpy as np

from collapipe_jax.runs.training.history import History, metrics_line


def rows(count):
    rng = np.random.default_rng(0)
    return [
        {
            "round": np.int32(index),
            "energy_j": rng.random((2, 3), np.float32),
            "score": np.float32(index if index % 3 == 2 else np.nan),
            "simulated_time_s": np.float64(0.1 * index),
            "absent": np.array([index % 2 == 0, False]),
        }
        for index in range(count)
    ]


def filled(count):
    history = History({})
    for row in rows(count):
        history.append(row)
    return history


def test_arrays_are_the_rows_side_by_side_and_come_back_from_a_checkpoint():
    assert History({}).pop() == {}
    history = filled(7)
    arrays = history.pop()
    assert history.pop() == {}
    for name, values in arrays.items():
        column = [row[name] for row in rows(7)]
        assert values.dtype == column[0].dtype
        np.testing.assert_array_equal(values, np.stack(column))
    again = History(arrays)
    again.append(rows(8)[7])
    history.append(rows(8)[7])
    assert again.done == history.done == 8
    assert metrics_line(again.last) == metrics_line(history.last)
    np.testing.assert_array_equal(again.energy_j, history.energy_j)
    assert len(history.pop()["energy_j"]) == 1
    np.testing.assert_array_equal(again.pop()["energy_j"][:7], arrays["energy_j"])


def test_clock_and_score_are_the_newest():
    assert History({}).simulated_time_s == 0.0
    assert np.isnan(filled(2).last_score)
    assert filled(7).last_score == 5.0
    assert filled(7).simulated_time_s == 0.1 * 6


def test_a_round_is_added_in_constant_time():
    """A copy of the history a round would take some hundred times as long."""
    row = {"energy_j": np.zeros((4, 6), np.float32), "score": np.float32(np.nan)}
    row["simulated_time_s"] = np.float64(0.0)

    def seconds(history):
        start = time.perf_counter()
        for _ in range(1000):
            history.append(row)
        return time.perf_counter() - start

    arrays = {name: np.repeat(value[None], 100_000, axis=0) for name, value in row.items()}
    short, long = History({}), History(arrays)
    assert min(seconds(long) for _ in range(5)) < 5.0 * min(seconds(short) for _ in range(5))


def test_a_line_is_strict_json_whatever_a_round_brings():
    line = metrics_line({"b": np.array([np.nan, 1.0]), "a": np.float32(np.inf)})
    assert json.loads(line) == {"a": None, "b": [None, 1.0]}
    assert list(json.loads(line)) == ["a", "b"]
