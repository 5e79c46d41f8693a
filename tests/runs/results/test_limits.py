"""A run that ends over a limit says so, with the limit, its measure and a key."""

import warnings

import numpy as np
import pytest

from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.runs.config.sweeps import read_axis
from collapipe_jax.runs.results.realisations import warn_of_comparison, warn_of_run
from collapipe_jax.runs.studies.sweep_records import read_comparisons

BUDGET_J = np.array([[1.0, 2.0]])


def history(energy_j, divergence):
    return {"energy_j": np.full((3, 1, 2), energy_j), "divergence": np.full(3, divergence)}


def test_a_run_within_its_limits_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_run(history([1.0, 2.0], 4.0), BUDGET_J, 4.0)


def test_a_run_over_its_limits_names_measure_limit_and_key():
    with pytest.warns(InputWarning) as found:
        warn_of_run(history([1.0, 17.8], 4e24), BUDGET_J, 4.0)
    energy, divergence = (str(one.message) for one in found)
    assert "node 1 ended at 17.8 J, 8.9 times the budget of 2 J" in energy
    assert "control.device_budget_j" in energy
    assert "4e+24, 1e+24 times the target of 4" in divergence
    assert "control.divergence_ratio" in divergence


def test_a_comparison_tells_of_absurd_means_alone():
    def summary(ratio):
        worst = {"worst_energy_over_budget": ratio, "worst_divergence_over_target": 1.0}
        return {"policies": {"one": {"violations": worst}}}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_comparison(summary(9.0))
    with pytest.warns(InputWarning, match=r"energy over budget, .*one 11; .*device_budget_j"):
        warn_of_comparison(summary(11.0))


def test_a_budget_that_nobody_could_keep_is_refused_by_comparisons_too():
    low = {"control.device_budget_j": "1e-12"}
    with pytest.raises(InputError, match=r"control.device_budget_j = 1e-12: no policy could"):
        read_comparisons("compare", "quickstart", low, {})
    sometimes = low | {"dynamics.availability": "0.9"}
    with pytest.warns(InputWarning, match=r"control.device_budget_j = 1e-12: .* sit out"):
        read_comparisons("compare", "quickstart", sometimes, {})


def test_a_sweep_names_the_points_whose_budget_is_too_low():
    axis = read_axis("--sweep", "control.device_budget_j=1e-12,5")
    with pytest.raises(InputError, match=r"at control\.device_budget_j=1e-12"):
        read_comparisons("sweep", "quickstart", {}, {}, [axis])
