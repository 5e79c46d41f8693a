"""Federated descents with lost micro-batches, on problems whose constants are known.

A problem is the objectives of its clusters and a starting point. Both kinds have exact
gradients, variance of a sample's gradient, smoothness and optimum.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.convergence import participating_weight
from collapipe_jax.learning.federated.aggregation import (
    ErasureLaw,
    cluster_example_weights,
    sample_example_weights,
)
from collapipe_jax.learning.federated.privacy import ClusterPrivacy

CLUSTERS = 4
DIMENSIONS = 10
BATCH = 32
"""``B`` of every cluster and local step."""

_LAWS = {
    "independent": ErasureLaw(),
    "pooled": ErasureLaw(pooled=True),
    "correlated": ErasureLaw(per_round=True),
}
_POINTS = 200  # of a cluster's data
_RIDGE = 0.1
_NEWTON_STEPS = 30
_CLOSE = 1e-10


def check_lengths(repeats: int, rounds: int) -> None:
    """Refuse repeats without an interval, and rounds in which clusters do not take turns evenly."""
    if repeats < 2:
        raise InputError("--repeats", repeats, "give no interval", "Give 2 or more")
    if rounds < CLUSTERS or rounds % CLUSTERS:
        remedy = f"Give a multiple of {CLUSTERS}, so that clusters sit out equally often"
        raise InputError("--rounds", rounds, "no whole number of turns", remedy)


@struct.dataclass
class Quadratic:
    """``F_n(x) = (x - c_n)' A (x - c_n) / 2``, a sample's gradient with normal noise on it."""

    curvature: Array  # diagonal of A, [d]
    centre: Array  # c_n, [N, d]
    noise: Array  # sigma^2; each of the d components has its d-th part
    start: Array  # where descents begin, [d]

    @property
    def smoothness(self) -> Array:
        """``L_s``, the largest curvature."""
        return jnp.max(self.curvature)

    def objectives(self, x: Array) -> Array:
        """``F_n [N]`` at one point ``[d]``."""
        return 0.5 * jnp.square(x[None] - self.centre) @ self.curvature

    def gradients(self, x: Array) -> Array:
        """``grad F_n [N, d]``, each cluster at its own point ``[N, d]``."""
        return self.curvature[None] * (x - self.centre)

    def variances(self, x: Array) -> Array:
        """Variance of a sample's gradient, ``[N]``, each cluster at its own ``[N, d]``."""
        return jnp.full(x.shape[:1], self.noise)

    def sampled_gradients(self, key: Array, x: Array, example_weights: Array) -> Array:
        """Gradients of mini-batches whose samples weigh ``[N, B]``, at ``[N, d]``.

        A weighted mean of independent normal noise is drawn as the one normal that it is.
        """
        batch = example_weights.shape[1]
        size = jnp.sqrt(self.noise / x.shape[1] * jnp.sum(example_weights**2, axis=1)) / batch
        mean = jnp.mean(example_weights, axis=1)[:, None] * self.gradients(x)
        return mean + size[:, None] * jax.random.normal(key, x.shape)

    def optimum(self, weight: np.ndarray) -> np.ndarray:
        """Where ``sum_n w_n F_n`` is least, ``[d]``; weights of sum 1."""
        return np.asarray(weight, np.float64) @ np.asarray(self.centre, np.float64)


