"""Descents against closed forms, and the experiment on a small grid of its own."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from support.drawing import rendered

from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures import style
from collapipe_jax.runs.results.experiment import Results
from experiments.studies import bound as experiment
from experiments.studies.bound import DescentCase, bound, start_gap
from experiments.studies.bound_descents import (
    BATCH,
    CLUSTERS,
    Trace,
    descend_all,
    make_logistic,
    make_problems,
    make_quadratic,
)
from figures import __main__ as all_figures
from figures import bound as figure

LOOSE = 4.5  # standard errors
REPEATS = 400


def repeats_of(case, problem, repeats=REPEATS):
    settings = jax.tree.map(lambda leaf: leaf[None], case.setting)
    keys = jax.random.split(jax.random.key(0), (1, repeats))
    told = {"rounds": case.rounds, "local_steps": case.local_steps, "erasing": case.erasing}
    paths = jax.device_get(descend_all(problem, settings, keys, **told))
    return jax.tree.map(lambda leaf: leaf[0], paths)


def expected_squares(problem, case, common=False):
    """Mean of E |grad F|^2 on a quadratic, H = 1, by its exact first two moments.

    With ``common`` one draw takes all micro-batches of all clusters.
    """
    curvature, centre, start = (
        np.asarray(leaf, np.float64) for leaf in (problem.curvature, problem.centre, problem.start)
    )
    step, weight = case.step_smoothness / curvature.max(), case.weight
    loss = case.loss_probability
    erased = loss / (1 - loss) / (1 if common else case.micro_batches)
    sampling = np.sum(weight**2 / (BATCH * (1 - loss))) * float(problem.noise) / start.size
    best = weight @ centre
    mean, square = start - best, (start - best) ** 2
    told = []
    for _ in range(case.rounds):
        told.append(np.sum(curvature**2 * square))
        apart = best - centre
        each = curvature**2 * (square + 2 * mean * apart + apart**2)  # E (grad F_n)^2, [N, d]
        noise = sampling + (weight**2 * erased) @ each
        if common:
            noise = sampling + erased[0] * curvature**2 * square
        square = (1 - step * curvature) ** 2 * square + step**2 * noise
        mean = (1 - step * curvature) * mean
    return np.mean(told)


def assert_mean(values, expected):
    error = values.std(ddof=1) / np.sqrt(values.size)
    assert error < 0.05 * expected
    assert abs(values.mean(dtype=np.float64) - expected) < LOOSE * error


@pytest.mark.slow
def test_an_isotropic_quadratic_without_losses_settles_at_its_closed_form():
    problem = make_quadratic()
    best = jnp.asarray(problem.optimum(np.full(CLUSTERS, 0.25)), jnp.float32)
    problem = problem.replace(curvature=jnp.full(best.shape, 0.5), start=best)
    case = DescentCase("independent", "", 1, 0.0, 0.0, 4, "equal", 40, 0.3)
    step, bend = 0.3 / 0.5, 0.5
    shrinks = (1 - step * bend) ** 2
    noise = step**2 * float(problem.noise) / BATCH / CLUSTERS
    squares = bend**2 * noise * (1 - shrinks ** np.arange(40)) / (1 - shrinks)
    assert expected_squares(problem, case) == pytest.approx(squares.mean(), rel=1e-6)
    assert_mean(repeats_of(case, problem).squared_gradient, squares.mean())


def test_descents_have_the_moments_of_17_and_lost_together_those_of_one_micro_batch():
    """Each way of losing against its own exact second moments, and not against the others'."""
    problem = make_quadratic(noise=0.3, start_gap=0.1)
    case = DescentCase("independent", "", 1, 0.5, 0.0, 32, "unequal", 40, 0.2)
    single = case._replace(micro_batches=1)
    uneven = case._replace(loss_spread=0.6, micro_batches=4)
    expected = [expected_squares(problem, each) for each in (case, single, uneven)]
    assert expected[1] > 1.5 * expected[0]
    for each, value in zip((case, single, uneven), expected, strict=True):
        assert_mean(repeats_of(each, problem).squared_gradient, value)
    together = repeats_of(case._replace(kind="correlated"), problem)
    assert_mean(together.squared_gradient, expected[1])
    shared = repeats_of(case._replace(kind="shared"), problem)
    assert_mean(shared.squared_gradient, expected_squares(problem, case, common=True))


