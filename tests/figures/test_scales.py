"""Axes of amounts that differ by orders of magnitude."""

import numpy as np
import pytest

from figures import style
from figures.scales import wide_axis


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
    low, high = wide_axis(axes, "x", np.array(values))
    assert axes.get_xscale() == scale
    assert axes.get_xlim() == (low, high)
    assert low <= holds[0] < holds[1] <= high
    if scale == "log":
        decades = np.floor(np.log10(high)) - np.ceil(np.log10(low))
        assert decades >= 1  # at least two powers of ten are numbered
