import io
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from support import tiny_run
from support.compilations import compiles

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.federated.bound_constants import (
    BoundConstants,
    bound_constants,
    estimate_constants,
    largest_curvature,
)
from collapipe_jax.learning.models.split_model import example_losses
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.figures import draw, style, training
from collapipe_jax.runs.training import loop as train
from collapipe_jax.runs.training.history import last_constants
from collapipe_jax.runs.training.learning_rounds import LearningRounds, estimate_batches
from collapipe_jax.runs.training.ongoing_run import estimate_bound, initial_run_state

NUMBERS, CLUSTERS, GROUPS, BATCH = 6, 3, 8, 4
WEIGHTS = jnp.array([0.5, 0.2, 0.3])
SPREAD = np.array([0.5, 1.0, 0.3])
KEY = jax.random.key(4)


def random_hessian(seed):
    half = np.random.default_rng(seed).normal(size=(NUMBERS, NUMBERS))
    return jnp.asarray(half + half.T, jnp.float32)


HESSIAN = random_hessian(0)
POINT = jnp.linspace(-1.0, 1.0, NUMBERS)


def quadratic(point, batch):
    """A sample's gradient is the sample, moved by the point's."""
    return 0.5 * point @ HESSIAN @ point + batch.mean(0) @ point


@jax.jit
def estimates_of(batches):
    return jax.vmap(lambda one: bound_constants(quadratic, POINT, one, WEIGHTS, KEY))(batches)


def draws(centres, spread, count=2000):
    noise = np.random.default_rng(1).normal(size=(count, GROUPS, CLUSTERS, BATCH, NUMBERS))
    samples = centres[:, None] + spread[:, None, None] * noise
    return jnp.asarray(samples, jnp.float32)


def assert_mean(values, expected):
    """The mean of the draws is the expected value, as far as so many draws can tell."""
    values = np.asarray(values, float)
    error = values.std() / np.sqrt(values.size)
    assert error < 0.05 * expected
    assert abs(values.mean() - expected) < 4.0 * error


def test_estimates_are_right_in_the_mean():
    centres = np.random.default_rng(2).normal(size=(CLUSTERS, NUMBERS))
    centres[1] += 3.0  # always the farthest
    found = estimates_of(draws(centres, SPREAD))
    weights = np.asarray(WEIGHTS)
    mean = weights @ centres
    away = ((centres - mean) ** 2).sum(1)
    assert_mean(found.gradient_variance, weights @ (SPREAD**2 * NUMBERS))
    assert_mean(found.gradient_heterogeneity, away.max())
    assert_mean(found.mean_gradient_heterogeneity, weights @ away)
    gradient = mean + np.asarray(HESSIAN @ POINT)
    assert_mean(found.gradient_norm_squared, (gradient**2).sum())


def test_noise_is_not_taken_for_heterogeneity():
    """Clusters of one law differ by noise alone; a naive square counts `v (1 - sum w^2)`."""
    found = estimates_of(draws(np.zeros((CLUSTERS, NUMBERS)), np.ones(CLUSTERS)))
    noise = NUMBERS / (GROUPS * BATCH)
    naive = noise * float(1.0 - (WEIGHTS**2).sum())
    assert (found.mean_gradient_heterogeneity >= 0.0).all()
    assert found.mean_gradient_heterogeneity.mean() < 0.25 * naive


def test_without_noise_estimates_are_exact():
    centres = np.random.default_rng(3).normal(size=(CLUSTERS, NUMBERS))
    found = estimates_of(draws(centres, np.zeros(CLUSTERS), count=1))
    away = ((centres - np.asarray(WEIGHTS) @ centres) ** 2).sum(1)
    np.testing.assert_allclose(found.gradient_variance, 0.0, atol=1e-9)
    np.testing.assert_allclose(found.gradient_heterogeneity, away.max(), rtol=1e-5)
    same = estimates_of(draws(np.tile(centres[:1], (CLUSTERS, 1)), np.zeros(CLUSTERS), count=1))
    np.testing.assert_allclose(same.gradient_heterogeneity, 0.0, atol=1e-9)


def curvature(hessian, key=KEY):
    """Of clusters whose Hessians are different multiples of one, with weighted mean 1."""
    factors = jnp.array([0.4, 1.0, 2.0])[:, None]

    def loss(point, batch):
        return 0.5 * batch[0] * point @ hessian @ point

    return largest_curvature(loss, POINT, factors, WEIGHTS, key)


