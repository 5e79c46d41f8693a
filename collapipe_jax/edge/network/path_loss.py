"""Path-loss laws: the mean loss of a link at a distance, in sight of the other end or not."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from collapipe_jax.core.plugins import find

_Values = Float[Array, "*any"]


class Line(NamedTuple):
    """A loss that is linear in the logarithm of the distance."""

    intercept_db: float  # at 1 km
    slope_db: float  # per decade


class PathLossLaw(NamedTuple):
    """The largest of several lines ``intercept_db + slope_db log10(d / 1 km)``.

    A breakpoint beyond which the loss rises faster is where two lines meet.
    """

    lines: tuple[Line, ...]

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


def _per_metre(intercept_db: float, slope_db: float) -> Line:
    """A line whose source has the intercept at 1 m."""
    return Line(intercept_db + 3.0 * slope_db, slope_db)


# Friis: 20 log10(4 pi d f / c)
_FREE_SPACE = Line(98.47, 20.0)
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
    "macro_2ghz": PathLossLaw((Line(128.1, 37.6),)),
    # 3GPP TR 36.814, UMa, device to edge
    "uma_2ghz": SightLaw(PathLossLaw((_UMA_NEAR, _UMA_FAR)), PathLossLaw((_UMA_HIDDEN,)), 18, 63),
    # Common in papers on device to device: about the next law with no link in sight
    "d2d_outdoor": PathLossLaw((Line(148.0, 40.0),)),
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
    "winner_b1_sight": PathLossLaw((Line(101.14, 22.7),)),
    # Friis
    "free_space_2ghz": PathLossLaw((_FREE_SPACE,)),
}
"""Path-loss laws at 2 GHz by name: functions of the distance in m with the loss in dB, or
:class:`SightLaw`."""


def path_loss_law(name: str) -> Callable[[Array], Array] | SightLaw:
    """The law of a name of :data:`PATH_LOSS_LAWS`, or of ``package.module:name``."""
    return find("path_loss", name, PATH_LOSS_LAWS)


def path_loss_db(name: str, distance_m: _Values, sight: _Values | None) -> _Values:
    """Path loss of links by the law of a name; a :class:`SightLaw` needs ``sight``."""
    law = path_loss_law(name)
    if isinstance(law, SightLaw):
        assert sight is not None
        return law.loss_db(distance_m, sight)
    return law(distance_m)
