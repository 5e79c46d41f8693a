"""Data-parallel learning: every device is a client with a copy of the whole model.

In ``vanilla_fl`` the device holds all of it. In ``splitfed`` the edge server holds the upper
part, one replica a device, and averages it with the rest at the end of the round (SplitFedV1,
Thapa et al. 2004.12088). Both learn alike except for the messages that the channel erases.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int, Key

from collapipe_jax.federated.aggregation import aggregate, participant_shares, select, server_update
from collapipe_jax.federated.erasures import sample_example_weights
from collapipe_jax.federated.learner import (
    LearningReport,
    StepSums,
    apply_gradient,
    local_steps,
    replicate,
    round_report,
    step_sums,
)
from collapipe_jax.federated.optimizers import Optimizers
from collapipe_jax.federated.shared_loss import loss_per_token
from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch, SplitModel, example_losses


class ClientsState(NamedTuple):
    """State from round to round.

    Attributes:
      params: global ``{"embedding", "encoder", "decoder"}``.
      client_optimizer: state of every client's own optimisers, leaves ``[N K, ...]``, the
        devices of a cluster side by side.
      server_optimizer: state of the server's optimiser.
    """

    params: Params
    client_optimizer: optax.OptState
    server_optimizer: optax.OptState


class ClientsOutcome(NamedTuple):
    """Effect of the round's decision and channel on learning.

    Attributes:
      samples: ``B_k [N, K]`` int32, each client's part of its cluster's mini-batch; a client
        with 0 does not participate.
      loss_probability: ``P_k [N, K]``, of a client's one message a step and its answer.
    """

    samples: Array
    loss_probability: Array


class _Rows(NamedTuple):
    """Examples of every client.

    Attributes:
      ids: ``[N K, max_samples]``, numbers of the examples among all ``N B`` of a step.
      counted: ``[N K, max_samples]`` bool, False on padding.
    """

    ids: Array
    counted: Array


class _Local(NamedTuple):
    """Carry of the local steps, leaves ``[N K, ...]``."""

    clients: Params
    optimizer: optax.OptState


@struct.dataclass(kw_only=True)
class DataParallelLearner:
    """The ``Learner`` of data-parallel policies.

    The clients of a cluster share its mini-batch in order: device k takes the ``B_k``
    examples behind those of the devices before it. It descends the loss per token of its
    part, with the erasure weights of docs/system-model.md, section 4, for one micro-batch.
    Whole models are averaged with weights ``w_n B_k / sum_j B_j`` (section 6), ``w_n``
    rescaled over the clusters with any sample. A client without a sample, or of a cluster of
    weight 0, contributes nothing and keeps its optimisers' state; without any participant
    nothing changes.

    Attributes:
      cluster_weight: ``w_n [N]``, >= 0.
      model: the model that is trained.
      optimizers: of the client part and the decoder of a client, and of the server.
      devices: K.
      max_samples: most samples of a client; time and memory grow with it, values do not
        depend on it. Parts beyond it, or beyond B in all, give NaN throughout.
    """

    cluster_weight: Any
    model: SplitModel = struct.field(pytree_node=False)
    optimizers: Optimizers = struct.field(pytree_node=False)
    devices: int = struct.field(pytree_node=False)
    max_samples: int = struct.field(pytree_node=False)

    def init(self, key: Key[Array, ""]) -> ClientsState:
        """State before the first round; the parameters are those of ``PipelineLearner``."""
        params = self.model.init(key)
        copies = replicate(params, self.cluster_weight.shape[0] * self.devices)
        return ClientsState(
            params=params,
            client_optimizer=jax.vmap(self._client_optimizer.init)(copies),
            server_optimizer=self.optimizers.server.init(params),
        )

    def outcome(self, decision: Any, cost: Any) -> ClientsOutcome:
        """Effect on learning of a data-parallel decision and of its cost."""
        return ClientsOutcome(decision.samples, cost.loss_probability)

    @jax.jit
    def round(
        self,
        state: ClientsState,
        batches: Batch,
        outcome: ClientsOutcome,
        key: Key[Array, ""],
        index: Int[Array, ""] | int,
    ) -> tuple[ClientsState, LearningReport]:
        """One round; arguments and results as in ``Learner``."""
        batch_size, samples = jax.tree.leaves(batches)[0].shape[2], outcome.samples
        shares = _client_shares(self.cluster_weight, samples)
        participates = shares > 0.0
        rows = _client_rows(samples, batch_size, self.max_samples)
        loss_probability = outcome.loss_probability.reshape(-1)

        def step(
            local: _Local, batch: Batch, step_key: Array, number: Array
        ) -> tuple[_Local, StepSums]:
            return self._local_step(local, batch, rows, loss_probability, shares, step_key, number)

        start = _Local(replicate(state.params, shares.size), state.client_optimizer)
        end, sums = local_steps(step, start, batches, key, index)
        mean = aggregate(end.clients, shares, participates, state.params)
        server, anyone = self.optimizers.server, participates.any()
        params, server_optimizer = server_update(
            state.params, mean, state.server_optimizer, server, anyone
        )
        learnt = params, round_report(sums, anyone)
        fits = (samples <= self.max_samples).all() & (samples.sum(1) <= batch_size).all()
        params, report = select(
            fits, learnt, jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), learnt)
        )
        return ClientsState(params, end.optimizer, server_optimizer), report

    def params(self, state: ClientsState) -> Params:
        """Parameters of the whole model."""
        return state.params

    def with_params(self, state: ClientsState, params: Params) -> ClientsState:
        """The state with other parameters of the whole model."""
        return state._replace(params=params)

    @property
    def _client_optimizer(self) -> optax.GradientTransformationExtraArgs:
        """Both optimisers as one over the whole model, each with norms of its own part."""
        parts = {"embedding": "client", "encoder": "client", "decoder": "decoder"}
        client, decoder = self.optimizers.client, self.optimizers.decoder
        return optax.partition({"client": client, "decoder": decoder}, parts)

    def _local_step(
        self,
        local: _Local,
        batch: Batch,
        rows: _Rows,
        loss_probability: Float[Array, " clients"],
        shares: Float[Array, " clients"],
        key: Key[Array, ""],
        number: Int[Array, ""],
    ) -> tuple[_Local, StepSums]:
        """One part of a mini-batch in every client; leaves of the batch ``[N, B, ...]``."""
        participates = shares > 0.0
        erasure_key, dropout_key = jax.random.split(key)
        # One message a step: its examples share one weight, whatever their number.
        survival = jax.vmap(sample_example_weights, in_axes=(0, None, None, 0))(
            jax.random.split(erasure_key, shares.size), 1, 1, loss_probability
        )[:, 0]
        own = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[rows.ids], batch)
        dropout_key = dropout_key if self.model.sizes.dropout_rate > 0.0 else None

        loss = functools.partial(_client_loss, model=self.model, dropout_key=dropout_key)
        gradients, (loss_sum, token_count) = jax.vmap(jax.grad(loss, has_aux=True))(
            local.clients, own, rows, survival
        )

        step = functools.partial(apply_gradient, self._client_optimizer)
        own = gradients, local.optimizer, local.clients
        stepped = jax.vmap(step, in_axes=(0, 0, 0, None))(*own, number)
        nothing = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), gradients)
        count = jnp.where(participates, rows.counted.sum(1), 0)
        erased_fraction = (count * (survival == 0.0)).sum() / jnp.maximum(count.sum(), 1)
        mean = aggregate(gradients, shares, participates, nothing)
        sums = step_sums(participates, loss_sum, token_count, erased_fraction, mean)
        return select(participates, _Local(*stepped), local), sums


def _client_shares(
    weights: Float[Array, " N"], samples: Int[Array, "N K"]
) -> Float[Array, " clients"]:
    """Weights of the clients in the mean, sum 1, from ``w_n`` and ``B_k``."""
    held = samples.sum(1)
    part = samples / jnp.maximum(held, 1)[:, None]
    return (participant_shares(weights, held > 0)[:, None] * part).reshape(-1)


def _client_rows(samples: Int[Array, "N K"], batch_size: int, max_samples: int) -> _Rows:
    """Consecutive parts of every cluster's mini-batch, padded to one width."""
    clusters, _ = samples.shape
    place = jnp.arange(max_samples)[None, None]
    first, count = (jnp.cumsum(samples, axis=1) - samples)[..., None], samples[..., None]
    # A client's padding repeats its own last example: it never reads the examples of others.
    row = first + jnp.minimum(place, jnp.maximum(count - 1, 0))
    row = jnp.minimum(row, batch_size - 1)
    ids = jnp.arange(clusters)[:, None, None] * batch_size + row
    return jax.tree.map(lambda a: a.reshape(-1, max_samples), _Rows(ids, place < count))


def _client_loss(
    params: Params,
    batch: Batch,
    rows: _Rows,
    survival: Float[Array, ""],
    *,
    model: SplitModel,
    dropout_key: Key[Array, ""] | None,
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
    """One client's loss, and its ``(loss_sum, token_count)`` without the erasure weight.

    Leaves of batch and rows are ``[max_samples, ...]``. Dropout goes by the numbers of the
    examples, so it does not depend on how the clients share the mini-batch.
    """
    losses, tokens = example_losses(model, params, batch, dropout_key, rows.ids)
    tokens = jnp.where(rows.counted, tokens, 0.0)
    loss = loss_per_token(losses, tokens, jnp.where(rows.counted, survival, 0.0))
    return loss, (jnp.where(rows.counted, losses, 0.0).sum(), tokens.sum())
