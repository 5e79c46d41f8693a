"""Powers lowered until caps on energy hold."""

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.allocation.allocate import to_resources
from collapipe_jax.allocation.energy_caps import by_node, log_excess, spend_on_air
from collapipe_jax.allocation.projected_gradient import LEAST_LOG_POWER
from collapipe_jax.allocation.smooth_maximum import TEMPERATURE
from collapipe_jax.allocation.variables import Multipliers, Resources
from collapipe_jax.cost.chains import Chains, heard_w
from collapipe_jax.cost.problem import RoundProblem
from collapipe_jax.cost.terms import send

_NEWTON_STEPS, _LARGEST_SHIFT, _LEAST_ELASTICITY = 6, 3.0, 1e-3


def on_air(
    problem: RoundProblem, chain: Chains, logs: Resources, multipliers: Multipliers
) -> tuple[Array, Array]:
    """Energies of nodes on air, and their slopes by logarithms of all powers of the node.

    Args:
      problem: with lanes.
      chain: of the layout.
      logs: logarithms of shares, and of powers over their maxima.
      multipliers: those of messages count, for the slopes.

    Returns:
      ``[P, N, ...]`` twice.
    """
    point = to_resources(problem, logs)
    power_w = jnp.where(chain.active, point.d2d_power, 0.0)
    noise_w = chain.noise_w + heard_w(chain.cross_gain, power_w)
    sent = send(problem.radio, chain, point, multipliers, noise_w, TEMPERATURE)
    messages = sent.hop, sent.move, sent.up
    spent = spend_on_air(chain, point, *(one.true_s for one in messages))
    rising = spend_on_air(chain, point, *((1.0 - one.gain) * one.true_s for one in messages))
    return by_node(chain, spent), by_node(chain, rising)


def lower_to_caps(
    problem: RoundProblem, chain: Chains, logs: Resources, multipliers: Multipliers
) -> Resources:
    """Powers of the nodes above their caps lowered, all of a node by one factor.

    By Newton's method for all nodes at once: the logarithm of a node's energy is convex and
    increasing in that of the factor, and falls with the others' interference.

    Args:
      problem, logs, multipliers: as in :func:`on_air`.
      chain: with caps.
    """

    def lowered(shift):
        return logs._replace(
            d2d_power=jnp.maximum(logs.d2d_power + shift, LEAST_LOG_POWER),
            d2e_power=jnp.maximum(logs.d2e_power + shift[0], LEAST_LOG_POWER),
        )

    def newton(_, shift):
        spent_j, slope_j = on_air(problem, chain, lowered(shift), multipliers)
        elasticity = jnp.maximum(slope_j / jnp.maximum(spent_j, 1e-30), _LEAST_ELASTICITY)
        step = jnp.clip(log_excess(chain, spent_j) / elasticity, -_LARGEST_SHIFT, _LARGEST_SHIFT)
        return jnp.where(chain.active, jnp.minimum(shift - step, 0.0), 0.0)

    still = jnp.zeros_like(chain.caps.room_j)
    return lowered(jax.lax.fori_loop(0, _NEWTON_STEPS, newton, still))