@struct.dataclass
class Logistic:
    """Logistic regression with ridge: the mean over a cluster's points, its own to each."""

    features: Array  # [N, n, d]
    labels: Array  # 0 or 1, [N, n]
    ridge: Array  # weight of |x|^2 / 2
    start: Array  # where descents begin, [d]

    @property
    def smoothness(self) -> Array:
        """``L_s``: a logistic loss bends by 1/4 at most."""
        largest = jnp.linalg.norm(self.features, ord=2, axis=(1, 2))
        return jnp.max(largest**2) / (4 * self.features.shape[1]) + self.ridge

    def objectives(self, x: Array) -> Array:
        """``F_n [N]`` at one point ``[d]``."""
        score = self.features @ x
        loss = jnp.logaddexp(0.0, score) - self.labels * score
        return jnp.mean(loss, axis=1) + 0.5 * self.ridge * jnp.sum(x**2)

    def gradients(self, x: Array) -> Array:
        """``grad F_n [N, d]``, each cluster at its own point ``[N, d]``."""
        residual = self._residuals(x)
        data = jnp.einsum("np,npd->nd", residual, self.features) / residual.shape[1]
        return data + self.ridge * x

    def variances(self, x: Array) -> Array:
        """Variance of a sample's gradient, ``[N]``, each cluster at its own ``[N, d]``."""
        residual = self._residuals(x)
        length = jnp.sum(self.features**2, axis=2)  # squared
        mean = jnp.einsum("np,npd->nd", residual, self.features) / residual.shape[1]
        return jnp.mean(residual**2 * length, axis=1) - jnp.sum(mean**2, axis=1)

    def sampled_gradients(self, key: Array, x: Array, example_weights: Array) -> Array:
        """Gradients of mini-batches drawn with replacement, weighted ``[N, B]``, at ``[N, d]``."""
        clusters, batch = example_weights.shape
        drawn = jax.random.randint(key, (clusters, batch), 0, self.labels.shape[1])
        features = jnp.take_along_axis(self.features, drawn[:, :, None], axis=1)
        labels = jnp.take_along_axis(self.labels, drawn, axis=1)
        residual = jax.nn.sigmoid(jnp.einsum("nbd,nd->nb", features, x)) - labels
        data = jnp.einsum("nb,nbd->nd", example_weights * residual, features) / batch
        return data + self.ridge * jnp.mean(example_weights, axis=1)[:, None] * x

    def _residuals(self, x: Array) -> Array:
        """Predicted less true label of every point, ``[N, n]``."""
        return jax.nn.sigmoid(jnp.einsum("npd,nd->np", self.features, x)) - self.labels

    def optimum(self, weight: np.ndarray) -> np.ndarray:
        """Where ``sum_n w_n F_n`` is least, ``[d]``, by Newton's method in double precision."""
        features, labels = (np.asarray(each, np.float64) for each in (self.features, self.labels))
        ridge, share = float(self.ridge), np.asarray(weight, np.float64)[:, None]
        share = share / labels.shape[1]  # of a point
        x = np.zeros(features.shape[2])
        for _ in range(_NEWTON_STEPS):
            chance = 1.0 / (1.0 + np.exp(-features @ x))
            gradient = np.einsum("np,npd->d", share * (chance - labels), features) + ridge * x
            if np.linalg.norm(gradient) < _CLOSE:
                break
            bend = share * chance * (1.0 - chance)
            hessian = np.einsum("np,npd,npe->de", bend, features, features)
            x = x - np.linalg.solve(hessian + ridge * np.eye(x.size), gradient)
        return x


Problem = Quadratic | Logistic


def make_quadratic(noise: float = 32.0, start_gap: float = 1.0) -> Quadratic:
    """Curvatures from 1/4 to 1; ``zeta^2 = 1``, ``F_0 - F* = start_gap`` for equal weights."""
    rng = np.random.default_rng(0)
    curvature = np.geomspace(0.25, 1.0, DIMENSIONS)
    centre = rng.normal(size=(CLUSTERS, DIMENSIONS))
    centre -= centre.mean(axis=0)
    centre /= np.sqrt(np.max(np.sum((curvature * centre) ** 2, axis=1)))
    start = np.full(DIMENSIONS, np.sqrt(2.0 * start_gap / curvature.sum()))
    return Quadratic(*(jnp.asarray(each) for each in (curvature, centre, noise, start)))


def make_logistic() -> Logistic:
    """Noisy labels by a rule of its own in every cluster, around one that all share."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(CLUSTERS, _POINTS, DIMENSIONS))
    features += 0.3 * rng.normal(size=(CLUSTERS, 1, DIMENSIONS))
    rule = 0.3 + 0.5 * rng.normal(size=(CLUSTERS, DIMENSIONS))
    chance = 1.0 / (1.0 + np.exp(-np.einsum("npd,nd->np", features, rule)))
    labels = (rng.random(chance.shape) < chance).astype(np.float64)
    start = np.zeros(DIMENSIONS)
    return Logistic(*(jnp.asarray(each) for each in (features, labels, _RIDGE, start)))


def make_problems() -> dict[str, Problem]:
    """All problems by name; the quiet one has little to hide what losses do."""
    return {
        "quadratic": make_quadratic(),
        "logistic": make_logistic(),
        "quiet quadratic": make_quadratic(noise=0.3, start_gap=0.1),
    }


@struct.dataclass
class Setting:
    """What differs between descents on a problem; array values all."""

    loss_probability: Array  # P_n [N]
    micro_batches: Array  # M_n [N]
    weight: Array  # w_n [N]
    step_smoothness: Array  # eta L_s
    momentum: Array  # of the server's heavy ball
    present: Array  # who takes part, [S, N]: row t modulo S in round t
    privacy: ClusterPrivacy | None = None  # clipping and noise of the server; everyone takes part


class Trace(NamedTuple):
    """What a descent met; gradients are at the clusters' weighted mean before a local step."""

    squared_gradient: Array  # mean over rounds and local steps of |grad F|^2
    variance: Array  # largest of a sample's gradient, at any cluster's own point
    heterogeneity: Array  # largest |grad F_n - grad F|^2 of a cluster
    end: Array  # mean of the server's points over the second half of the rounds, [d]
    longest_step: Array | float = 0.0  # of a cluster in a round, before clipping, with privacy