@pytest.mark.parametrize(
    ("local_steps", "momentum", "presence"),
    [
        (3, 0.6, "one out by turns"),
        pytest.param(3, 0.0, "everyone", marks=pytest.mark.slow),
        pytest.param(1, 0.6, "everyone", marks=pytest.mark.slow),
        pytest.param(1, 0.0, "one out by turns", marks=pytest.mark.slow),
    ],
)
def test_without_noise_a_descent_is_the_loop_written_out(local_steps, momentum, presence):
    problem = make_quadratic(noise=0.0)
    case = DescentCase(
        "independent", "", local_steps, 0.0, 0.0, 4, "unequal", 8, 0.3, momentum, presence
    )
    curvature, centre, x = map(np.asarray, (problem.curvature, problem.centre, problem.start))
    weight, velocity, squares, ends = case.weight, 0.0, [], []
    for step in range(8):
        there = np.arange(CLUSTERS) != (step if presence != "everyone" else -1) % CLUSTERS
        share = weight * there / (weight @ there) if presence != "everyone" else weight
        points = np.tile(x, (CLUSTERS, 1))
        for _ in range(local_steps):
            squares.append(np.sum((curvature * (weight @ points - weight @ centre)) ** 2))
            points = points - 0.3 * curvature * (points - centre)
        velocity = momentum * velocity + x - share @ points
        x = x - velocity
        ends.append(x)
    path = jax.tree.map(lambda leaf: leaf[0], repeats_of(case, problem))
    assert path.squared_gradient == pytest.approx(np.mean(squares), rel=1e-5)
    np.testing.assert_allclose(path.end, np.mean(ends[4:], axis=0), rtol=1e-4, atol=1e-6)
    apart = curvature * (centre - weight @ centre)
    assert path.heterogeneity == pytest.approx(np.max(np.sum(apart**2, axis=1)), rel=1e-5)


@pytest.mark.slow
def test_a_mean_over_survivors_settles_where_survivors_weigh():
    """Its fixed point in closed form, and that of the unbiased gradient next to it."""
    problem = make_quadratic(noise=0.0)
    case = DescentCase("pooled", "", 1, 0.5, 0.6, 32, "unequal", 300, 0.1)
    survives = case.weight * (1 - case.loss_probability)
    pooled = survives @ np.asarray(problem.centre) / survives.sum()
    best = case.weight @ np.asarray(problem.centre)
    end = repeats_of(case, problem).end.mean(axis=0)
    fair = repeats_of(case._replace(kind="independent"), problem).end.mean(axis=0)
    far = np.linalg.norm(pooled - best)
    assert np.linalg.norm(end - pooled) < 0.05 * far
    assert np.linalg.norm(fair - best) < 0.05 * far


