"""What V trades, drawn: bounds, slopes and networks that are left out."""

import numpy as np
import pytest
from test_figures import assert_units, rendered

from collapipe_jax.errors import InputError
from experiments.closed_loop_files import Case, ClosedLoop
from figures import tradeoff


def random_loop(v, networks=40, rounds=100, seed=0):
    """A made-up run that obeys its bounds: latency falls as 1 / V, backlogs rise as V."""
    rng = np.random.default_rng(seed)
    optimum, size = rng.uniform(0.5, 1.0, networks), rng.uniform(0.5, 1.5, networks)
    shape = (networks, 2, 3)

    def values(one):
        return {
            "mean_latency_s": optimum + size / one,
            "latency_over_reference": optimum + size / one,
            "energy_over_budget": np.full(shape, min(1.0, 0.5 + 0.01 * one)),
            "divergence_over_target": np.full(networks, 0.8),
            "final_energy_queue": np.zeros(shape),
            "final_divergence_queue": np.zeros(networks),
            "mean_energy_queue": np.full(shape, 0.1 * one) * size[:, None, None],
            "mean_divergence_queue": np.zeros(networks),
            "energy_drift": np.full(networks, 3.0),
            "divergence_drift": np.full(networks, 0.2),
            "lifted_cost": np.full(networks, 0.3),
            "absent_rounds": np.zeros((networks, 2)),
        }

    config = {
        "dynamics": {"availability": 1.0},
        "network": {"clusters": 2, "devices": 2},
        "control": {"energy_reserve": 0.05, "divergence_reserve": 0.4},  # 0.7 over all limits
    }
    asked = {"rounds": rounds, "realisations": networks, "policies": ["made_up"], "v": list(v)}
    drawn = {
        "reference_latency_s": np.ones(networks),
        "can_run": np.ones((networks, 2), bool),
        "control_unit_floor": np.full((networks, 2), 0.3),
        "device_floor": np.full((networks, 2), 0.2),
        "least_final_queue": np.zeros((networks, 2)),
    }
    cases = [Case("made_up", one, values(one)) for one in v]
    return ClosedLoop({"config": config, "closed_loop": asked}, drawn, cases)


def test_curves_lie_under_their_bounds_and_slopes_are_found():
    (curve,) = tradeoff.curves(random_loop((1.0, 10.0, 50.0, 100.0, 200.0, 1e6)))
    np.testing.assert_array_equal(curve.binding, curve.v >= 49)
    np.testing.assert_allclose(curve.excess_bound, 4.2 / curve.v, rtol=1e-6)
    assert np.all(curve.excess[:, 0] < curve.excess_bound)
    assert np.all(curve.backlog[:, 0] < curve.backlog_bound)
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
