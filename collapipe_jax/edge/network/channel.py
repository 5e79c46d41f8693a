"""The radio of a round: fading, and the SINRs, rates and losses of its links."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, PRNGKeyArray

from collapipe_jax.core.batch_axis import fusion_barrier
from collapipe_jax.core.quantity import Struct, positive, quantities, quantity
from collapipe_jax.edge.network.propagation import symmetric

# Fading of the links from round to round.
#
# Fading within a round follows below: the law of rates, and the hazard.


class DynamicsParams(Struct):
    """Fading over rounds, and availability of devices."""

    fading_correlation: Array = quantity(
        "correlation of the scattered field from round to round", bounds=">= 0 and <= 1"
    )
    d2e_rician_factor: Array = quantity("direct over scattered power of a D2E link")
    d2d_rician_factor: Array = quantity("direct over scattered power of a D2D link")
    availability: Array = quantity("probability that a device is available", bounds=">= 0 and <= 1")


class FadingState(NamedTuple):
    """Scattered fields of all links, complex normal of unit power, as (real, imaginary)."""

    d2e: Float[Array, "N J 2"]
    node: Float[Array, "N*J N*J 2"]


def sample_fading(key: PRNGKeyArray, clusters: int, nodes: int) -> FadingState:
    """Draw the scattered fields of ``N`` clusters of ``K + 1`` nodes, reciprocal."""
    d2e_key, node_key = jax.random.split(key)
    size = clusters * nodes
    field = jax.random.normal(node_key, (size, size, 2)) * jnp.sqrt(0.5)
    return FadingState(
        d2e=jax.random.normal(d2e_key, (clusters, nodes, 2)) * jnp.sqrt(0.5), node=symmetric(field)
    )


def step_fading(
    key: PRNGKeyArray, state: FadingState, correlation: Float[ArrayLike, ""]
) -> FadingState:
    """Fields after a round of the Gauss-Markov process ``h' = rho h + sqrt(1 - rho^2) w``.

    A correlation ``rho`` of 1 freezes the channel, 0 draws it anew; the law is stationary.
    """
    clusters, nodes = state.d2e.shape[:2]
    innovation = sample_fading(key, clusters, nodes)
    scale = jnp.sqrt(1.0 - correlation**2)
    return jax.tree.map(lambda old, new: correlation * old + scale * new, state, innovation)


def fading_power(
    field: Float[Array, "*any 2"], rician_factor: Float[ArrayLike, ""]
) -> Float[Array, "*any"]:
    """Power gain of Rician fading, of mean 1, from the scattered field."""
    direct = jnp.sqrt(rician_factor / (1.0 + rician_factor))
    scattered = field * jnp.sqrt(1.0 / (1.0 + rician_factor))
    return (direct + scattered[..., 0]) ** 2 + scattered[..., 1] ** 2


_Values = Float[Array, "*any"]
_Broadcast = Float[Array, "..."]
_Factor = _Broadcast | float

RATE_LAWS = ("mean", "ergodic")
_DUPLEX = ("full", "half")
_RETRANSMISSIONS = ("free", "counted", "reliable")

LEAST_SNR_PER_W = 1e-7
"""SNR over the whole band, for a watt sent, below which a link carries nothing."""

_BANDWIDTH: dict[str, Any] = {"plausible": ">= 1e3", "slip": "In MHz? Give Hz"}
_NOISE: dict[str, Any] = {"plausible": "<= 1e-15", "slip": "In dBm/Hz? Give W/Hz"}
_POWER: dict[str, Any] = {"plausible": "<= 10", "slip": "In dBm or mW? Give W"}
_GAIN: dict[str, Any] = {
    "bounds": ">= 0 and <= 1",
    "slip": "A path loss in dB? Convert it by 10^(-dB/10)",
}


class RadioConstants(Struct):
    """Numbers of the radio that are the same for every link of their kind."""

    d2e_bandwidth_hz: Array = positive("bandwidth of the D2E links", "W_U", **_BANDWIDTH)
    d2d_bandwidth_hz: Array = positive("bandwidth of the D2D links", "W_D", **_BANDWIDTH)
    bs_noise_w_per_hz: Array = positive("noise density at the base station", "N_B", **_NOISE)
    node_noise_w_per_hz: Array = positive("noise density at a node", "N_D", **_NOISE)
    d2e_interference_w: Array = quantity(
        "interference of other cells at the base station, whole D2E band", "I_U"
    )
    downlink_interference_w: Array = quantity(
        "interference of other cells at a node, whole D2E band",
        "I_{DL}",
        missing="d2e_interference_w",
    )
    d2d_activity: Array = quantity("share of time that other clusters' nodes send", "a_I")
    snr_gap: Array = positive("SNR gap to capacity", "G")
    max_spectral_efficiency: Array = positive(
        "ceiling of the modulation", r"se_{\max}", unit="bit/s/Hz"
    )
    bs_power_w: Array = quantity(
        "power of the base station", "P_{BS}", plausible="<= 1e3", slip=_POWER["slip"]
    )
    amplifier_efficiency: Array = quantity(
        "radiated power of a node over the power that its amplifier draws",
        r"\eta_{PA}",
        bounds="> 0 and <= 1",
        missing=1.0,
    )
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
    duplex: str = quantity(
        "D2D radio of a node that relays: with `full` it sends and receives at once, with `half` "
        "in turns",
        choices=_DUPLEX,
        default="full",
    )

    retransmissions: str = quantity(
        "attempts of a transport block: with `free` up to `harq_attempts` take no time and no "
        "energy, with `counted` they take both, which decisions do not see, and with `reliable` as "
        "many as a block needs take both, and nothing is lost",
        choices=_RETRANSMISSIONS,
        default="free",
    )

    @property
    def hops_per_stage(self) -> int:
        """Hops in a D2D stage of a flow: with half duplex both of a node."""
        return 2 if self.duplex == "half" else 1


class Radio(RadioConstants):
    """The radio of one network in one round."""

    d2e_power_max_w: Array = quantity(
        "limit of power on the D2E band", r"p^U_{\max}", "N", **_POWER
    )
    d2d_power_max_w: Array = quantity("limit of power on the D2D band", r"p_{\max}", "NJ", **_POWER)
    d2e_gain: Array = quantity("gain to the base station, in both directions", "g^U", "NJ", **_GAIN)
    d2d_gain: Array = quantity(
        "gain inside a cluster, sender first; diagonal unused", "g", "NJJ", **_GAIN
    )
    cross_gain: Array = quantity(
        "gain between clusters, sender first; entries inside a cluster unused",
        "g^X",
        "NJNJ",
        **_GAIN,
    )


RADIO_LAWS = tuple(name for name, each in quantities(RadioConstants).items() if each.choices)
"""Fields that are names. Networks on file have none: their defaults hold, or a configuration."""


def spectral_efficiency(sinr: _Values, radio: Radio) -> _Values:
    """Bits a second and hertz at a SINR. Source: docs/system-model.md (2)."""
    return jnp.minimum(unlimited_efficiency(sinr, radio), radio.max_spectral_efficiency)


def unlimited_efficiency(sinr: _Values, radio: Radio) -> _Values:
    """Spectral efficiency without the ceiling of modulation."""
    x = sinr / radio.snr_gap
    # Not log2(1 + x): it loses a small x.
    return mean_log2_one_plus(x) if radio.rate_law == "ergodic" else jnp.log1p(x) / jnp.log(2.0)


def efficiency_elasticity(sinr: _Values, bit_hz_s: _Values, radio: Radio) -> _Values:
    """Relative growth of :func:`unlimited_efficiency` per unit of the SINR's logarithm.

    ``bit_hz_s`` is one over the efficiency at the SINR.
    """
    x = sinr / radio.snr_gap
    positive = x > 0
    per_nat = bit_hz_s / math.log(2.0)
    if radio.rate_law == "ergodic":  # d(e^u E1(u)) / du = e^u E1(u) - 1 / u with u = 1 / x
        return jnp.where(positive, per_nat - 1.0 / jnp.where(positive, x, 1.0), 1.0)
    return jnp.where(positive, x / (1.0 + x) * per_nat, 1.0)


def bit_time_s(radio: Radio, band_hz: _Factor, sinr: _Broadcast) -> _Broadcast:
    """Time on air of a bit: one over the rate of docs/system-model.md, section 2.

    Attempts count unless they are free.
    """
    return with_attempts(radio, sinr, 1.0 / (band_hz * spectral_efficiency(sinr, radio)))


def broadcast_bit_s(
    radio: Radio, sinr: Float[Array, "..."], used: Bool[Array, "..."], axis: int | None = None
) -> Float[Array, "..."]:
    """Time of a bit for all receivers on the whole D2E band, at the rate of the worst.

    Receivers are along an axis, or all axes. Source: docs/system-model.md (21).
    """
    bit_s = bit_time_s(radio, radio.d2e_bandwidth_hz, sinr)
    return jnp.max(jnp.where(used, bit_s, 0.0), axis=axis)


def with_attempts(radio: Radio, sinr: _Broadcast, time_s: _Broadcast) -> _Broadcast:
    """Times on air with their expected attempts; infinite where those of reliable links overflow.

    Source: docs/system-model.md (31).
    """
    if radio.retransmissions == "free":
        return time_s
    z = threshold_over(radio, sinr)
    if radio.retransmissions == "reliable":
        return time_s * jnp.exp(z)
    few = jnp.exp(jnp.minimum(z, _DEEP) - hazard_and_elasticity(radio, sinr)[0])
    return time_s * jnp.where(z > _DEEP, radio.harq_attempts, few)


def threshold_over(radio: Radio, sinr: _Broadcast) -> _Broadcast:
    """Outage threshold over a SINR: the fall of :func:`with_attempts` by its logarithm."""
    return radio.outage_threshold / jnp.maximum(sinr, _LEAST_SINR)


def narrowed_bit_time_s(radio: Radio, band_hz: _Factor, sinr: _Broadcast) -> _Broadcast:
    """:func:`bit_time_s` on the part of a band that is fastest, the power being the same."""
    if radio.retransmissions != "reliable":
        return bit_time_s(radio, band_hz, sinr)
    part = fastest_part(radio, sinr)
    return bit_time_s(radio, band_hz * part, sinr / part)


def fastest_part(radio: Radio, sinr: _Broadcast) -> _Broadcast:
    """Part of a band on which a reliable link is fastest, by its SINR on the whole of it.

    Source: docs/system-model.md (33).
    """
    return jnp.where(sinr > 0, jnp.minimum(sinr / efficient_sinr(radio), 1.0), 1.0)


def efficient_sinr(radio: Radio) -> Array:
    """SINR of a reliable link below which a narrower band is faster and less power saves energy.

    Elasticities of efficiency and attempts fall with the SINR; at this one their sum is 1.
    Source: docs/system-model.md (32).
    """
    threshold = jnp.maximum(radio.outage_threshold, _LEAST_THRESHOLD)

    def halve(_, ends):
        middle = jnp.sqrt(ends[0] * ends[1])
        bit_hz_s = 1.0 / unlimited_efficiency(middle, radio)
        total = efficiency_elasticity(middle, bit_hz_s, radio) + threshold / middle
        return jnp.where(total > 1.0, middle, ends[0]), jnp.where(total > 1.0, ends[1], middle)

    largest = 10.0 * (threshold + jnp.sqrt(2.0 * threshold * radio.snr_gap))
    return jax.lax.fori_loop(0, _HALVINGS, halve, (threshold, largest))[1]


def least_bit_energy_j(radio: Radio, noise_w_per_hz: _Factor, gain: _Factor) -> _Broadcast:
    """Least energy of a bit, of a narrow band and no ceiling of modulation.

    That is at vanishing power, where ``log2(1 + x)`` is ``x / ln 2``, and of reliable links at
    their :func:`efficient_sinr`.
    """
    radiated_j = math.log(2.0) * radio.snr_gap * noise_w_per_hz / gain
    return with_least_attempts(radio, radiated_j / radio.amplifier_efficiency)


def with_least_attempts(radio: Radio, energy_j: _Broadcast) -> _Broadcast:
    """Energies at vanishing power, of reliable links at the efficient SINR with its attempts."""
    if radio.retransmissions != "reliable":
        return energy_j
    sinr = efficient_sinr(radio)
    more = sinr / (radio.snr_gap * math.log(2.0)) / unlimited_efficiency(sinr, radio)
    return energy_j * with_attempts(radio, sinr, more)


def mean_log2_one_plus(x: Float[ArrayLike, "*any"]) -> _Values:
    """``E[log2(1 + x h)]`` at a mean SINR x for h ~ Exp(1), that is ``e^{1/x} E1(1/x) / ln 2``.

    The exponential integral is summed here in a fixed number of steps: the library's
    iterates until every element of an array converges, which at high SINR is never.
    """
    x = jnp.asarray(x)
    positive = x > 0
    u = 1.0 / jnp.where(positive, x, 1.0)
    is_near = u < 1.0
    near, total = jnp.where(is_near, u, 1.0), jnp.zeros_like(u)
    for k in range(18, 0, -1):  # power series: sum of (-1)^(k+1) u^k / (k k!), nested
        total = near / k * (1.0 / k - total)
    series = jnp.exp(near) * (total - 0.5772156649015329 - jnp.log(near))
    far = tail = jnp.where(is_near, 1.0, u)
    for n in range(40, 0, -1):  # continued fraction: u + 1/(1 + 1/(u + 2/(1 + 2/(u + ...))))
        tail = far + n / (1.0 + n / tail)
    scaled = jnp.where(is_near, series, 1.0 / tail)
    return jnp.where(positive, scaled / jnp.log(2.0), 0.0)


def d2d_sinr(
    radio: Radio, power_w: _Factor, gain: _Factor, share: _Factor, receiver_interference_w: _Factor
) -> _Broadcast:
    """SINR of a D2D message on a share of the band.

    Source: docs/system-model.md (3). All arguments broadcast; a share must be positive.
    """
    noise_w = radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz
    # Dividing last keeps single precision in range: share times noise may underflow.
    return power_w * (_usable(gain, noise_w) / (noise_w + receiver_interference_w)) / share


def uplink_sinr(radio: Radio, power_w: _Factor, gain: _Factor, share: _Factor) -> _Broadcast:
    """SINR from a node to the base station; arguments as of :func:`d2d_sinr`.

    Source: docs/system-model.md (4).
    """
    noise_w = radio.d2e_bandwidth_hz * radio.bs_noise_w_per_hz
    return power_w * (_usable(gain, noise_w) / (noise_w + radio.d2e_interference_w)) / share


def downlink_sinr(radio: Radio, gain: _Values) -> _Values:
    """SINR from the base station to a node, its power spread over the band.

    Source: docs/system-model.md (5).
    """
    noise_w = radio.d2e_bandwidth_hz * radio.node_noise_w_per_hz
    disturbance_w = noise_w + radio.downlink_interference_w
    return radio.bs_power_w * (_usable(gain, noise_w) / disturbance_w)


def _usable(gain: _Factor, noise_w: _Factor) -> _Broadcast:
    """The gain, 0 where a link carries nothing, docs/system-model.md, section 2."""
    return jnp.where(gain >= LEAST_SNR_PER_W * noise_w, gain, 0.0)


def transport_block_hazard(radio: Radio, sinr: _Values) -> _Values:
    """Hazard of one transport block after its HARQ attempts.

    The block is lost with probability ``1 - exp(-hazard)``; at SINR 0 the hazard is infinite.
    Every branch takes its own small argument from a series, so that nothing cancels: relative
    errors are under 3e-6 in single precision and 1e-11 in double.
    Source: docs/system-model.md (6).
    """
    return jnp.where(sinr > 0, hazard_and_elasticity(radio, sinr)[0], jnp.inf)


def hazard_and_elasticity(radio: Radio, sinr: _Values) -> tuple[_Values, _Values]:
    """Hazard of one transport block, and its fall per unit of the SINR's logarithm. ``[...]``."""
    z = threshold_over(radio, sinr)
    if radio.retransmissions == "reliable":
        return jnp.zeros_like(z), jnp.zeros_like(z)
    hazard, slope = _hazard(jnp.asarray(radio.harq_attempts, z.dtype), z)
    return hazard, z * slope