@pytest.mark.parametrize(
    "local_steps", [4, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 16))]
)
def test_the_floor_of_the_bound_holds_by_itself(local_steps):
    """From the best point, where nothing of the bound is left but noise and drift."""
    problem = make_quadratic()
    best = jnp.asarray(problem.optimum(np.full(CLUSTERS, 0.25)))
    problem = problem.replace(start=best.astype(jnp.float32))
    step = experiment.STEP / local_steps
    case = DescentCase("independent", "", local_steps, 0.5, 0.6, 4, "equal", 20, step)
    path = repeats_of(case, problem)
    assert start_gap(problem, case.weight) == pytest.approx(0.0, abs=1e-6)
    values = path.squared_gradient
    assert values.mean() + LOOSE * values.std() / np.sqrt(REPEATS) < bound(case, problem, path)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_logistic_regression_tells_its_constants():
    problem = make_logistic()
    weight = np.array([0.4, 0.3, 0.2, 0.1])
    best = jnp.asarray(problem.optimum(weight))
    everywhere = jnp.tile(best[None], (CLUSTERS, 1))
    assert np.linalg.norm(weight @ problem.gradients(everywhere)) < 1e-10
    slopes = jax.jit(jax.jacobian(problem.objectives))(best)
    np.testing.assert_allclose(problem.gradients(everywhere), slopes, rtol=1e-9, atol=1e-12)
    bends = np.linalg.eigvalsh(jax.jit(jax.hessian(problem.objectives))(jnp.zeros_like(best)))
    assert bends.max() == pytest.approx(float(problem.smoothness), rel=1e-12)  # all chances 1/2

    point = jax.random.normal(jax.random.key(0), everywhere.shape)
    everything = jnp.ones((CLUSTERS, BATCH))
    draws = jax.vmap(problem.sampled_gradients, (0, None, None))
    keys = jax.random.split(jax.random.key(1), 4000)
    sampled = np.asarray(jax.jit(draws)(keys, point, everything))
    away = np.sum((sampled - np.asarray(problem.gradients(point))) ** 2, axis=2)
    error = away.std(axis=0) / np.sqrt(4000)
    expected = np.asarray(problem.variances(point)) / BATCH
    assert np.all(np.abs(away.mean(axis=0) - expected) < LOOSE * error)
    bias = np.linalg.norm(sampled.mean(axis=0) - np.asarray(problem.gradients(point)), axis=1)
    assert np.all(bias**2 < 4 * expected / 4000)


def test_all_cases_are_within_what_the_theorems_allow():
    grid = experiment.grid(200)
    assert len(grid) >= 200
    every = [*grid, *experiment.extensions(200), *experiment.ablations(200)]
    assert len(set(every)) == len(every)
    problems = make_problems()
    met = Trace(np.ones(1), np.ones(1), np.ones(1), np.ones((1, 10)))
    # What a bound's finiteness depends on; the problem does not matter to it.
    told = {each[2:]: (each, problems[each.problem]) for each in every}
    assert all(np.isfinite(bound(case, problem, met)) for case, problem in told.values())
    assert all(np.all((c.loss_probability >= 0) & (c.loss_probability < 1)) for c in every)
    assert all(c.loss_probability.mean() == pytest.approx(c.loss) for c in every)


