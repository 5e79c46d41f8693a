"""Where devices walk from round to round.

Control units stand still, and so do all devices unless a speed is configured, see
docs/system-model.md, section 2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray

from collapipe_jax.core.quantity import Struct, part, positive, quantity
from collapipe_jax.edge.network.propagation import (
    Positions,
    PropagationParams,
    Shadowing,
    TopologyParams,
    step_shadowing,
)


class MobilityParams(Struct):
    """How devices walk inside the disc of their cluster."""

    speed_m_per_s: Array = quantity("mean speed of a device; at 0 all stand still", r"\bar v")
    round_interval_s: Array = positive(
        "time from the start of a round to that of the next, the same for every policy", r"\Delta"
    )
    velocity_correlation: Array = quantity(
        "correlation of a device's velocity from round to round", "a", bounds=">= 0 and <= 1"
    )


class MobilityState(NamedTuple):
    """Positions of all nodes, velocities of the devices, and shadowing of all links."""

    position_m: Positions
    velocity_m_per_s: Float[Array, "N K 2"]
    shadowing: Shadowing


class Mobility(Struct):
    """How the devices of one network walk, and what their gains follow from."""

    params: MobilityParams = part("parameters of the walk")
    topology: TopologyParams = part("discs, and lower limits of distances")
    propagation: PropagationParams = part("path loss and shadowing")
    start: MobilityState = part("state in the first round")


def sample_mobility(
    key: PRNGKeyArray, position_m: Positions, shadowing: Shadowing, params: MobilityParams
) -> MobilityState:
    """State in the first round, from its stationary law; velocities are drawn."""
    clusters, nodes = position_m.shape[:2]
    velocity = _sample_velocity(key, (clusters, nodes - 1, 2), params.speed_m_per_s)
    return MobilityState(position_m, velocity, shadowing)


def step_mobility(key: PRNGKeyArray, state: MobilityState, mobility: Mobility) -> MobilityState:
    """State in the next round.

    Devices walk straight on, mirrored at the rim of their cluster's disc, and then turn.
    Mirroring keeps positions uniform over the disc and velocities normal, and turning keeps
    velocities normal, so the law of the state is stationary. A device may come closer to its
    control unit than the least distance, which holds where distances are measured.
    """
    velocity_key, shadowing_key = jax.random.split(key)
    offset_m = state.position_m[:, 1:] - state.position_m[:, :1]
    interval_s, radius_m = mobility.params.round_interval_s, mobility.topology.cluster_radius_m
    walk_all = jax.vmap(jax.vmap(walk, (0, 0, None, None)), (0, 0, None, None))
    walked_m, velocity = walk_all(offset_m, state.velocity_m_per_s, interval_s, radius_m)
    moved_m = jnp.pad(walked_m, ((0, 0), (1, 0), (0, 0)))
    return MobilityState(
        position_m=state.position_m + moved_m,
        velocity_m_per_s=_turned(velocity_key, velocity, mobility.params),
        shadowing=step_shadowing(
            shadowing_key, state.shadowing, state.position_m, moved_m, mobility.propagation
        ),
    )


def walk(
    offset_m: Float[Array, "2"],
    velocity_m_per_s: Float[Array, "2"],
    duration_s: Float[ArrayLike, ""],
    radius_m: Float[ArrayLike, ""],
) -> tuple[Float[Array, "2"], Float[Array, "2"]]:
    """Walk straight on inside a disc, mirrored at its rim as light is.

    All chords after the first meeting with the rim have one length, and each lies turned
    about the centre by one angle from the chord before; so any number of them is one turn.

    Returns:
      Displacement and new velocity. Rounding displaces nobody who stands still.
    """
    speed = jnp.linalg.norm(velocity_m_per_s)
    heading = velocity_m_per_s / jnp.where(speed > 0, speed, 1.0)
    along_m = jnp.sum(offset_m * heading)
    square = along_m**2 + radius_m**2 - jnp.sum(offset_m**2)
    to_rim_m = jnp.sqrt(jnp.maximum(square, 0.0)) - along_m
    beyond_m = speed * duration_s - to_rim_m
    rim = (offset_m + to_rim_m * heading) / radius_m
    # Along the rim chords have no length; a lower limit keeps their number finite.
    cosine = jnp.maximum(jnp.sum(rim * heading), 1e-5)
    mirrored = heading - 2.0 * cosine * rim
    chord = 2.0 * cosine
    chords = jnp.floor(jnp.maximum(beyond_m, 0.0) / (chord * radius_m))
    last = beyond_m / radius_m - chords * chord
    # The heading passes the centre on the left or on the right.
    sense = jnp.where(rim[0] * heading[1] >= rim[1] * heading[0], 1.0, -1.0)
    turn = chords * 2.0 * jnp.arcsin(jnp.minimum(cosine, 1.0)) * sense
    bounced_m = radius_m * _turn(rim + last * mirrored, turn) - offset_m
    meets_rim = beyond_m > 0
    return (
        jnp.where(meets_rim, bounced_m, velocity_m_per_s * duration_s),
        jnp.where(meets_rim, speed * _turn(mirrored, turn), velocity_m_per_s),
    )


def _turn(vector, angle):
    """A vector of the plane turned by an angle."""
    x, y = vector
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([cosine * x - sine * y, sine * x + cosine * y])


def _turned(key, velocity_m_per_s, params):
    """Gauss-Markov velocities without drift (Liang and Haas 2003): ``a v + sqrt(1 - a^2) w``."""
    memory = params.velocity_correlation
    fresh = _sample_velocity(key, velocity_m_per_s.shape, params.speed_m_per_s)
    return memory * velocity_m_per_s + jnp.sqrt(1.0 - memory**2) * fresh


def _sample_velocity(key, shape, speed_m_per_s):
    """Normal velocities of a mean speed: it is ``sqrt(pi / 2)`` deviations of a component."""
    return jax.random.normal(key, shape) * speed_m_per_s * jnp.sqrt(2.0 / jnp.pi)
