"""Descents with noise on the server's step against closed forms and the bound."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.cli.options import run_reporting_errors
from experiments.studies import private_bound as experiment
from experiments.studies.bound import DescentCase
from experiments.studies.bound_descents import (
    BATCH,
    CLUSTERS,
    DIMENSIONS,
    Trace,
    descend_all,
    make_problems,
    make_quadratic,
)
from experiments.studies.private_bound import PrivateCase, bound

REPEATS = 400


def test_an_isotropic_quadratic_settles_at_its_closed_form(monkeypatch):
    """From the best point: sampling noise, and the server's noise on each coordinate."""
    monkeypatch.setattr(experiment, "CLIP_NORM", 5.0)  # steps are longer than the study's
    problem, bend, rounds = make_quadratic(), 0.5, 40
    best = jnp.asarray(problem.optimum(np.full(CLUSTERS, 0.25)), jnp.float32)
    case = PrivateCase(DescentCase("independent", "", 1, 0.0, 0.0, 4, "equal", rounds, 0.3), 3.0)
    deviation = case.deviation(problem)
    settings = jax.tree.map(lambda leaf: leaf[None], case.setting(problem))
    problem = problem.replace(curvature=jnp.full(best.shape, bend), start=best)
    keys = jax.random.split(jax.random.key(0), (1, REPEATS))
    trace = descend_all(problem, settings, keys, rounds=rounds, local_steps=1)
    step = 0.3 / bend
    noise = step**2 * float(problem.noise) / BATCH / CLUSTERS + DIMENSIONS * deviation**2
    shrinks = (1 - step * bend) ** 2
    expected = np.mean(bend**2 * noise * (1 - shrinks ** np.arange(rounds)) / (1 - shrinks))
    values = np.asarray(trace.squared_gradient, np.float64).ravel()
    error = values.std(ddof=1) / np.sqrt(REPEATS)
    assert error < 0.05 * expected
    assert abs(values.mean() - expected) < 4.5 * error
    assert 0.0 < np.max(trace.longest_step) < experiment.CLIP_NORM


def test_there_are_a_hundred_settings_and_noise_is_the_asked_part_of_the_start():
    every, problems = experiment.cases(200), make_problems()
    assert len(set(every)) == len(every) == 100
    met = Trace(np.ones(1), np.ones(1), np.ones(1), np.ones((1, DIMENSIONS)))
    for case in every[:10]:  # of one local step
        problem = problems[case.descent.problem]
        start = bound(case, problem, met, 1.0) - bound(case, problem, met, 0.0)
        gap = experiment.start_gap(problem, case.descent.weight)
        step = case.descent.step_smoothness / float(problem.smoothness)
        assert start == pytest.approx(case.noise * 2.0 * gap / (step * 200), rel=1e-4)


@pytest.mark.slow
def test_the_bound_holds_with_its_term_and_not_without(tmp_path, monkeypatch):
    some = [case for case in experiment.cases(20) if case.descent.problem == "quadratic"][4::10]
    monkeypatch.setattr(experiment, "cases", lambda rounds: some)
    argv = [f"--workdir={tmp_path}", "--repeats=8", "--rounds=20"]
    assert run_reporting_errors(experiment.main, argv) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())["summary"]["all"]
    assert summary["holds"] == summary["settings"] == len(some)
    assert summary["holds_without"] < summary["settings"]
    assert summary["longest_step"] < experiment.CLIP_NORM
