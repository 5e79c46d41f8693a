"""Where nodes are, and large-scale propagation between them: sight and shadowing."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from collapipe_jax.core.plugins import find
from collapipe_jax.core.quantity import Struct, db_to_linear, positive, quantity

_Values = Float[Array, "*any"]


class LogDistanceLine(NamedTuple):
    """A loss that is linear in the logarithm of the distance."""

    intercept_db: float  # at 1 km
    slope_db: float  # per decade


class PathLossLaw(NamedTuple):
    """The largest of several lines ``intercept_db + slope_db log10(d / 1 km)``.

    A breakpoint beyond which the loss rises faster is where two lines meet.
    """

    lines: tuple[LogDistanceLine, ...]

    def __call__(self, distance_m: _Values) -> _Values:
        """Path loss in dB at a distance. Source: docs/system-model.md, section 2."""
        decades = jnp.log10(distance_m / 1000.0)
        loss_db = [line.intercept_db + line.slope_db * decades for line in self.lines]
        return functools.reduce(jnp.maximum, loss_db)


class SightLaw(NamedTuple):
    """Two laws, one for links in sight and one for the others.

    A link of length ``d`` is in sight with probability ``min(c / d, 1) (1 - e^(-d/l)) + e^(-d/l)``.
    """

    in_sight: Callable[[Array], Array]
    out_of_sight: Callable[[Array], Array]
    clear_m: float  # c, below which every link is in sight
    decay_m: float  # l

    def sight_probability(self, distance_m: _Values) -> _Values:
        """Probability of sight. Source: docs/system-model.md, section 2."""
        decay = jnp.exp(-distance_m / self.decay_m)
        return jnp.minimum(self.clear_m / distance_m, 1.0) * (1.0 - decay) + decay

    def loss_db(self, distance_m: _Values, sight: _Values) -> _Values:
        """Path loss of links with sight variables.

        A link is in sight where its variable, a standard normal, is below the quantile of the
        probability of sight. So it loses sight as its ends walk away from each other.
        """
        is_seen = jax.scipy.stats.norm.cdf(sight) <= self.sight_probability(distance_m)
        return jnp.where(is_seen, self.in_sight(distance_m), self.out_of_sight(distance_m))


def _per_metre(intercept_db: float, slope_db: float) -> LogDistanceLine:
    """A line whose source has the intercept at 1 m."""
    return LogDistanceLine(intercept_db + 3.0 * slope_db, slope_db)


# Friis: 20 log10(4 pi d f / c)
_FREE_SPACE = LogDistanceLine(98.47, 20.0)
# WINNER+ D5.3, table 4-1, B1. In sight 22.7 log10 d + 27 + 20 log10 f up to the breakpoint
# 4 h^2 f / c = 17 m, 40 log10 d + 7.56 - 34.6 log10 h + 2.7 log10 f beyond, with d in m, f in
# GHz and effective heights h of 0.8 m (antennas at 1.5 m, TR 36.843).
_B1_NEAR, _B1_FAR = _per_metre(33.02, 22.7), _per_metre(11.73, 40.0)
# TR 36.843 A.2.1.2 at 2 GHz: (44.9 - 6.55 log10 h) log10 d + 5.83 log10 h + 14.78
# + 34.97 log10 f - 5 with antennas at h = 1.5 m.
_B1_HIDDEN = _per_metre(21.33, 43.75)
# TR 36.814, table B.1.2.1-1, UMa: mast of 25 m, antenna at 1.5 m, streets and houses of 20 m.
# In sight 22 log10 d + 28 + 20 log10 f up to 320 m, 40 log10 d + 7.8 - 18 log10 24
# - 18 log10 0.5 + 2 log10 f beyond.
_UMA_NEAR, _UMA_FAR = _per_metre(34.02, 22.0), _per_metre(-11.02, 40.0)
# Out of sight 161.04 - 7.1 log10 20 + 7.5 log10 20 - (24.37 - 3.7 (20 / 25)^2) log10 25
# + (43.42 - 3.1 log10 25) (log10 d - 3) + 20 log10 f - (3.2 (log10 17.625)^2 - 4.97).
_UMA_HIDDEN = _per_metre(19.57, 39.09)

PATH_LOSS_LAWS: dict[str, Callable[[Array], Array] | SightLaw] = {
    # 3GPP TR 36.814, the simple law of its case 1, device to edge
    "macro_2ghz": PathLossLaw((LogDistanceLine(128.1, 37.6),)),
    # 3GPP TR 36.814, UMa, device to edge
    "uma_2ghz": SightLaw(PathLossLaw((_UMA_NEAR, _UMA_FAR)), PathLossLaw((_UMA_HIDDEN,)), 18, 63),
    # Common in papers on device to device: about the next law with no link in sight
    "d2d_outdoor": PathLossLaw((LogDistanceLine(148.0, 40.0),)),
    # 3GPP TR 36.843 A.2.1.2, outdoor device to device: no less than free space
    "tr36843_outdoor": SightLaw(
        PathLossLaw((_FREE_SPACE, _B1_NEAR, _B1_FAR)),
        PathLossLaw((_FREE_SPACE, _B1_HIDDEN)),
        18,
        36,
    ),
    # WINNER+ B1, always in sight, with its breakpoint
    "winner_b1": PathLossLaw((_B1_NEAR, _B1_FAR)),
    # The same without the breakpoint: too little loss beyond 17 m
    "winner_b1_sight": PathLossLaw((LogDistanceLine(101.14, 22.7),)),
    # Friis
    "free_space_2ghz": PathLossLaw((_FREE_SPACE,)),
}
"""Path-loss laws at 2 GHz by name: functions of the distance in m with the loss in dB, or
:class:`SightLaw`."""


def _path_loss_law(name: str) -> Callable[[Array], Array] | SightLaw:
    """The law of a name of :data:`PATH_LOSS_LAWS`, or of ``package.module:name``."""
    return find("path_loss", name, PATH_LOSS_LAWS)


def path_loss_db(name: str, distance_m: _Values, sight: _Values | None) -> _Values:
    """Path loss of links by the law of a name; a :class:`SightLaw` needs ``sight``."""
    law = _path_loss_law(name)
    if isinstance(law, SightLaw):
        assert sight is not None
        return law.loss_db(distance_m, sight)
    return law(distance_m)


def amplifying_distance_m(name: str, least_m: float, most_m: float) -> float | None:
    """A distance within bounds at which a law of one's own has no loss of 0 dB or more, if any."""
    if name in PATH_LOSS_LAWS:
        return None
    law, distances_m = _path_loss_law(name), np.geomspace(least_m, most_m, 5)
    for each in (law.in_sight, law.out_of_sight) if isinstance(law, SightLaw) else (law,):
        loses = np.asarray(each(jnp.asarray(distances_m))) >= 0.0
        if not np.all(loses):
            return float(distances_m[np.argmin(np.broadcast_to(loses, distances_m.shape))])
    return None


