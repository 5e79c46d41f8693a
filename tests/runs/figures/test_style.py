"""Looks, labels and units, the same in every figure; files that are always the same."""

import itertools

import numpy as np
import pytest
from support.drawing import make_record
from support.made_up_comparisons import EIGHT, compared, rulers

from collapipe_jax.core.quantity import time_unit
from collapipe_jax.runs.figures import limits, style, training


def test_policies_keep_their_colours(tmp_path):
    looks = style.policy_looks(EIGHT)
    for key in ("color", "marker", "linestyle"):
        assert len({str(look[key]) for look in looks.values()}) == 8
    for names in itertools.permutations(("splitfed", "dssra", "made_up"), 2):
        told = style.policy_looks(names)
        assert all(told[name] == looks[name] for name in names if name in looks)
        assert len({str(look) for look in told.values()}) == 2
    result = compared(tmp_path / "c", names=("splitfed", "dssra"))
    above = limits.draw_memory(result).axes[0]
    colors = [line.get_color() for line in above.lines if line not in rulers(above)]
    assert colors == [looks["splitfed"]["color"], looks["dssra"]["color"]]
    curves = [
        line for line in limits.draw_constraints(result).axes[0].lines if line.get_linewidth() > 1
    ]
    assert [line.get_color() for line in curves] == colors


def test_runs_have_the_looks_of_their_policies():
    looks = style.policy_looks(EIGHT)
    records = [make_record(name, rounds=1) for name in ("titanic", "dssra")]
    assert style.run_looks(records) == [looks["titanic"], looks["dssra"]]
    shared = style.run_looks([records[0], records[0], records[1]])
    assert len({str(look) for look in shared}) == 3


def test_labels_number_shared_policies():
    records = [make_record("a_b"), make_record("c"), make_record("a_b")]
    assert style.run_labels(records) == ["a b (1)", "c", "a b (2)"]


def test_labels_tell_the_one_key_that_differs():
    def record(policy, **keys):
        config = {"policy": {"name": policy, **keys}, "seed": keys.get("s", 0)}
        return make_record(policy)._replace(config=config)

    records = [record("a_b", micro_batches=1), record("c"), record("a_b", micro_batches=8)]
    assert style.run_labels(records) == ["a b (micro batches 1)", "c", "a b (micro batches 8)"]
    two_keys = [record("a", micro_batches=1, s=1), record("a", micro_batches=8, s=2)]
    assert style.run_labels(two_keys) == ["a (1)", "a (2)"]
    same = [*records, record("a_b", micro_batches=8)]
    assert style.run_labels(same)[0] == "a b (1)"


@pytest.mark.parametrize(
    ("most", "unit"), [(5e9, "GiB"), (2**30, "GiB"), (7e6, "MiB"), (900.0, "KiB"), (0.0, "KiB")]
)
def test_memory_unit(most, unit):
    assert style.memory_unit(most)[1] == unit


@pytest.mark.parametrize(
    ("longest_s", "unit"), [(0.3, "ms"), (3, "s"), (119, "s"), (600, "min"), (9000, "h")]
)
def test_time_unit(longest_s, unit):
    assert time_unit(longest_s)[1] == unit


def test_files_are_reproducible_and_embed_truetype(tmp_path):
    paths = [
        style.save(training.draw_progress([make_record()]), tmp_path / at, "p") for at in ("a", "b")
    ]
    for first, second in zip(*paths, strict=True):
        assert first.read_bytes() == second.read_bytes()
    pdf = paths[0][0].read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


@pytest.mark.parametrize(
    ("values", "scale", "holds"),
    [
        ([1.0, 20.0], "linear", (0.0, 20.0)),
        ([1.0, 50.0], "log", (1.0, 50.0)),
        ([3.0, 5000.0, np.inf, -1.0, 0.0], "log", (3.0, 5000.0)),
        ([1e-3, 1e27], "log", (1e-3, 1e27)),
        ([0.0, np.nan], "linear", (0.0, 1.0)),
        ([], "linear", (0.0, 1.0)),
    ],
)
def test_axes_of_amounts(values, scale, holds):
    axes = style.new_figure(3.5, 2.0).subplots()
    low, high = style.wide_axis(axes, "x", np.array(values))
    assert axes.get_xscale() == scale
    assert axes.get_xlim() == (low, high)
    assert low <= holds[0] < holds[1] <= high
    if scale == "log":
        decades = np.floor(np.log10(high)) - np.ceil(np.log10(low))
        assert decades >= 1  # at least two powers of ten are numbered
