"""A round of data-parallel clients, drawn from made-up histories."""

import numpy as np
import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import round as gantt
from collapipe_jax.runs.figures.round import draw_gantt_clients
from collapipe_jax.runs.results.checkpoints import RunRecord
from collapipe_jax.runs.results.record import client_round, has_clients


def make_record(samples, parts_s, policy="splitfed"):
    samples = np.asarray(samples)
    history = {
        "round": np.arange(len(samples)),
        "samples": samples,
        "client_parts_s": np.asarray(parts_s, float),
    }
    return RunRecord({"seed": 0, "policy": {"name": policy}}, {}, history)


@pytest.fixture
def record():
    """Three rounds of two clusters of two devices; nobody is there in the last."""
    samples = [[[2, 2], [4, 0]], [[4, 0], [0, 4]], [[0, 0], [0, 0]]]
    parts_s = np.arange(3 * 2 * 2 * 4).reshape(3, 2, 2, 4)
    return make_record(samples, parts_s)


def test_clients_are_those_with_samples(record):
    last = client_round(record, None)
    assert last.number == 1
    assert last.names == ["cluster 0, device 1", "cluster 1, device 2"]
    np.testing.assert_array_equal(last.parts_s, [[16, 17, 18, 19], [28, 29, 30, 31]])
    assert len(client_round(record, 0).names) == 3


def test_bars_stand_end_to_end_in_one_unit(record):
    axes = draw_gantt_clients([record], 0).axes[0]
    bars = np.array([[bar.get_x(), bar.get_width()] for bar in axes.patches]).reshape(4, 3, 2)
    np.testing.assert_allclose(bars[..., 1].T, client_round(record, 0).parts_s)
    np.testing.assert_allclose(bars[1:, :, 0], bars[:-1].sum(axis=-1))


def test_a_client_that_never_ends_is_drawn_up_to_there(record):
    record.history["client_parts_s"][1, 0, 0, 3] = np.inf
    axes = draw_gantt_clients([record]).axes[0]
    widths = np.array([bar.get_width() for bar in axes.patches])
    assert np.isfinite(widths).all()
    assert widths[-2:].tolist() == [0.0, 31.0]


def test_the_legend_names_what_is_drawn(record):
    names = list(gantt._CLIENT_LOOKS)
    assert [
        text.get_text() for text in draw_gantt_clients([record]).legends[0].get_texts()
    ] == names
    record.history["client_parts_s"][..., 2] = 0.0
    told = [text.get_text() for text in draw_gantt_clients([record]).legends[0].get_texts()]
    assert told == names[:2] + names[3:]


@pytest.mark.parametrize(("number", "problem"), [(2, "sat out"), (7, "no such round")])
def test_rounds_without_clients_are_reported(record, number, problem):
    with pytest.raises(InputError, match=problem):
        draw_gantt_clients([record], number)


def test_runs_of_pipelines_have_no_clients(record):
    assert has_clients(record)
    del record.history["samples"]
    assert not has_clients(record)
    with pytest.raises(InputError, match="no clients"):
        gantt.draw_gantt_clients([record])


def test_control_units_have_their_name():
    record = make_record([[[4], [4]]], np.ones((1, 2, 1, 4)), "control_unit_fl")
    record.history["control_unit_memory_bytes"] = np.ones((1, 2))
    names = client_round(record, None).names
    assert names == ["cluster 0, control unit", "cluster 1, control unit"]