Positions = Float[Array, "N J 2"]
"""Of all nodes; node 0 of a cluster is its control unit."""

_ORDERS = ("drawn", "tour")
"""How devices of a cluster may be numbered."""


class TopologyParams(Struct):
    """Geometry of a cell with the base station at the origin."""

    clusters: int = positive("number of clusters", "N", whole=True, static=True)
    devices: int = positive(
        "devices of a cluster, besides its control unit", "K", whole=True, static=True
    )
    order: str = quantity(
        "order in which blocks go through the devices of a cluster: as `drawn`, or a `tour` from "
        "the control unit on always to the nearest device left",
        choices=_ORDERS,
        default="drawn",
    )
    cell_radius_m: Array = positive("radius of the disc of the control units")
    cluster_radius_m: Array = positive("radius of the disc of a cluster's devices")
    d2e_min_distance_m: Array = positive("least distance of a node to the base station")
    d2d_min_distance_m: Array = positive("least distance between two nodes")


def sample_topology(key: PRNGKeyArray, params: TopologyParams) -> Positions:
    """Positions of all nodes.

    Nodes keep the least distances to the base station and to their control unit.
    """
    centre_key, device_key = jax.random.split(key)
    cell_m = params.d2e_min_distance_m, params.cell_radius_m
    cluster_m = params.d2d_min_distance_m, params.cluster_radius_m
    centre = _sample_disc(centre_key, (params.clusters, 1), *cell_m)
    offset = _sample_disc(device_key, (params.clusters, params.devices), *cluster_m)
    if params.order == "tour":
        offset = jax.vmap(_nearest_first)(offset)
    return jnp.concatenate([centre, centre + offset], axis=1)