def sinr_at_hazard(radio: Radio, hazard: _Values) -> _Values:
    """SINR at which a transport block has a hazard, positive.

    Reliable links have none; there it is the efficient SINR.
    """
    if radio.retransmissions == "reliable":
        return jnp.broadcast_to(efficient_sinr(radio), hazard.shape)
    log_lost = jnp.log(-jnp.expm1(-hazard))
    z = -jnp.log1p(-jnp.exp(log_lost / radio.harq_attempts))
    return radio.outage_threshold / z


def loss_probability(hazard: _Values) -> _Values:
    """Probability that a message of this hazard is lost."""
    return -jnp.expm1(-hazard)


_LEAST_SINR = 1e-18
"""One over its square is still a number in single precision."""
_LEAST_THRESHOLD, _HALVINGS = 1e-12, 40
_SERIES_UP_TO, _DEEP = 0.05, 30.0
_TERMS = {"float32": 5, "float64": 9}
"""Of a series: what comes after is less than rounding."""
_ONE_MINUS_EXP = tuple((-1.0) ** k / math.factorial(k + 1) for k in range(9))
_MINUS_LOG = tuple(1.0 / (k + 1) for k in range(9))
"""Series of ``1 - e^-x`` and ``-log(1 - x)``, divided by x."""


def _series(x: Array, coefficients: tuple[float, ...]) -> Array:
    """``x (c_0 + x (c_1 + ...))``."""
    total = 0.0
    for coefficient in reversed(coefficients[: _TERMS[x.dtype.name]]):
        total = coefficient + x * total
    return x * total


