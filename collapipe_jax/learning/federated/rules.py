"""What a federated method adds to local descent; the defaults are federated averaging."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, PyTree

from collapipe_jax.learning.federated.aggregation import aggregate
from collapipe_jax.learning.federated.optimizers import OPTIMIZERS
from collapipe_jax.learning.federated.secure_mean import SecureAggregation
from collapipe_jax.learning.models.counts import NUMBER_BYTES

CLIENT_MOMENTS = ("keep", "average", "reset")
"""What happens to the moments of the clients' optimisers at the end of a round."""


@struct.dataclass(kw_only=True)
class Rules:
    """Rules of a run; None is off and adds nothing to programs or states."""

    # ``mu`` of FedProx: clients descend ``F_n(w) + mu / 2 |w - w_global|^2``
    # (Li et al. 1812.06127)
    proximal_weight: Any = None
    # On the aggregated step of token rows, as in ``token_rows.row_factors``
    embedding_rate_factor: Any = None
    # Decay in [0, 1) of ``updated_average``
    server_average: Any = None
    # How the server learns the mean of the updates without any single one
    secure_aggregation: SecureAggregation | None = None
    # Deviation of the noise on activations of pipelines, as in ``activation_noise``
    activation_noise: Any = None
    # Whether control variates correct the gradients, as in ``control_variates`` (SCAFFOLD)
    control_variates: bool = struct.field(pytree_node=False, default=False)
    # ``privacy.ClusterPrivacy`` and ``privacy.ExamplePrivacy``, at most one of them
    cluster_privacy: Any = None
    example_privacy: Any = None
    # One of :data:`CLIENT_MOMENTS`. Those of a client that sits out share its fate
    client_moments: str = struct.field(pytree_node=False, default="keep")


def numbers_sent(training: Any) -> int:
    """Numbers that travel for every parameter: itself, averaged moments, and a control variate.

    The argument is the section ``training`` of a configuration.
    """
    moments = OPTIMIZERS[training["client_optimizer"]] // NUMBER_BYTES - 2
    averaged = moments if training["client_moments"] == "average" else 0
    return 1 + averaged + bool(training["control_variates"])


def bytes_held(training: Any) -> int:
    """Bytes that a client holds of every parameter: those of its optimiser, and of the rules.

    FedProx keeps the global parameter. SCAFFOLD keeps it as well, for the change of the control
    variate, beside this and that of the server.
    """
    kept = bool(training["proximal_weight"]) + 3 * bool(training["control_variates"])
    return OPTIMIZERS[training["client_optimizer"]] + kept * NUMBER_BYTES


def proximal_gradient(gradients: PyTree, copies: PyTree, start: PyTree, weight: Any) -> PyTree:
    """Gradients ``[N, ...]`` of FedProx at the clients' copies, of a round from ``start``."""
    if weight is None:
        return gradients
    return jax.tree.map(lambda g, own, w: g + weight * (own - w[None]), gradients, copies, start)


def averaged_moments(
    states: PyTree[Array], shares: Float[Array, " N"], counts: Bool[Array, ""]
) -> PyTree[Array]:
    """Optimisers' states ``[N, ...]``, all the weighted mean of the participants'.

    Whole numbers count steps: all get the largest. Without participants (``counts``) nothing
    changes.
    """

    def mean(leaf: Array) -> Array:
        is_mean = jnp.issubdtype(leaf.dtype, jnp.floating)
        found = aggregate(leaf, shares.astype(leaf.dtype)) if is_mean else leaf.max(0)
        return jnp.where(counts, jnp.broadcast_to(found, leaf.shape), leaf)

    return jax.tree.map(mean, states)


def updated_average(average: PyTree, params: PyTree, decay: Any, index: Array | int) -> PyTree:
    """Exponential average after the round of this number, without bias.

    After T rounds it is ``sum_t d^(T-t) x_t / sum_t d^(T-t)`` of the parameters ``x_t`` after
    rounds 1 to T: no trace is left of those at the start.
    """
    if average is None:
        return None
    rounds = jnp.asarray(index, jnp.float32) + 1.0
    step = (1.0 - decay) / (1.0 - decay**rounds)
    return jax.tree.map(lambda mean, new: mean + step * (new - mean), average, params)
