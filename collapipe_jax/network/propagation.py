"""Large-scale propagation: path loss and shadowing."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from collapipe_jax.network.topology import (
    Positions,
    TopologyParams,
    d2e_distance_m,
    node_distance_m,
)
from collapipe_jax.quantity import Struct, positive, quantity
from collapipe_jax.units import db_to_linear


class PathLossLaw(NamedTuple):
    """``PL(d) = intercept_db + slope_db log10(d / 1 km)`` in dB, and its source."""

    intercept_db: float
    slope_db: float
    source: str


PATH_LOSS_LAWS: dict[str, PathLossLaw] = {
    "macro_2ghz": PathLossLaw(128.1, 37.6, "3GPP TR 36.814 urban macro at 2 GHz; device to edge"),
    "d2d_outdoor": PathLossLaw(148.0, 40.0, "3GPP TR 36.843 outdoor device to device, no sight"),
    "winner_b1_sight": PathLossLaw(
        101.14,
        22.7,
        "WINNER II D1.1.2 B1, in sight: 22.7 log10 d_m + 41 + 20 log10(f / 5 GHz), 2 GHz",
    ),
    "free_space_2ghz": PathLossLaw(98.47, 20.0, "Friis at 2 GHz: 20 log10(4 pi d f / c)"),
}
"""Known path-loss laws by name; the distance enters in kilometres."""

_NUGGET = 1e-4  # two nodes in one place would make a covariance singular in float32


class PropagationParams(Struct):
    """Path loss and log-normal shadowing of both kinds of link."""

    d2e_path_loss: str = quantity("path-loss law of the D2E links", choices=PATH_LOSS_LAWS)
    d2d_path_loss: str = quantity("path-loss law of the D2D links", choices=PATH_LOSS_LAWS)
    d2e_shadowing_db: Array = quantity("standard deviation of the shadowing of D2E links")
    d2d_shadowing_db: Array = quantity("standard deviation of the shadowing of D2D links")
    d2e_decorrelation_distance_m: Array = positive(
        "distance between two nodes over which their shadowing to the base station decorrelates",
        "d_{corr}",
    )
    d2d_decorrelation_distance_m: Array = positive(
        "distance that both ends walk together over which the shadowing of a D2D link decorrelates",
        "d_{corr}",
    )


class Shadowing(NamedTuple):
    """Gain of all links beyond the path loss; between nodes it is reciprocal."""

    d2e_db: Float[Array, "N J"]
    node_db: Float[Array, "N*J N*J"]


class LargeScaleGain(NamedTuple):
    """Mean power gains of all links before fading; between nodes reciprocal, sender first."""

    d2e: Float[Array, "N J"]
    node: Float[Array, "N J N J"]


def path_loss_db(distance_m: Float[Array, "*any"], law: PathLossLaw) -> Float[Array, "*any"]:
    """Path loss in dB at a distance. Source: docs/system-model.md, section 2."""
    return law.intercept_db + law.slope_db * jnp.log10(distance_m / 1000.0)


def sample_shadowing(
    key: PRNGKeyArray, position_m: Positions, topology: TopologyParams, params: PropagationParams
) -> Shadowing:
    """Log-normal shadowing of all links.

    Links to the base station have correlation ``exp(-d / d_corr)`` at distance ``d`` of their
    nodes. Links between nodes are independent of each other and the same in both directions.
    """
    d2e_key, node_key = jax.random.split(key)
    between_m = node_distance_m(position_m, topology)
    d2e = _correlated_normal(d2e_key, between_m, params.d2e_decorrelation_distance_m)
    node = symmetric(jax.random.normal(node_key, between_m.shape))
    return Shadowing(
        d2e_db=params.d2e_shadowing_db * d2e.reshape(position_m.shape[:2]),
        node_db=params.d2d_shadowing_db * node,
    )


def step_shadowing(
    key: PRNGKeyArray,
    before: Shadowing,
    position_m: Positions,
    moved_m: Positions,
    params: PropagationParams,
) -> Shadowing:
    """Shadowing after nodes have moved; its law is stationary.

    A link to the base station whose node moves by ``d`` keeps the correlation
    ``exp(-d / d_corr)`` (Gudmundson 1991), and so do two nodes at distance ``d``. For a link
    between nodes ``d`` is the sum of what both ends move.

    Args:
      key: random key.
      before: at the old positions.
      position_m: the old positions.
      moved_m: displacement from there; a link whose ends stand still keeps its shadowing.
      params: deviations and decorrelation distances.
    """
    d2e_key, node_key = jax.random.split(key)
    from_m, moved_m = position_m.reshape(-1, 2), moved_m.reshape(-1, 2)
    stood = jnp.all(moved_m == 0, axis=-1)
    old = before.d2e_db.reshape(-1)
    mean, factor = _field_given(old, from_m, from_m + moved_m, params.d2e_decorrelation_distance_m)
    d2e = mean + params.d2e_shadowing_db * (factor @ jax.random.normal(d2e_key, old.shape))
    distance_m = jnp.linalg.norm(moved_m, axis=-1)
    ways = (distance_m[:, None] + distance_m[None, :]) / params.d2d_decorrelation_distance_m
    fresh = params.d2d_shadowing_db * symmetric(jax.random.normal(node_key, ways.shape))
    return Shadowing(
        d2e_db=jnp.where(stood, old, d2e).reshape(before.d2e_db.shape),
        node_db=jnp.exp(-ways) * before.node_db + jnp.sqrt(-jnp.expm1(-2.0 * ways)) * fresh,
    )


def large_scale_gain(
    position_m: Positions, shadowing: Shadowing, topology: TopologyParams, params: PropagationParams
) -> LargeScaleGain:
    """Path loss with shadowing, as linear gains."""
    shape = position_m.shape[:2]
    d2e_m, between_m = d2e_distance_m(position_m, topology), node_distance_m(position_m, topology)
    d2e_db = -path_loss_db(d2e_m, PATH_LOSS_LAWS[params.d2e_path_loss]) + shadowing.d2e_db
    node_db = -path_loss_db(between_m, PATH_LOSS_LAWS[params.d2d_path_loss]) + shadowing.node_db
    return LargeScaleGain(
        d2e=db_to_linear(d2e_db), node=db_to_linear(node_db).reshape(*shape, *shape)
    )


def symmetric(matrix: Float[Array, "A A *any"]) -> Float[Array, "A A *any"]:
    """The matrix whose lower half is the mirror of the upper half."""
    upper = jnp.triu(jnp.ones(matrix.shape[:2], bool))
    upper = upper.reshape(upper.shape + (1,) * (matrix.ndim - 2))
    return jnp.where(upper, matrix, jnp.swapaxes(matrix, 0, 1))


def _correlated_normal(key, distance_m, decorrelation_m):
    """Standard normals ``[A]`` with covariance ``exp(-distance / decorrelation)``."""
    size = distance_m.shape[0]
    off_diagonal = jnp.where(jnp.eye(size, dtype=bool), 0.0, distance_m)
    covariance = jnp.exp(-off_diagonal / decorrelation_m)
    factor = jnp.linalg.cholesky(covariance + _NUGGET * jnp.eye(size))
    return factor @ jax.random.normal(key, (size,)) / jnp.sqrt(1.0 + _NUGGET)


def _field_given(field, from_m, to_m, decorrelation_m):
    """Conditional law of a field of covariance ``exp(-distance / decorrelation)``.

    Conditioning keeps correlations: nodes that are close, or move to where another was, have
    nearly the same shadowing.

    Returns:
      At points ``to_m [A, 2]`` the mean ``[A]`` and, for unit variance of the field ``[A]`` at
      ``from_m``, a factor ``[A, A]`` of the covariance.
    """

    def covariance(a, b):
        return jnp.exp(-jnp.linalg.norm(a[:, None] - b[None], axis=-1) / decorrelation_m)

    nugget = _NUGGET * jnp.eye(field.shape[0])
    factor = jnp.linalg.cholesky(covariance(from_m, from_m) + nugget)
    cross = jax.scipy.linalg.solve_triangular(factor, covariance(from_m, to_m), lower=True)
    white = jax.scipy.linalg.solve_triangular(factor, field, lower=True)
    # An accelerator's shorter products could make the difference indefinite.
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    residual = covariance(to_m, to_m) + nugget - product(cross.T, cross)
    return product(cross.T, white), jnp.linalg.cholesky(residual) / jnp.sqrt(1.0 + _NUGGET)