@partial(
    jax.jit,
    static_argnames="erasing",
    compiler_options={"xla_backend_optimization_level": 1},  # compiles in an eighth, runs as fast
)
def descend_all(
    problem: Problem,
    settings: Setting,
    keys: Array,
    *,
    rounds: Array,
    local_steps: Array,
    erasing: str = "independent",
) -> Trace:
    """Repeats of descents in all settings, in one compilation for all rounds and local steps.

    Args:
      problem: where.
      settings: leaves ``[S, ...]``.
      keys: ``[S, R]``, one a descent; the leaves of the trace are ``[S, R, ...]``.
      rounds, local_steps: ``T`` and ``H``.
      erasing: "independent" as the bound assumes; "pooled" for a mean over all survivors;
        "correlated" where one draw takes a cluster's round, "shared" the round of all (static).
    """
    one = partial(_descend, rounds=rounds, local_steps=local_steps, erasing=erasing)
    return jax.vmap(jax.vmap(one, (None, None, 0)), (None, 0, 0))(problem, settings, keys)


def _descend(
    problem: Problem, setting: Setting, key: Array, rounds: Array, local_steps: Array, erasing: str
) -> Trace:
    """One descent from the problem's start."""
    step_size = setting.step_smoothness / problem.smoothness

    def one_round(step, carry):
        x, velocity, trace = carry
        erasure_key, data_key = jax.random.split(jax.random.fold_in(key, step))

        def one_step(step, carry):
            points, trace = carry  # of the clusters, [N, d]
            trace = _accumulate(problem, setting.weight, points, trace)
            weights = _example_weights(setting, erasure_key, step, erasing)
            key = jax.random.fold_in(data_key, step)
            return points - step_size * problem.sampled_gradients(key, points, weights), trace

        everywhere = jnp.tile(x[None], (setting.weight.shape[0], 1))
        moved, trace = jax.lax.fori_loop(0, local_steps, one_step, (everywhere, trace))
        present = setting.present[step % setting.present.shape[0]]
        weight = participating_weight(setting.weight, present)
        step_back = x - weight @ moved
        if (privacy := setting.privacy) is not None:
            step_back = privacy.step(x, moved, weight, data_key)
            longest = jnp.max(jnp.linalg.norm(moved - everywhere, axis=1))
            trace = trace._replace(longest_step=jnp.maximum(trace.longest_step, longest))
        velocity = setting.momentum * velocity + step_back
        x = x - velocity
        return x, velocity, trace._replace(end=trace.end + x * (step >= rounds // 2))

    nothing = jnp.zeros_like(problem.start)
    trace = Trace(*(jnp.zeros(()) for _ in Trace._fields))._replace(end=nothing)
    _, _, trace = jax.lax.fori_loop(0, rounds, one_round, (problem.start, nothing, trace))
    return trace._replace(
        squared_gradient=trace.squared_gradient / (rounds * local_steps),
        end=trace.end / (rounds - rounds // 2),
    )


def _accumulate(problem: Problem, weight: Array, x: Array, trace: Trace) -> Trace:
    """Add the gradient and constants at the clusters' points ``[N, d]``."""
    mean = jnp.tile((weight @ x)[None], (x.shape[0], 1))
    gradients = problem.gradients(mean)
    whole = weight @ gradients
    apart = jnp.max(jnp.sum((gradients - whole[None]) ** 2, axis=1))
    return trace._replace(
        squared_gradient=trace.squared_gradient + jnp.sum(whole**2),
        variance=jnp.maximum(trace.variance, jnp.max(problem.variances(x))),
        heterogeneity=jnp.maximum(trace.heterogeneity, apart),
    )


def _example_weights(setting: Setting, round_key: Array, step: Array, erasing: str) -> Array:
    """Erasure weights ``[N, B]`` of a local step."""
    if erasing == "shared":  # no law of the trainer: the extreme of a common shadow
        draw = partial(sample_example_weights, round_key, BATCH, 1)
        return jax.vmap(draw)(setting.loss_probability)
    return cluster_example_weights(
        _LAWS[erasing],
        jax.random.fold_in(round_key, step),
        round_key,
        BATCH,
        setting.micro_batches,
        setting.loss_probability,
        setting.weight,
    )