def test_absence_of_nobody_is_the_plain_bound_and_of_somebody_more():
    problem = make_quadratic()
    met = Trace(np.ones(1), np.ones(1), np.ones(1), np.ones((1, 10)))
    case = DescentCase("absence", "", 1, 0.3, 0.0, 4, "unequal", 200, 0.2)
    plain = bound(case._replace(kind="independent"), problem, met)
    assert bound(case, problem, met) == pytest.approx(plain, rel=1e-6)
    turns, never = (case._replace(presence=p) for p in ("one out by turns", "one never"))
    assert bound(never, problem, met) > plain
    assert bound(turns, problem, met) > plain


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Workdir of the experiment on a part of its cases."""
    folder = tmp_path_factory.mktemp("bound")
    part = experiment.grid(20, losses=(0.0, 0.5), micro_batches=(1, 32), local_steps=(1, 4))
    part = [case for case in part if case.problem == "quadratic" or case.local_steps == 1]
    extensions = [
        DescentCase("momentum", "quadratic", 1, 0.3, 0.0, 8, "equal", 20, 0.05, 0.5),
        DescentCase("absence", "quadratic", 1, 0.3, 0.0, 8, "equal", 20, 0.2, 0.0, "one never"),
    ]
    broken = [experiment.ablations(20)[place]._replace(rounds=20) for place in (0, 4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "grid", lambda rounds: part)
        patch.setattr(experiment, "extensions", lambda rounds: extensions)
        patch.setattr(experiment, "ablations", lambda rounds: broken)
        argv = [f"--workdir={folder}", "--repeats=8", "--rounds=20"]
        assert run_reporting_errors(experiment.main, argv) == 0
    return folder


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.slow
def test_what_is_on_file(small):
    report = figure.load(small)
    assert set(summary_of(small)) == {"summary", "seed", "repeats", "rounds"}
    assert len(report["settings"]) == 3 * 8
    assert [row["kind"] for row in report["ablations"]] == ["pooled", "correlated"]
    assert [row["kind"] for row in report["extensions"]] == ["momentum", "absence"]
    for row in report["settings"] + report["extensions"] + report["ablations"]:
        assert set(row) >= {*DescentCase._fields, "measured", "bound"}
        assert 0 < row["measured_low"] < row["measured"] < row["measured_high"]
        assert row["factor"] == pytest.approx(row["bound"] / row["measured"])
    assert {"distance", "distance_predicted"} <= set(report["ablations"][0])


@pytest.mark.slow
def test_the_bound_holds(small):
    report = figure.load(small)
    for row in report["settings"] + report["extensions"]:
        assert row["measured_high"] <= row["bound"]
    for steps, settings_of in (("1", 16), ("4", 8)):
        parts = summary_of(small)["summary"][steps]
        every, lossless = (parts[key] for key in ("all", "without losses"))
        assert every["holds"] == every["settings"] == settings_of
        assert lossless["settings"] == settings_of // 2
        assert 1 < every["factor_min"] <= every["factor_max"] < 30
        assert lossless["factor_max"] < 10


@pytest.mark.slow
def test_a_seed_is_a_file_and_another_seed_another(small):
    report = figure.load(small)
    cases = [
        DescentCase(*(row[name] for name in DescentCase._fields)) for row in report["ablations"]
    ]
    quiet = Console(quiet=True)
    same, other = (experiment.measure(cases, 8, seed, quiet) for seed in (0, 1))
    np.testing.assert_equal(same, report["ablations"])
    assert other[0]["measured"] != same[0]["measured"]


@pytest.mark.slow
def test_tables_on_file_are_not_run_again(small, monkeypatch):
    before = Results.open(small, "bound").path("extensions").stat().st_mtime_ns
    cases = [
        DescentCase(*(row[name] for name in DescentCase._fields))
        for row in figure.load(small)["ablations"]
    ]
    Results.open(small, "bound").path("ablations").unlink()
    for name in ("grid", "extensions", "ablations"):
        monkeypatch.setattr(experiment, name, lambda rounds: cases)
    run = [f"--workdir={small}", "--repeats=8", "--rounds=20"]
    assert run_reporting_errors(experiment.main, run) == 0
    assert Results.open(small, "bound").path("extensions").stat().st_mtime_ns == before
    assert len(figure.load(small)["ablations"]) == len(cases)


@pytest.mark.slow
def test_the_figure_shows_every_descent(small, capsys, monkeypatch):
    report = figure.load(small)
    above, middle, below = rendered(figure.draw(report)).axes
    *groups, equal = above.lines
    assert sum(len(line.get_xdata()) for line in groups) == 24 + 2
    assert all(np.all(line.get_ydata() > line.get_xdata()) for line in groups)
    np.testing.assert_array_equal(equal.get_xdata(), equal.get_ydata())
    assert [text.get_text() for text in middle.get_legend().get_texts()] == ["H = 1", "H = 4"]
    assert [text.get_text().split(",")[0] for text in below.get_yticklabels()] == [
        "pooled",
        "correlated",
    ]
    monkeypatch.setattr(style, "save", lambda figure, folder, name: [folder / f"{name}.pdf"])
    assert run_reporting_errors(all_figures.main, [f"--workdir={small}"]) == 0
    assert f"written: {small / 'figures' / 'bound.pdf'}" in capsys.readouterr().out


def test_wrong_input_is_reported(tmp_path, capsys):
    for argv, key in ((["--repeats=1"], "--repeats"), (["--rounds=6"], "--rounds")):
        assert run_reporting_errors(experiment.main, [f"--workdir={tmp_path}", *argv]) == 2
        assert key in capsys.readouterr().err
    with pytest.raises(InputError, match="no results of bound"):
        figure.load(tmp_path)
    assert not list(tmp_path.iterdir())
