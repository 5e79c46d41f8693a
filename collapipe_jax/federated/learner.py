"""The interface of a way of learning, and the round that all ways have in common."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from collapipe_jax.federated.optimizers import Transformations
from collapipe_jax.federated.placement import spread
from collapipe_jax.models.adapters import join
from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch, SplitModel


class LearningReport(NamedTuple):
    """Report of a round of learning, all ``[]``; NaN without participants."""

    # Training loss in nats a prediction, over all examples of the participants and all local steps,
    # erased or not
    loss: Array
    erased_fraction: Array  # share of these examples that were erased
    # Norm of the gradient over all parameters, the weighted mean over the participants, averaged
    # over the local steps
    gradient_norm: Array


class Learner(Protocol):
    """A way of learning: pure functions of a state, an outcome of the network, and a key.

    ``params`` of a state are those of the whole model, ``{"embedding", "encoder", "decoder"}``.
    """

    @property
    def model(self) -> SplitModel:
        """The model that is trained."""
        ...

    @property
    def copies(self) -> int:
        """Number of clients, each of which trains a copy of its own."""
        ...

    def init(self, params: Params) -> Any:
        """State before the first round, with fresh optimisers."""

    def outcome(self, decision: Any, cost: Any) -> Any:
        """Effect on learning of a round's decision and of its cost."""

    def round(
        self, state: Any, batches: Batch, outcome: Any, key: Array, index: Array | int
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

    Parameters are those that are trained (``adapters.split``), but for the base's, which stand
    here once and which no client has a copy of.
    """

    client: Params  # global parameters of which every client trains a copy
    client_optimizer: optax.OptState  # state of every client's own optimiser, leaves ``[N, ...]``
    decoder: Params | None  # that of the edge server; None where every client has its own
    decoder_optimizer: optax.OptState | None  # state of the decoder's optimiser
    server_optimizer: optax.OptState  # state of the server's optimiser
    base: Params  # frozen parameters of embedding and encoder; without leaves where there are none

    @property
    def params(self) -> Params:
        """Parameters of the whole model."""
        whole = join(self.client, self.base)
        return whole if self.decoder is None else {**whole, "decoder": self.decoder}


class StepGradients(NamedTuple):
    """Gradients of a local step."""

    clients: Params  # of every client's copy, leaves ``[N, ...]``
    # Of the one decoder, weighted mean over the participants; None without it
    decoder: Params | None
    loss_sum: Array  # ``[N]``, without erasure weights
    token_count: Array  # ``[N]``, of erased examples too
    erased_fraction: Array  # share of the participants' examples that were erased


def learn_round(
    gradients_of: Callable[[Params, Any, Params, Batch, Array], StepGradients],
    state: LearningState,
    shares: Float[Array, " N"],
    optimizers: Transformations,
    batches: Batch,
    key: Key[Array, ""],
    index: Int[Array, ""] | int,
) -> tuple[LearningState, LearningReport]:
    """One round; without a share, a client contributes nothing and keeps its optimiser's state.

    The server's step is on the pseudo-gradient "before less mean" (Reddi et al. 2003.00295);
    ``optax.sgd(1.0)`` is plain averaging.

    Args:
      gradients_of: function of the clients' copies, the decoder, the base, a batch, and a random
        key.
      state: before the round.
      shares, batches: as in ``federated``.
      optimizers: of every copy, of the one decoder, and of the server.
      key, index: as in ``Learner``.
    """
    participates = shares > 0.0
    anyone = participates.any()

    def step(local: tuple, inputs: tuple[Batch, Array, Array]) -> tuple[tuple, tuple]:
        client, server = local
        (copies, _), (decoder, _), (batch, step_key, number) = client, server, inputs
        found = gradients_of(copies, decoder, state.base, batch, step_key)
        found = found._replace(clients=spread(found.clients))
        client_step = partial(apply_gradient, optimizers.client)
        client = jax.vmap(client_step, in_axes=(0, 0, None, 0))(
            found.clients, client, number, participates
        )
        if found.decoder is not None:
            server = apply_gradient(optimizers.decoder, found.decoder, server, number, anyone)
        gradient = aggregate(found.clients, shares), found.decoder
        sums = (
            jnp.where(participates, found.loss_sum, 0.0).sum(),
            jnp.where(participates, found.token_count, 0.0).sum(),
            found.erased_fraction,
            jnp.sqrt(optax.tree.vdot(gradient, gradient)),
        )
        return (client, server), sums

    count = shares.size
    copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), state.client)
    copies = spread(copies)
    clients, server = (copies, state.client_optimizer), (state.decoder, state.decoder_optimizer)
    steps = jax.tree.leaves(batches)[0].shape[0]
    inputs = batches, jax.random.split(key, steps), index * steps + jnp.arange(steps)
    ((copies, client_optimizer), server), (loss_sum, token_count, erased, norm) = jax.lax.scan(
        step, (clients, server), inputs
    )
    pseudo_gradient = jax.tree.map(jnp.subtract, state.client, aggregate(copies, shares))
    before = state.client, state.server_optimizer
    client, server_optimizer = apply_gradient(
        optimizers.server, pseudo_gradient, before, index, anyone
    )
    report = LearningReport(loss_sum.sum() / token_count.sum(), erased.mean(), norm.mean())
    report = jax.tree.map(lambda number: jnp.where(anyone, number, jnp.nan), report)
    return LearningState(client, client_optimizer, *server, server_optimizer, state.base), report


def apply_gradient(
    optimizer: optax.GradientTransformation,
    gradient: PyTree[Float[Array, "..."]],
    held: tuple[PyTree[Float[Array, "..."]], optax.OptState],
    number: Int[Array, ""] | int,
    counts: Bool[Array, ""] | bool = True,
) -> tuple[PyTree[Float[Array, "..."]], optax.OptState]:
    """Parameters and optimiser's state after step ``number``, or as held if it does not count."""
    params, state = held
    update = optax.with_extra_args_support(optimizer).update
    updates, stepped = update(gradient, state, params, step=number)
    return optax.tree.where(counts, (optax.apply_updates(params, updates), stepped), held)


def participant_shares(
    weights: Float[Array, " N"], participates: Bool[Array, " N"]
) -> Float[Array, " N"]:
    """Weights rescaled to sum 1 over the participants; all 0 without any."""
    held = jnp.where(participates, weights, 0.0)
    total = held.sum()
    return held / jnp.where(total > 0.0, total, 1.0)


def aggregate(
    copies: PyTree[Float[Array, "N ..."]],
    shares: Float[Array, " N"],
) -> PyTree[Float[Array, "..."]]:
    """Weighted mean of the participants' parameters or gradients; 0 without participants.

    Source: docs/system-model.md, section 1, step 5 (McMahan et al. 1602.05629).

    Args:
      copies: leaves ``[N, ...]``. Those of share 0 are never read, NaN included.
      shares: as in ``federated``.
    """

    def mean(leaf: Array) -> Array:
        counted = (shares > 0.0).reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.tensordot(shares, jnp.where(counted, leaf, 0.0), axes=1)

    return jax.tree.map(mean, copies)
