"""Messages by their SINRs: time on air and losses, with their slopes. Any shapes, lanes last.

The equations are those of :mod:`collapipe_jax.network.channel`, in forms that the solver's
inner loop can afford.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.smooth_maximum import none_lost, to_inverse
from collapipe_jax.network.channel import spectral_efficiency, unlimited_efficiency

_FAR = {"float32": 8.0, "float64": 18.0}
"""From where the hazard is expanded: its remainder is less than rounding there."""
_SMALL, _RARE = 0.1, 0.01
"""Up to where the series are as exact as rounding leaves the functions beyond."""
_ONE_MINUS_EXP = (1.0, -1 / 2, 1 / 6, -1 / 24, 1 / 120, -1 / 720)
_MINUS_LOG = (1.0, 1 / 2, 1 / 3, 1 / 4)
"""``1 - e^-x`` and ``-log(1 - x)``."""


class MessageTime(NamedTuple):
    """Time on air of a bit.

    Attributes:
      true_s: as it is.
      smooth_s: the ceiling of modulation, itself a maximum of two times, made smooth.
      gain: relative fall of the smooth time when the logarithm of the SINR grows by 1.
      bend: how much the gain changes then, for the ceiling alone.
      weight: the next one of the time by the SINR.
    """

    true_s: Array
    smooth_s: Array
    gain: Array
    bend: Array
    weight: Array


def bit_time_s(radio, share_hz, sinr) -> Array:
    """Time on air of a bit."""
    return 1.0 / (share_hz * spectral_efficiency(sinr, radio))


def message_time(radio, share_hz, sinr, weight, temperature) -> MessageTime:
    """Time on air of a bit, its ceiling made smooth by a mean of two as in :mod:`power_mean`.

    Args:
      radio: with lanes.
      share_hz: band of the message.
      sinr: of the message.
      weight: of the time by the SINR, against that by the ceiling.
      temperature: of the mean.
    """
    efficiency = unlimited_efficiency(sinr, radio)
    ceiling = radio.max_spectral_efficiency
    below = efficiency < ceiling  # the time by the SINR is the longer one
    lower, higher = jnp.minimum(efficiency, ceiling), jnp.maximum(efficiency, ceiling)
    less = to_inverse(lower / higher, temperature)
    mine = jnp.where(below, weight, weight * less)
    mean = mine + jnp.where(below, (1.0 - weight) * less, 1.0 - weight)
    true_s = 1.0 / (share_hz * lower)
    posterior = mine / mean
    gain = _efficiency_gain(radio, sinr, efficiency)
    return MessageTime(
        true_s,
        true_s * jnp.exp(temperature * jnp.log(mean)),
        posterior * gain,
        posterior * (1.0 - posterior) * gain**2 / temperature,
        none_lost(posterior, 2),
    )


def _efficiency_gain(radio, sinr, efficiency) -> Array:
    """Relative growth of the spectral efficiency when the logarithm of the SINR grows by 1."""
    reduced = sinr / radio.snr_gap
    nats = efficiency * jnp.log(2.0)
    some = jnp.where(nats > 0, nats, 1.0)
    if radio.rate_law == "ergodic":  # d(e^u E1(u)) / du = e^u E1(u) - 1 / u with u = 1 / x
        return jnp.where(nats > 0, (1.0 - nats / jnp.where(nats > 0, reduced, 1.0)) / some, 1.0)
    return jnp.where(nats > 0, reduced / ((1.0 + reduced) * some), 1.0)


class MessageLoss(NamedTuple):
    """Hazard of a transport block, and its fall when the logarithm of the SINR grows by 1."""

    hazard: Array
    fall: Array


def message_loss(radio, sinr) -> MessageLoss:
    """Hazard and slope from few elementary functions; errors under 2e-5 in single precision.

    With ``q = 1 - e^-z``, ``lambda = -log(1 - q^A)``; beyond ``z = 8`` its expansion in
    ``e^-z``, where ``1 - q^A`` would cancel. Small ``q`` and ``q^A`` come from short series,
    which takes a third less time than ``expm1`` and ``log1p``.
    """
    attempts, z = radio.harq_attempts, radio.outage_threshold / sinr
    far = z > _FAR[sinr.dtype.name]
    thin = jnp.exp(-z)
    q = jnp.where(z < _SMALL, _series(z, _ONE_MINUS_EXP), 1.0 - thin)
    lost = jnp.exp(attempts * jnp.log(q))
    arrives = jnp.where(far, 1.0, 1.0 - lost)
    near_hazard = jnp.where(lost < _RARE, _series(lost, _MINUS_LOG), -jnp.log(arrives))
    tail = 0.5 * (attempts - 1.0) * thin
    return MessageLoss(
        jnp.where(far, z - jnp.log(attempts) + tail, near_hazard),
        z * jnp.where(far, 1.0 - tail, attempts * lost * thin / (q * arrives)),
    )


def _series(x: Array, coefficients: tuple[float, ...]) -> Array:
    """``x (c_0 + x (c_1 + ...))``."""
    total = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        total = coefficient + x * total
    return x * total


def sinr_at_hazard(radio, hazard) -> Array:
    """SINR at which a transport block has a hazard: the inverse of docs/system-model.md (6).

    Args:
      radio: with lanes.
      hazard: positive.
    """
    lost = -jnp.expm1(-hazard)
    z = -jnp.log1p(-jnp.exp(jnp.log(lost) / radio.harq_attempts))
    return radio.outage_threshold / z