def _nearest_first(offset_m):
    """Devices ``[K, 2]`` in the order of a walk to the nearest one left, from the origin."""

    def walk(state, _):
        here, left = state
        distance = jnp.where(left, jnp.linalg.norm(offset_m - here[None], axis=1), jnp.inf)
        nearest = jnp.argmin(distance)
        return (offset_m[nearest], left.at[nearest].set(False)), offset_m[nearest]

    start = jnp.zeros(2), jnp.ones(len(offset_m), bool)
    return jax.lax.scan(walk, start, length=len(offset_m))[1]


def _sample_disc(key, shape, inner_radius_m, outer_radius_m):
    """Points ``[*shape, 2]``, uniform over the area between two radii."""
    radius_key, angle_key = jax.random.split(key)
    area = jax.random.uniform(radius_key, shape)
    radius = jnp.sqrt(inner_radius_m**2 + area * (outer_radius_m**2 - inner_radius_m**2))
    angle = 2 * jnp.pi * jax.random.uniform(angle_key, shape)
    return radius[..., None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)


def d2e_distance_m(position_m: Positions, params: TopologyParams) -> Float[Array, "N J"]:
    """Distance of every node to the base station, with its lower limit."""
    return jnp.maximum(jnp.linalg.norm(position_m, axis=-1), params.d2e_min_distance_m)


def node_distance_m(position_m: Positions, params: TopologyParams) -> Float[Array, "N*J N*J"]:
    """Distance between every two nodes in row-major order, with its lower limit.

    The diagonal has it too: no message goes from a node to itself.
    """
    flat = position_m.reshape(-1, 2)
    difference = flat[:, None, :] - flat[None, :, :]
    # The square root has no derivative at zero, so the floor is applied to the square.
    square = jnp.maximum(jnp.sum(difference**2, axis=-1), params.d2d_min_distance_m**2)
    return jnp.sqrt(square)


_NUGGET = 1e-4  # two nodes in one place would make a covariance singular in float32


class PropagationParams(Struct):
    """Path loss and log-normal shadowing of both kinds of link."""

    d2e_path_loss: str = quantity(
        "path-loss law of the D2E links", choices=PATH_LOSS_LAWS, own=True
    )
    d2d_path_loss: str = quantity(
        "path-loss law of the D2D links", choices=PATH_LOSS_LAWS, own=True
    )
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
    """Shadowing of all links, and whether they are in sight; between nodes both are reciprocal."""

    d2e_db: Float[Array, "N J"]
    node_db: Float[Array, "N*J N*J"]
    d2e_sight: Float[Array, "N J"] | None = None  # standard normals, of a :class:`SightLaw`
    node_sight: Float[Array, "N*J N*J"] | None = None


class LargeScaleGain(NamedTuple):
    """Mean power gains of all links before fading; between nodes reciprocal, sender first."""

    d2e: Float[Array, "N J"]
    node: Float[Array, "N J N J"]


