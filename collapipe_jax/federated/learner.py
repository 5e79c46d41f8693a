"""The interface of a way of learning, and the round that all ways share."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key, PyTree

from collapipe_jax.federated.aggregation import aggregate, server_update
from collapipe_jax.federated.optimizers import Optimizers
from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch


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
    """A way of learning: pure functions of a state, an outcome of the network, and a key.

    ``params`` of a state are those of the whole model, ``{"embedding", "encoder", "decoder"}``.
    """

    def init(self, params: Params) -> Any:
        """State before the first round, with fresh optimisers."""

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


class LearningState(NamedTuple):
    """State from round to round.

    Attributes:
      client: global parameters of which every client trains a copy.
      client_optimizer: state of every client's own optimiser, leaves ``[N, ...]``.
      decoder: that of the edge server; None where every client has its own.
      decoder_optimizer: state of the decoder's optimiser.
      server_optimizer: state of the server's optimiser.
    """

    client: Params
    client_optimizer: optax.OptState
    decoder: Params | None
    decoder_optimizer: optax.OptState | None
    server_optimizer: optax.OptState

    @property
    def params(self) -> Params:
        """Parameters of the whole model."""
        return self.client if self.decoder is None else {**self.client, "decoder": self.decoder}


class StepGradients(NamedTuple):
    """Gradients of a local step.

    Attributes:
      clients: of every client's copy, leaves ``[N, ...]``.
      decoder: of the one decoder, weighted mean over the participants; None without it.
      loss_sum: ``[N]``, without erasure weights.
      token_count: ``[N]``, of erased examples too.
      erased_fraction: share of the participants' examples that were erased.
    """

    clients: Params
    decoder: Params | None
    loss_sum: Array
    token_count: Array
    erased_fraction: Array


def learn_round(
    gradients_of: Callable[[Params, Any, Batch, Array], StepGradients],
    state: LearningState,
    shares: Float[Array, " N"],
    optimizers: Optimizers,
    batches: Batch,
    key: Key[Array, ""],
    index: Int[Array, ""] | int,
    mesh: Mesh | None = None,
) -> tuple[LearningState, LearningReport]:
    """One round; without a share, a client contributes nothing and keeps its optimiser's state.

    Args:
      gradients_of: function of the clients' copies, the decoder, a batch, and a random key.
      state: before the round.
      shares, batches: as in ``federated``.
      optimizers: of every copy, of the one decoder, and of the server.
      key, index: as in ``Learner``.
      mesh: as in ``aggregate``.
    """
    participates = shares > 0.0
    anyone = participates.any()

    def step(local: tuple, inputs: tuple[Batch, Array, Array]) -> tuple[tuple, tuple]:
        (copies, own_states), (decoder, decoder_state) = client, server = local
        batch, step_key, number = inputs
        found = gradients_of(copies, decoder, batch, step_key)
        stepped = jax.vmap(partial(apply_gradient, optimizers.client), in_axes=(0, 0, 0, None))(
            found.clients, own_states, copies, number
        )
        client = jax.vmap(optax.tree.where)(participates, stepped, client)
        if decoder is not None:
            moved = apply_gradient(
                optimizers.decoder, found.decoder, decoder_state, decoder, number
            )
            server = optax.tree.where(anyone, moved, server)
        gradient = aggregate(found.clients, shares), found.decoder
        sums = (
            jnp.where(participates, found.loss_sum, 0.0).sum(),
            jnp.where(participates, found.token_count, 0.0).sum(),
            found.erased_fraction,
            jnp.sqrt(optax.tree.vdot(gradient, gradient)),
        )
        return (client, server), sums

    steps = jax.tree.leaves(batches)[0].shape[0]
    start = (replicate(state.client, shares.size), state.client_optimizer), state[2:4]
    inputs = batches, jax.random.split(key, steps), index * steps + jnp.arange(steps)
    end, (loss_sum, token_count, erased, norm) = jax.lax.scan(step, start, inputs)
    (copies, client_optimizer), (decoder, decoder_optimizer) = end
    client, server_optimizer = server_update(
        state.client,
        aggregate(copies, shares, mesh),
        state.server_optimizer,
        optimizers.server,
        anyone,
    )
    report = LearningReport(loss_sum.sum() / token_count.sum(), erased.mean(), norm.mean())
    report = jax.tree.map(lambda number: jnp.where(anyone, number, jnp.nan), report)
    after = client, client_optimizer, decoder, decoder_optimizer, server_optimizer
    return LearningState(*after), report


def apply_gradient(
    optimizer: optax.GradientTransformation,
    gradient: PyTree[Float[Array, "..."]],
    state: optax.OptState,
    params: PyTree[Float[Array, "..."]],
    number: Int[Array, ""],
) -> tuple[PyTree[Float[Array, "..."]], optax.OptState]:
    """Parameters and state of an optimiser after step ``number`` of the run."""
    update = optax.with_extra_args_support(optimizer).update
    updates, state = update(gradient, state, params, step=number)
    return optax.apply_updates(params, updates), state


def replicate(tree: PyTree[Array], copies: int) -> PyTree[Array]:
    """Leaves ``[...]`` to ``[copies, ...]``."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (copies, *leaf.shape)), tree)
