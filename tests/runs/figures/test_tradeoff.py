"""What V trades, drawn: bounds, slopes and networks that are left out."""

import numpy as np
import pytest
from support.drawing import assert_units, rendered
from support.made_up_comparisons import random_loop

from collapipe_jax.core.errors import InputError
from figures import tradeoff


def test_curves_lie_under_their_bounds_and_slopes_are_found():
    (curve,) = tradeoff.curves(random_loop((1.0, 10.0, 50.0, 100.0, 200.0, 1e6)))
    np.testing.assert_array_equal(curve.binding, curve.v >= 49)
    np.testing.assert_allclose(curve.excess_bound, 4.2 / curve.v, rtol=1e-6)
    assert np.all(curve.excess.value < curve.excess_bound)
    assert np.all(curve.backlog.value < curve.backlog_bound)
    assert curve.backlog_bound[-1] / curve.backlog_bound[-2] == pytest.approx(5000, rel=0.1)
    excess, backlog = tradeoff.slopes(curve)
    assert excess == pytest.approx(-1, abs=0.01)
    assert backlog == pytest.approx(1, abs=0.01)


def test_the_figure_names_units_and_shows_every_v():
    result = random_loop((1.0, 10.0, 100.0, 1000.0))
    figure = rendered(tradeoff.draw(result))
    assert_units(figure)
    shown = [axes.containers[0].lines[0].get_xdata() for axes in figure.axes]
    assert [len(v) for v in shown] == [4, 3, 4]


def test_networks_without_slack_are_left_out_and_none_is_an_error():
    result = random_loop((1.0, 10.0))
    for case in result.cases:
        case.values["energy_over_budget"][:10] = 1.2
    (curve,) = tradeoff.curves(result)
    assert curve.networks == 30
    for case in result.cases:
        case.values["energy_over_budget"][:] = 1.2
    with pytest.raises(InputError, match="slack"):
        tradeoff.curves(result)
    with pytest.raises(InputError, match="several V"):
        tradeoff.curves(random_loop((1.0,)))