def sample_shadowing(
    key: PRNGKeyArray, position_m: Positions, topology: TopologyParams, params: PropagationParams
) -> Shadowing:
    """Log-normal shadowing of all links, and their sight variables if the path loss has any.

    Links to the base station have correlation ``exp(-d / d_corr)`` at distance ``d`` of their
    nodes. Links between nodes are independent of each other and the same in both directions.
    Sight variables are independent of all else.
    """
    d2e_key, node_key = jax.random.split(key)
    between_m = node_distance_m(position_m, topology)
    d2e = _correlated_normal(d2e_key, between_m, params.d2e_decorrelation_distance_m)
    node = symmetric(jax.random.normal(node_key, between_m.shape))
    return Shadowing(
        d2e_db=params.d2e_shadowing_db * d2e.reshape(position_m.shape[:2]),
        node_db=params.d2d_shadowing_db * node,
        **_sample_sight(key, position_m, params),
    )


def _sample_sight(key, position_m, params):
    """Standard normals of the links whose path loss has sight, by name of :class:`Shadowing`."""
    # Further keys: those of the shadowing do not depend on the law.
    d2e_key, node_key = jax.random.fold_in(key, 2), jax.random.fold_in(key, 3)
    shape, count = position_m.shape[:2], position_m.shape[0] * position_m.shape[1]
    sight = {}
    if isinstance(_path_loss_law(params.d2e_path_loss), SightLaw):
        sight["d2e_sight"] = jax.random.normal(d2e_key, shape)
    if isinstance(_path_loss_law(params.d2d_path_loss), SightLaw):
        sight["node_sight"] = symmetric(jax.random.normal(node_key, (count, count)))
    return sight


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
    between nodes ``d`` is the sum of what both ends move. A link whose ends stand still keeps
    its shadowing. Sight variables decorrelate in the same way, over the same distances, but
    each link on its own. ``before`` and ``position_m`` are those before the displacement
    ``moved_m``.
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
    sight = _sample_sight(key, position_m, params)
    if before.d2e_sight is not None:
        way = distance_m.reshape(before.d2e_sight.shape) / params.d2e_decorrelation_distance_m
        sight["d2e_sight"] = _decorrelated(before.d2e_sight, way, sight["d2e_sight"])
    if before.node_sight is not None:
        sight["node_sight"] = _decorrelated(before.node_sight, ways, sight["node_sight"])
    return Shadowing(
        d2e_db=jnp.where(stood, old, d2e).reshape(before.d2e_db.shape),
        node_db=_decorrelated(before.node_db, ways, fresh),
        **sight,
    )


def _decorrelated(before, way, fresh):
    """Normal values after a way in units of their decorrelation distance (Gudmundson 1991)."""
    return jnp.exp(-way) * before + jnp.sqrt(-jnp.expm1(-2.0 * way)) * fresh


def large_scale_gain(
    position_m: Positions, shadowing: Shadowing, topology: TopologyParams, params: PropagationParams
) -> LargeScaleGain:
    """Path loss with shadowing, as linear gains."""
    shape = position_m.shape[:2]
    d2e_m, between_m = d2e_distance_m(position_m, topology), node_distance_m(position_m, topology)
    # Not the distance above: XLA would round gains anew that have nothing to do with free space.
    free_m = jnp.hypot(position_m[..., 0], position_m[..., 1])
    free_m = jnp.maximum(free_m, topology.d2e_min_distance_m)
    d2e = _path_gain(params.d2e_path_loss, d2e_m, free_m, shadowing.d2e_db, shadowing.d2e_sight)
    node = _path_gain(
        params.d2d_path_loss, between_m, between_m, shadowing.node_db, shadowing.node_sight
    )
    return LargeScaleGain(d2e=d2e, node=node.reshape(*shape, *shape))


def _path_gain(name, distance_m, free_m, shadowing_db, sight):
    """Gains of links by a law of path loss, of the table no more than in free space.

    Sources fit their laws at longer distances. A law from elsewhere may have another frequency.
    ``free_m`` is the distance again.
    """
    gain = db_to_linear(-path_loss_db(name, distance_m, sight) + shadowing_db)
    if name not in PATH_LOSS_LAWS:
        return gain
    free_db = path_loss_db("free_space_2ghz", free_m, None)
    return jnp.minimum(gain, db_to_linear(-free_db + shadowing_db))


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
