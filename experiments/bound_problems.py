"""Problems whose constants in the convergence bound are known, for ``experiments.bound``.

A problem is the objectives of its clusters and a starting point. Both problems tell
gradients, the variance of a sample's gradient, smoothness and the best point exactly.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

CLUSTERS = 4
DIMENSIONS = 10
_POINTS = 200  # of a cluster's data
_RIDGE = 0.1
_NEWTON_STEPS = 30
_CLOSE = 1e-10


@struct.dataclass
class Quadratic:
    """``F_n(x) = (x - c_n)' A (x - c_n) / 2``, a sample's gradient with normal noise on it.

    Attributes:
      curvature: diagonal of ``A``, ``[d]``.
      centre: ``c_n``, ``[N, d]``.
      noise: ``sigma^2``; each of the d components has its d-th part.
      start: where descents begin, ``[d]``.
    """

    curvature: Array
    centre: Array
    noise: Array
    start: Array

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
    """Logistic regression with ridge: the mean over a cluster's points, its own to each.

    Attributes:
      features: ``[N, n, d]``.
      labels: 0 or 1, ``[N, n]``.
      ridge: weight of ``|x|^2 / 2``.
      start: where descents begin, ``[d]``.
    """

    features: Array
    labels: Array
    ridge: Array
    start: Array

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
        return jnp.einsum("np,npd->nd", residual, self.features) / residual.shape[1] + (
            self.ridge * x
        )

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
    """Curvatures from 1/4 to 1, ``zeta^2 = 1`` for equal weights.

    Args:
      noise: ``sigma^2``.
      start_gap: ``F_0 - F*`` for equal weights.
    """
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
