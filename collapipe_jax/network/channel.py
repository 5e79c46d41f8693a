"""Interference, rates and losses of the radio, docs/system-model.md (1)-(7)."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float

from collapipe_jax.quantity import Struct, positive, quantity

_Values = Float[Array, "*any"]
_Broadcast = Float[Array, "..."]
_Factor = _Broadcast | float

RATE_LAWS = ("mean", "ergodic")


class RadioConstants(Struct):
    """Numbers of the radio that are the same for every link of their kind."""

    d2e_bandwidth_hz: Array = positive("bandwidth of the D2E links", "W_U")
    d2d_bandwidth_hz: Array = positive("bandwidth of the D2D links", "W_D")
    bs_noise_w_per_hz: Array = positive("noise density at the base station", "N_B")
    node_noise_w_per_hz: Array = positive("noise density at a node", "N_D")
    d2e_interference_w: Array = quantity("interference of other cells, whole D2E band", "I_U")
    d2d_activity: Array = quantity("share of time that other clusters' nodes send", "a_I")
    snr_gap: Array = positive("SNR gap to capacity", "G")
    max_spectral_efficiency: Array = positive(
        "ceiling of the modulation", r"se_{\max}", unit="bit/s/Hz"
    )
    bs_power_w: Array = quantity("power of the base station", "P_{BS}")
    outage_threshold: Array = quantity(
        "SINR that a transport block needs; a linear 0 switches losses off", r"\theta"
    )
    harq_attempts: Array = positive("attempts to send a transport block (HARQ)", "A_H", whole=True)
    transport_block_bits: Array = positive("size of a transport block", "D_{TB}")
    rate_law: str = quantity(
        "rate of a link: `mean` takes log2(1 + x) at the mean SINR x, `ergodic` its mean over "
        "Rayleigh fading within the round",
        choices=RATE_LAWS,
        default="mean",
    )


class Radio(RadioConstants):
    """The radio of one network in one round."""

    d2e_power_max_w: Array = quantity("limit of power on the D2E band", r"p^U_{\max}", "N")
    d2d_power_max_w: Array = quantity("limit of power on the D2D band", r"p_{\max}", "NJ")
    d2e_gain: Array = quantity("gain to the base station, in both directions", "g^U", "NJ")
    d2d_gain: Array = quantity("gain inside a cluster, sender first; diagonal unused", "g", "NJJ")
    cross_gain: Array = quantity(
        "gain between clusters, sender first; entries inside a cluster unused", "g^X", "NJNJ"
    )


def interference_w(
    radio: Radio, active: Bool[Array, "N J"], d2d_power_w: Float[Array, "N J"]
) -> Float[Array, "N J"]:
    """Interference at every node from the active nodes of the other clusters, in watts.

    Source: docs/system-model.md (1).

    Args:
      radio: the radio.
      active: nodes that send this round.
      d2d_power_w: of every node; that of idle nodes has no effect.

    Returns:
      The interference over the whole D2D band. Entries of ``cross_gain`` inside a cluster have
      no effect.
    """
    clusters = active.shape[0]
    sent = jnp.where(active, d2d_power_w, 0.0)
    heard = jnp.einsum("ai,aibj->abj", sent, radio.cross_gain)
    others = ~jnp.eye(clusters, dtype=bool)[:, :, None]
    return radio.d2d_activity * jnp.sum(jnp.where(others, heard, 0.0), axis=0)


def spectral_efficiency(sinr: _Values, radio: Radio) -> _Values:
    """Bits a second and hertz at a SINR. Source: docs/system-model.md (2)."""
    return jnp.minimum(unlimited_efficiency(sinr, radio), radio.max_spectral_efficiency)


def unlimited_efficiency(sinr: _Values, radio: Radio) -> _Values:
    """Spectral efficiency of docs/system-model.md (2) without the ceiling of modulation."""
    law = mean_log2_one_plus if radio.rate_law == "ergodic" else _log2_one_plus
    return law(sinr / radio.snr_gap)


def _log2_one_plus(x: Array) -> Array:
    """``log2(1 + x)``, exact for small x."""
    return jnp.log1p(x) / jnp.log(2.0)


def mean_log2_one_plus(x: Float[ArrayLike, "*any"]) -> _Values:
    """``E[log2(1 + x h)]`` for h ~ Exp(1), that is ``e^{1/x} E1(1/x) / ln 2``.

    The exponential integral is summed here in a fixed number of steps: the library's
    iterates until every element of an array converges, which at high SINR is never.

    Args:
      x: mean SINR, >= 0.
    """
    x = jnp.asarray(x)
    positive = x > 0
    u = 1.0 / jnp.where(positive, x, 1.0)
    near = u < 1.0
    scaled = jnp.where(
        near,
        _scaled_e1_by_series(jnp.where(near, u, 1.0)),
        _scaled_e1_by_fraction(jnp.where(near, 1.0, u)),
    )
    return jnp.where(positive, scaled / jnp.log(2.0), 0.0)


def _scaled_e1_by_series(u: Array) -> Array:
    """``e^u E1(u)`` for u in (0, 1], by the power series at 0."""
    total = jnp.zeros_like(u)
    for k in range(18, 0, -1):  # sum of (-1)^(k+1) u^k / (k k!), nested
        total = u / k * (1.0 / k - total)
    return jnp.exp(u) * (total - 0.5772156649015329 - jnp.log(u))


def _scaled_e1_by_fraction(u: Array) -> Array:
    """``e^u E1(u)`` for u >= 1, by the continued fraction at infinity."""
    tail = u
    for n in range(40, 0, -1):  # u + 1/(1 + 1/(u + 2/(1 + 2/(u + ...))))
        tail = u + n / (1.0 + n / tail)
    return 1.0 / tail


def d2d_sinr(
    radio: Radio, power_w: _Factor, gain: _Factor, share: _Factor, receiver_interference_w: _Factor
) -> _Broadcast:
    """SINR of a D2D message on a share of the band.

    Source: docs/system-model.md (3). All arguments broadcast; a share must be positive.
    """
    disturbance_w = radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz + receiver_interference_w
    # Powers times gains over noise stays in range in single precision, not so the
    # product of share and noise, which may come near the smallest number.
    return power_w * (gain / disturbance_w) / share


def d2d_rate_bps(radio: Radio, sinr: _Values, share: _Factor) -> _Values:
    """Rate of a D2D message on a share of the band. Source: docs/system-model.md (3)."""
    return share * radio.d2d_bandwidth_hz * spectral_efficiency(sinr, radio)


def uplink_sinr(radio: Radio, power_w: _Factor, gain: _Factor, share: _Factor) -> _Broadcast:
    """SINR from a node to the base station. Source: docs/system-model.md (4)."""
    disturbance_w = radio.d2e_bandwidth_hz * radio.bs_noise_w_per_hz + radio.d2e_interference_w
    return power_w * (gain / disturbance_w) / share


def downlink_sinr(radio: Radio, gain: _Values) -> _Values:
    """SINR from the base station to a node, its power spread over the band.

    Source: docs/system-model.md (5).
    """
    disturbance_w = radio.d2e_bandwidth_hz * radio.node_noise_w_per_hz + radio.d2e_interference_w
    return radio.bs_power_w * (gain / disturbance_w)


def d2e_rate_bps(radio: Radio, sinr: _Broadcast, share: _Factor) -> _Broadcast:
    """Rate on a share of the D2E band, up or down. Source: docs/system-model.md (4), (5)."""
    return share * radio.d2e_bandwidth_hz * spectral_efficiency(sinr, radio)


def transport_block_hazard(radio: Radio, sinr: _Values) -> _Values:
    """Hazard ``lambda(x)`` of one transport block after its HARQ attempts.

    Source: docs/system-model.md (6). Finite values and derivatives at every positive
    SINR; infinite at SINR 0.

    Args:
      radio: outage threshold and attempts.
      sinr: of the block.

    Returns:
      The hazard; the block is lost with probability ``1 - exp(-lambda)``.
    """
    reached = sinr > 0
    z = radio.outage_threshold / jnp.where(reached, sinr, 1.0)
    deep = z > 30.0
    # Each branch sees a harmless argument where the other is taken, or its infinite
    # derivative would turn the selected one into NaN.
    log_lost_all = radio.harq_attempts * _log_one_minus_exp(jnp.where(deep | (z <= 0), 1.0, z))
    hazard = jnp.where(deep, z - jnp.log(radio.harq_attempts), -_log_one_minus_exp(-log_lost_all))
    hazard = jnp.where(z <= 0, 0.0, hazard)
    return jnp.where(reached, hazard, jnp.inf)


def _log_one_minus_exp(z: Array) -> Array:
    """``log(1 - e^-z)`` for z > 0, on the safe side of ``z = ln 2`` (Maechler 2012)."""
    small = z < 0.6931472
    return jnp.where(
        small,
        jnp.log(-jnp.expm1(-jnp.where(small, z, 1.0))),
        jnp.log1p(-jnp.exp(-jnp.where(small, 1.0, z))),
    )


def loss_probability(hazard: _Values) -> _Values:
    """Probability that a message of this hazard is lost. Source: docs/system-model.md (7)."""
    return -jnp.expm1(-hazard)