def test_curvature_is_the_largest_eigenvalue_whatever_its_sign():
    axes, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(NUMBERS, NUMBERS)))
    hessian = axes @ np.diag([-4.0, 1.5, 1.0, 0.5, 0.0, -0.5]) @ axes.T
    np.testing.assert_allclose(curvature(jnp.asarray(hessian, jnp.float32)), 4.0, rtol=1e-4)


def test_curvature_is_a_lower_estimate():
    hessians = jnp.stack([random_hessian(seed) for seed in range(50)])
    largest = np.abs(np.linalg.eigvalsh(np.asarray(hessians, float))).max(1)
    found = np.asarray(jax.vmap(curvature)(hessians, jax.random.split(KEY, 50)))
    assert (found <= largest * (1.0 + 1e-5)).all()
    assert (found >= 0.6 * largest).all()
    assert curvature(jnp.zeros_like(HESSIAN)) == 0.0


@pytest.fixture(scope="module")
def experiment_of():
    def build(every=2, policy="static_pipeline"):
        config = tiny_run.get_config()
        config.training.rounds = 3
        config.evaluation.estimate_every_rounds = every
        config.policy.name = policy
        return build_experiment(config)

    return build


@pytest.fixture(scope="module")
def run(experiment_of, tmp_path_factory):
    experiment = experiment_of()
    workdir = tmp_path_factory.mktemp("estimates") / "run"
    record = train.train(experiment, workdir, console=Console(file=io.StringIO())).record
    return experiment, workdir, record


@pytest.fixture(scope="module")
def model(run):
    """A translator, so that a sample has several predictions; it is not to draw dropout."""
    experiment = run[0]
    params = initial_run_state(experiment).learning.params
    assert experiment.task.model.sizes.dropout_rate > 0.0
    return experiment, params, jnp.asarray(experiment.cluster_weight, jnp.float32)


@pytest.fixture(scope="module")
def gradient_by_hand(run):
    def loss(params, batch):
        losses, tokens = example_losses(run[0].task.model, params, batch)
        return losses.sum() / tokens.sum()

    gradient = jax.jit(jax.grad(loss))

    def flat(params, batches, j, n):
        batch = jax.tree.map(lambda leaf: leaf[j, n], batches)
        return jax.flatten_util.ravel_pytree(gradient(params, batch))[0]

    return flat


@pytest.mark.slow
def test_a_model_against_the_formulas_written_out(model, gradient_by_hand):
    experiment, params, shares = model
    batches = estimate_batches(experiment, 7)
    gradients = [[gradient_by_hand(params, batches, j, n) for j in range(8)] for n in range(2)]
    gradients = np.array(gradients, float)
    found = estimate_constants(params, batches, shares, KEY, model=experiment.task.model)
    weights = np.asarray(shares, float)
    variance = gradients.var(axis=1, ddof=1).sum(-1)  # of a mini-batch of 4
    mean = gradients.mean(1)
    overall = weights @ mean
    noise, overall_noise = variance / 8, (weights**2 * variance / 8).sum()
    away = ((mean - overall) ** 2).sum(1) - (1 - 2 * weights) * noise - overall_noise
    close = {"rtol": 1e-3, "atol": 1e-6}
    np.testing.assert_allclose(found.gradient_variance, 4 * weights @ variance, **close)
    np.testing.assert_allclose(found.gradient_heterogeneity, max(away.max(), 0.0), **close)
    np.testing.assert_allclose(found.mean_gradient_heterogeneity, max(weights @ away, 0), **close)
    squared = max((overall**2).sum() - overall_noise, 0.0)
    np.testing.assert_allclose(found.gradient_norm_squared, squared, **close)


@pytest.mark.slow
def test_curvature_of_a_model_against_differences_of_gradients(model, gradient_by_hand):
    """The backward passes that layers write themselves are differentiated too."""
    experiment, params, shares = model
    batches = estimate_batches(experiment, 8)
    found = estimate_constants(params, batches, shares, KEY, model=experiment.task.model)
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    def gradient(at):
        return shares @ jnp.stack([gradient_by_hand(unravel(at), batches, 0, n) for n in range(2)])

    direction = jax.random.normal(KEY, flat.shape)
    for _ in range(40):
        step = 1e-3 * direction / jnp.linalg.norm(direction)
        direction = (gradient(flat + step) - gradient(flat - step)) / 2e-3
    largest = jnp.linalg.norm(direction)
    assert 0.85 * largest < found.smoothness < 1.02 * largest