@jax.custom_jvp
def _hazard(attempts: Array, z: Array) -> tuple[Array, Array]:
    """Hazard at a threshold ``z`` over the SINR, and its slope by ``z``.

    With ``q = 1 - e^-z`` the hazard is ``-log(1 - q^A)``, its slope
    ``A q^(A-1) e^-z / (1 - q^A)``.
    """
    succeeds = jnp.exp(-z)
    near = z < _SERIES_UP_TO
    fails = fusion_barrier(jnp.where(near, _series(z, _ONE_MINUS_EXP), 1.0 - succeeds))
    rare = succeeds < _SERIES_UP_TO
    exponent = attempts * jnp.where(rare, _series(succeeds, _MINUS_LOG), -jnp.log(fails))
    exponent = fusion_barrier(exponent)
    lost = jnp.exp(-exponent)
    small = exponent < _SERIES_UP_TO
    arrives = fusion_barrier(jnp.where(small, _series(exponent, _ONE_MINUS_EXP), 1.0 - lost))
    hazard = jnp.where(lost < _SERIES_UP_TO, _series(lost, _MINUS_LOG), -jnp.log(arrives))
    both = fails * arrives
    slope = attempts * lost * succeeds / jnp.where(both > 0, both, 1.0)
    deep = z > _DEEP
    return jnp.where(deep, z - jnp.log(attempts), hazard), jnp.where(deep, 1.0, slope)


@_hazard.defjvp
def _hazard_jvp(primals, tangents):
    """By ``z`` alone: the number of attempts is a constant."""
    attempts, z = primals
    hazard, slope = _hazard(attempts, z)
    lost, fails = -jnp.expm1(-hazard), -jnp.expm1(-z)
    inside = (lost > 0) & (fails > 0)
    ratio = slope / jnp.where(inside, lost, 1.0) - 1.0 / jnp.where(inside, fails, 1.0)
    curvature = jnp.where(inside, slope * ratio, 0.0)
    return (hazard, slope), (slope * tangents[1], curvature * tangents[1])
