"""The interface of a way of learning, and the parts of a round that all ways share."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch

Carry = TypeVar("Carry")


class LearningReport(NamedTuple):
    """Report of a round of learning, all ``[]``; NaN without participants.

    Attributes:
      loss: training loss in nats a prediction, over all examples of the participants and all
        local steps, erased or not.
      erased_fraction: share of these examples that were erased.
      gradient_norm: norm of the gradient over all parameters, the weighted mean over the
        participants, averaged over the local steps.
    """

    loss: Array
    erased_fraction: Array
    gradient_norm: Array


class Learner(Protocol):
    """A way of learning: pure functions of a state, an outcome of the network, and a key."""

    def init(self, key: Array) -> Any:
        """State before the first round, with fresh parameters and optimisers."""

    def outcome(self, decision: Any, cost: Any) -> Any:
        """Effect on learning of a round's decision and of its cost."""

    def round(
        self, state: Any, batches: Batch, outcome: Any, key: Array, index: int
    ) -> tuple[Any, LearningReport]:
        """H local steps, aggregation, and the server's step.

        Args:
          state: before the round.
          batches: leaves ``[H, N, B, ...]``.
          outcome: array values; new ones cost no compilation.
          key: random key of the round (dropout and erasures).
          index: number of the round in the run, from 0, an array value. Schedules go by it.
        """
        ...

    def params(self, state: Any) -> Params:
        """Parameters of the whole model, ``{"embedding", "encoder", "decoder"}``."""
        ...

    def with_params(self, state: Any, params: Params) -> Any:
        """The state with other parameters of the whole model."""


class StepSums(NamedTuple):
    """Contribution of a local step to the report, all ``[]``."""

    loss_sum: Array
    token_count: Array
    erased_fraction: Array
    gradient_norm: Array


def step_sums(
    participates: Bool[Array, " N"],
    loss_sum: Float[Array, " N"],
    token_count: Float[Array, " N"],
    erased_fraction: Float[Array, ""],
    gradient: PyTree[Float[Array, "..."]],
) -> StepSums:
    """Sums over the participants of a local step.

    Args:
      participates: as in ``federated``.
      loss_sum, token_count: without erasure weights.
      erased_fraction: share of the participants' examples that were erased.
      gradient: weighted mean over the participants.
    """
    return StepSums(
        loss_sum=jnp.where(participates, loss_sum, 0.0).sum(),
        token_count=jnp.where(participates, token_count, 0.0).sum(),
        erased_fraction=erased_fraction,
        gradient_norm=jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient))),
    )


def local_steps(
    step: Callable[[Carry, Batch, Array, Array], tuple[Carry, StepSums]],
    start: Carry,
    batches: Batch,
    key: Key[Array, ""],
    index: Int[Array, ""] | int,
) -> tuple[Carry, StepSums]:
    """Scan over the H local steps of a round.

    Args:
      step: function of the carry, a batch, a random key, and the number of the step in the run.
      start: carry before the first step.
      batches: as in ``federated``.
      key: random key of the round.
      index: number of the round.

    Returns:
      The carry, and sums with leaves ``[H]``.
    """
    steps = jax.tree.leaves(batches)[0].shape[0]
    numbers = index * steps + jnp.arange(steps)
    inputs = batches, jax.random.split(key, steps), numbers
    return jax.lax.scan(lambda carry, own: step(carry, *own), start, inputs)


def apply_gradient(
    optimizer: optax.GradientTransformation,
    gradient: PyTree[Float[Array, "..."]],
    state: optax.OptState,
    params: PyTree[Float[Array, "..."]],
    number: Int[Array, ""],
) -> tuple[PyTree[Float[Array, "..."]], optax.OptState]:
    """Parameters and state of an optimiser after one step.

    Args:
      optimizer: from ``make_optimizer``, or any of optax.
      gradient, state, params: as optax takes them.
      number: number of the step in the run, by which schedules go.
    """
    update = optax.with_extra_args_support(optimizer).update
    updates, state = update(gradient, state, params, step=number)
    return optax.apply_updates(params, updates), state


def round_report(sums: StepSums, anyone: Bool[Array, ""]) -> LearningReport:
    """Report of a round from the sums of its steps, leaves ``[H]``; NaN unless ``anyone``."""
    report = LearningReport(
        loss=sums.loss_sum.sum() / sums.token_count.sum(),
        erased_fraction=sums.erased_fraction.mean(),
        gradient_norm=sums.gradient_norm.mean(),
    )
    return jax.tree.map(lambda number: jnp.where(anyone, number, jnp.nan), report)


def replicate(tree: PyTree[Array], copies: int) -> PyTree[Array]:
    """Leaves ``[...]`` to ``[copies, ...]``."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (copies, *leaf.shape)), tree)