def test_new_values_cost_no_compilation(model):
    experiment, params, shares = model
    moved = jax.tree.map(lambda leaf: 0.5 * leaf, params)
    rest = estimate_batches(experiment, 9), shares[::-1], jax.random.key(8)
    with compiles(estimate_constants, 0):
        found = estimate_constants(moved, *rest, model=experiment.task.model)
    assert all(np.isfinite(value) for value in found)


def test_a_run_logs_its_constants(run):
    experiment, workdir, record = run
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    for name in BoundConstants._fields:
        values = record.history[name]
        np.testing.assert_array_equal(np.isfinite(values), [False, True, True])
        assert [line[name] is None for line in lines] == [True, False, False]
    assert (record.history["gradient_variance"][1:] > 0.0).all()
    assert (record.history["smoothness"][1:] > 0.0).all()
    told = json.loads((workdir / "summary.json").read_text())["bound_constants"]
    assert told["gradient_variance"] == record.history["gradient_variance"][-1]
    ratio = told["gradient_heterogeneity"] / told["gradient_variance"]
    assert told["heterogeneity_over_variance"] == ratio
    rate = experiment.config["training"]["client_learning_rate"]
    assert told["step_smoothness"] == rate * told["smoothness"]


def test_a_resumed_run_ends_with_the_same_bytes(run, tmp_path, monkeypatch):
    experiment, workdir, _ = run
    advance, calls = LearningRounds.advance, itertools.count(1)

    def interrupted(learning, rounds):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return advance(learning, rounds)

    with monkeypatch.context() as patch:
        patch.setattr(LearningRounds, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train.train(experiment, tmp_path / "run", console=Console(file=io.StringIO()))
    train.train(experiment, tmp_path / "run", resume=True, console=Console(file=io.StringIO()))
    for name in ("metrics.jsonl", "summary.json"):
        assert (tmp_path / "run" / name).read_bytes() == (workdir / name).read_bytes()


def test_estimates_are_of_the_model_under_every_policy(run, experiment_of):
    found = []
    for experiment in (run[0], experiment_of(policy="splitfed")):
        state = initial_run_state(experiment)
        found.append(estimate_bound(experiment, state.learning.params, 1))
    for name in BoundConstants._fields:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-5)


def test_a_run_that_estimates_nothing_has_no_such_names(experiment_of, tmp_path):
    workdir, console = tmp_path / "run", Console(file=io.StringIO())
    record = train.train(experiment_of(every=0), workdir, console=console).record
    assert not set(BoundConstants._fields) & set(record.history)
    assert last_constants({"train_loss": np.ones(3)}, 0.1) == {}


def test_samples_are_the_clusters_own_and_new_ones_every_time(run):
    experiment = run[0]
    first, later = (estimate_batches(experiment, index).source_ids for index in (0, 1))
    assert first.shape[:3] == (8, 2, 4)
    assert not np.array_equal(first, later)
    for cluster, indices in enumerate(experiment.cluster_indices):
        own = {tuple(row) for row in experiment.task.data.train.source_ids[indices]}
        assert {tuple(row) for row in first[:, cluster].reshape(32, -1)} <= own


def test_figure_draws_a_line_through_the_estimates(run):
    record = run[2]
    figure = training.draw_constants([record, record])
    for axes, name in zip(figure.axes, training._LABELS, strict=True):
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), record.history[name][1:])
        np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1, 2])
        assert axes.get_ylabel().endswith("]")


def test_only_runs_with_estimates_have_the_figure(run, monkeypatch):
    record = run[2]
    left = {k: v for k, v in record.history.items() if k not in BoundConstants._fields}
    without = record._replace(history=left)
    monkeypatch.setattr(style, "save", lambda figure, folder, name: [name])
    assert "constants" in draw.draw_runs([record, without], "nowhere")
    assert "constants" not in draw.draw_runs([without], "nowhere")
    with pytest.raises(InputError, match="estimate_every_rounds"):
        training.draw_constants([without])
