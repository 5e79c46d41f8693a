"""Optimisers by name, their schedules and memory, and methods against drift of clients."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, PyTree

from collapipe_jax.learning.federated.aggregation import aggregate
from collapipe_jax.learning.federated.quantisation import UpdateQuantiser
from collapipe_jax.learning.federated.secure_aggregation import SecureAggregation
from collapipe_jax.learning.models.counts import NUMBER_BYTES

_MOMENTUM = 0.9  # of "momentum", and of the first moment of "adam"

OPTIMIZERS = {"sgd": 8, "momentum": 12, "adam": 16, "adamw": 16}
"""Bytes in float32 of weight, gradient and the optimiser's own numbers, a parameter."""
SERVER_OPTIMIZERS = tuple(name for name in OPTIMIZERS if name != "adamw")
"""Those of the server, whose gradient has the weight decay of the clients already."""
_UNDECAYED = ("bias", "scale")
"""Names of parameters without weight decay: biases, and scales of norms."""
SCHEDULES = ("constant", "cosine", "inverse_sqrt")

_ADAM = optax.scale_by_adam(b1=_MOMENTUM, b2=0.98, eps=1e-9)


@struct.dataclass(kw_only=True)
class Optimizer:
    """An optimiser whose numbers are array values: other rates or steps compile nothing anew."""

    name: str = struct.field(pytree_node=False)  # one of :data:`OPTIMIZERS`
    schedule: str = struct.field(pytree_node=False)  # one of :data:`SCHEDULES`
    clip_norm: float = struct.field(pytree_node=False)  # largest norm of a gradient; 0 is off
    learning_rate: Any  # peak step size
    warmup_steps: Any
    total_steps: Any
    weight_decay: Any  # of "adamw"; others do not read it

    def step_size(self, step: ArrayLike) -> Array:
        """Learning rate of a step, which counts from 0."""
        warmup = jnp.asarray(self.warmup_steps, jnp.float32)
        after = jnp.maximum(step - warmup, 0.0)
        if self.schedule == "cosine":
            length = self.total_steps - warmup
            share = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(after, length) / length))
        elif self.schedule == "inverse_sqrt":
            start = jnp.maximum(warmup, 1.0)
            share = jnp.sqrt(start / (start + after))
        else:
            share = jnp.ones_like(after)
        # Counted from 1: the very first step already moves.
        rising = (step + 1.0) / jnp.maximum(warmup, 1.0)
        return jnp.asarray(self.learning_rate * jnp.where(step < warmup, rising, share))

    @property
    def transformation(self) -> optax.GradientTransformationExtraArgs:
        """This optimiser for optax; ``update`` needs the keyword ``step``.

        A participant that misses rounds keeps its moments but not its place in the schedule.
        """
        direction = {
            "sgd": optax.identity(),
            "momentum": optax.trace(decay=_MOMENTUM),
            "adam": _ADAM,
            "adamw": optax.chain(_ADAM, optax.add_decayed_weights(self.weight_decay, decayed)),
        }[self.name]
        clipping = [optax.clip_by_global_norm(self.clip_norm)] if self.clip_norm else []
        scale: Any = self._scale  # optax types no update with further arguments
        scaling = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), scale)
        return optax.with_extra_args_support(optax.chain(*clipping, direction, scaling))

    def _scale(self, updates: Any, state: Any, params: Any = None, *, step: ArrayLike) -> tuple:
        """Multiply by the negative step size."""
        del params
        size = -self.step_size(step)
        return jax.tree.map(lambda leaf: size.astype(leaf.dtype) * leaf, updates), state


def decayed(params: Any) -> Any:
    """Which parameters weight decay shrinks: all but those named in :data:`_UNDECAYED`.

    These are the parameters that have a single axis in a block.
    """

    def is_decayed(path: Any, _: Any) -> bool:
        return not any(getattr(step, "key", None) in _UNDECAYED for step in path[-1:])

    return jax.tree.map_with_path(is_decayed, params)


class Transformations(NamedTuple):
    """The optimisers of a run, for optax."""

    client: optax.GradientTransformation
    decoder: optax.GradientTransformation
    server: optax.GradientTransformation


@struct.dataclass(kw_only=True)
class Optimizers:
    """The optimisers of a run."""

    client: Optimizer  # of embedding and encoder, one a cluster or client
    decoder: Optimizer  # of the decoder or head
    server: Optimizer  # on the aggregated parameters; that of "sgd" at rate 1 is averaging

    @property
    def transformations(self) -> Transformations:
        """These optimisers for optax."""
        every = self.client, self.decoder, self.server
        return Transformations(*(one.transformation for one in every))


def make_optimizer(
    name: str,
    learning_rate: float,
    *,
    schedule: str = "constant",
    warmup_steps: int = 0,
    total_steps: int = 0,
    clip_norm: float = 0.0,
    weight_decay: float = 0.0,
) -> Optimizer:
    """An optimiser by name.

    Args:
      name: one of :data:`OPTIMIZERS`.
      learning_rate: peak step size.
      schedule: one of :data:`SCHEDULES`, each after a linear warm-up: "cosine" ends with 0 at
        ``total_steps``, "inverse_sqrt" is ``sqrt(warmup / step)`` (Vaswani et al. 1706.03762).
      warmup_steps: 0 starts at the peak; "inverse_sqrt" then decays as if it were 1.
      total_steps: end of "cosine", beyond the warm-up; others do not read it.
      clip_norm: largest global norm of a gradient; 0 is off.
      weight_decay: of "adamw": a step of size ``r`` takes ``r weight_decay w`` off a weight ``w``,
        beside Adam's step (Loshchilov and Hutter 1711.05101). :func:`decayed` says which weights.
    """
    return Optimizer(
        name=name,
        schedule=schedule,
        clip_norm=clip_norm,
        learning_rate=float(learning_rate),
        warmup_steps=int(warmup_steps),
        total_steps=int(total_steps),
        weight_decay=float(weight_decay),
    )


# What a federated method adds to local descent; the defaults are federated averaging.

CLIENT_MOMENTS = ("keep", "average", "reset")
"""What happens to the moments of the clients' optimisers at the end of a round."""


@struct.dataclass(kw_only=True)
class Rules:
    """Rules of a run; None is off and adds nothing to programs or states."""

    # ``mu`` of FedProx: clients descend ``F_n(w) + mu / 2 |w - w_global|^2``
    # (Li et al. 1812.06127)
    proximal_weight: Any = None
    # On the aggregated step of token rows, as in ``embedding_rows.row_factors``
    embedding_rate_factor: Any = None
    # Whether clients get and return those rows alone that they read, as in ``rows_held``
    touched_rows: bool = struct.field(pytree_node=False, default=False)
    # Decay in [0, 1) of ``updated_average``
    server_average: Any = None
    # How the server learns the mean of the updates without any single one
    secure_aggregation: SecureAggregation | None = None
    # How updates are rounded on their way up
    update_quantiser: UpdateQuantiser | None = None
    # Deviation of the noise on activations of pipelines, as in ``activation_noise``
    activation_noise: Any = None
    # Whether control variates correct the gradients, as in ``control_variates`` (SCAFFOLD)
    control_variates: bool = struct.field(pytree_node=False, default=False)
    # ``privacy.ClusterPrivacy`` and ``privacy.ExamplePrivacy``, at most one of them
    cluster_privacy: Any = None
    example_privacy: Any = None
    # One of :data:`CLIENT_MOMENTS`. Those of a client that sits out share its fate
    client_moments: str = struct.field(pytree_node=False, default="keep")


def numbers_per_parameter(training: Any) -> int:
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
