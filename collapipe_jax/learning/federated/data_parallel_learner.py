"""Data-parallel learning: every client has a copy of the whole model.

In ``vanilla_fl`` and ``hierarchical_fl`` a device holds all of it, and means of means are one mean.
In ``control_unit_fl`` the only client of a cluster is its control unit. In ``splitfed`` the edge
server holds the upper part, one replica a device, and averages it with the rest at the end of the
round (SplitFedV1, Thapa et al. 2004.12088). All learn alike except for messages that are erased.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Int, Key

from collapipe_jax.core.batch_axis import pick
from collapipe_jax.learning.federated.aggregation import (
    loss_per_token,
    participant_shares,
    participation_of,
    sample_example_weights,
)
from collapipe_jax.learning.federated.embedding_rows import met_rows_by_table
from collapipe_jax.learning.federated.learner import (
    COPY,
    EXAMPLE,
    LearningReport,
    LearningState,
    Method,
    StepGradients,
    initial_state,
    is_on_mesh,
    learn_round,
    spread,
)
from collapipe_jax.learning.federated.optimizers import Optimizers, Rules, Transformations
from collapipe_jax.learning.models.adapters import join, split
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.split_model import Batch, SplitModel, example_losses


class ClientsOutcome(NamedTuple):
    """Effect of the round's decision and channel on learning."""

    # ``B_k [N, K]`` int32, each client's part of its cluster's mini-batch; a client with 0 does not
    # participate
    samples: Array
    loss_probability: Array  # ``P_k [N, K]``, of a client's message and its answer
    # Encoder blocks of every client, of split models alone: the other ones are the server's
    client_blocks: Array | None = None
    micro_batches: Array | int = 1  # most of a client's part, each a message of its own


_Loss = Callable[..., tuple[Array, Array]]
"""``DataParallelLearner._loss`` of the copy, its tokens, and examples with their weights."""


@struct.dataclass(kw_only=True)
class DataParallelLearner:
    """The ``Learner`` of data-parallel policies.

    The clients of a cluster share its mini-batch in order: device k takes the ``B_k``
    examples behind those of the devices before it. It descends the loss per token of its
    part, with the erasure weights of docs/system-model.md, section 4, for its micro-batches.
    Whole models are averaged with weights ``w_n B_k / sum_j B_j`` (section 6), ``w_n``
    rescaled over the clusters with any sample. A client without a sample, or of a cluster of
    weight 0, contributes nothing and keeps its optimisers' state; without any participant
    nothing changes.

    A client adds up the gradients of chunks of its part, as many as the round asks for. Parts
    beyond B in all give NaN parameters and report.
    """

    cluster_weight: Any  # ``w_n [N]``, >= 0
    # Of the client part and the decoder of a client, and of the server
    optimizers: Optimizers
    model: SplitModel = struct.field(pytree_node=False)  # the model that is trained
    devices: int = struct.field(pytree_node=False)  # clients of a cluster, K or 1
    rules: Rules = Rules()  # of the clients, over the whole model

    @property
    def copies(self) -> int:
        """Number of clients."""
        return self.cluster_weight.shape[-1] * self.devices

    def chunk(self, batch_size: int) -> int:
        """Examples of a client at once, an even part; values do not depend on it."""
        return -(-batch_size // self.devices)

    def init(self, params: Params) -> LearningState:
        """State before the first round, with fresh optimisers.

        Clients hold decoders too; those of a cluster have their optimisers' states side by side.
        """
        trained, base = split(params, self.model.sizes.adapters)
        return initial_state(trained, None, base, self._method, self.copies)

    def outcome(self, decision: Any, cost: Any) -> ClientsOutcome:
        """Effect on learning of a data-parallel decision and of its cost."""
        rules, blocks = self.rules, None
        if rules.secure_aggregation is not None or rules.update_quantiser is not None:
            blocks = None if decision.whole_model else decision.client_blocks
        return ClientsOutcome(
            decision.samples, cost.loss_probability, blocks, decision.micro_batches
        )

    @jax.jit
    def round(
        self,
        state: LearningState,
        batches: Batch,
        outcome: ClientsOutcome,
        key: Key[Array, ""],
        index: Int[Array, ""] | int,
    ) -> tuple[LearningState, LearningReport]:
        """One round; arguments and results as in ``Learner``."""
        batch_size, samples = jax.tree.leaves(batches)[0].shape[2], outcome.samples
        shares = _client_shares(self.cluster_weight, samples)
        chunk = self.chunk(batch_size)
        chunks = -(-batch_size // chunk)
        ids, counted = _client_rows(samples, batch_size, chunks * chunk)
        loss_probability, held = outcome.loss_probability.reshape(-1), samples.reshape(-1)
        micro_batches = jnp.clip(held, 1, outcome.micro_batches)

        def gradients_of(
            clients: Params, decoder: None, base: Params, batch: Batch, step_key: Array
        ) -> StepGradients:
            erasure_key, dropout_key, noise_key = jax.random.split(step_key, 3)
            # Examples of a message share one weight.
            survival = jax.vmap(sample_example_weights, in_axes=(0, None, 0, 0, 0))(
                jax.random.split(erasure_key, shares.size),
                chunks * chunk,
                micro_batches,
                loss_probability,
                held,
            )
            batch = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)
            # Nobody's parameters change the number of tokens: of this nothing else is computed.
            _, tokens = example_losses(self.model, join(pick(clients, 0), base), batch)
            tokens = jnp.where(counted, tokens[ids], 0.0)
            parts = jax.tree.map(lambda leaf: leaf[ids], batch), ids, counted, survival
            loss = functools.partial(self._loss, base, dropout_key)
            if self.rules.example_privacy is None:
                shape = shares.size, chunks, chunk
                parts = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[2:]), parts)
                parts = spread(parts, (COPY, None, EXAMPLE))
                turns = jnp.minimum(-(-held // chunk), chunks)
                gradients, loss_sum = _over_clients(
                    lambda each: _summed_gradient(loss, *each),
                    (clients, tokens, parts, turns),
                    one_turn=chunks == 1,
                )
            else:
                # One client after the other: a CPU is slow at many small products at once.
                keys = jax.random.split(noise_key, shares.size)
                gradients, loss_sum = jax.lax.map(
                    lambda each: self._private_gradient(loss, *each),
                    (clients, tokens, *parts, keys),
                )
            examples = counted & (shares > 0.0)[:, None]
            erased = jnp.sum(examples & (survival == 0.0))
            erased_fraction = erased / jnp.maximum(examples.sum(), 1)
            return StepGradients(gradients, decoder, loss_sum, tokens.sum(1), erased_fraction)

        rows_read = jax.tree.map(
            lambda rows: rows.reshape(len(rows), -1, *rows.shape[3:])[:, ids],
            self.model.rows_read(batches),
        )
        met = met_rows_by_table(self.rules, state.client, rows_read)
        sent = _sent(state.client, outcome.client_blocks)
        present = participation_of(self.cluster_weight, samples.sum(1) > 0, shares, met, sent)
        after, report = learn_round(gradients_of, state, present, self._method, batches, key, index)
        fits = (samples.sum(1) <= batch_size).all()
        client, average, report = jax.tree.map(
            lambda number: jnp.where(fits, number, jnp.nan), (after.client, after.average, report)
        )
        return after._replace(client=client, average=average), report

    @property
    def _method(self) -> Method:
        return Method(self._optimizers, self.rules)

    @property
    def _optimizers(self) -> Transformations:
        """Those of a client as one over the whole model, each with norms of its own part."""
        parts = {"embedding": "client", "encoder": "client", "decoder": "decoder"}
        own = self.optimizers.transformations
        whole = optax.partition({"client": own.client, "decoder": own.decoder}, parts)
        return own._replace(client=whole)

    def _loss(
        self,
        base: Params,
        dropout_key: Array,
        own: Params,
        tokens: Array,
        batch: Batch,
        ids: Array,
        counted: Array,
        survival: Array,
    ) -> tuple[Array, Array]:
        """Share of some examples in a client's loss, and their loss without the erasure weight.

        ``tokens`` are those of all that the client counts. Leaves of the batch are
        ``[chunk, ...]``; padding is not ``counted``. Dropout goes by the numbers of the examples,
        so it does not depend on how clients share a mini-batch.
        """
        key = dropout_key if self.model.sizes.drops else None
        losses, _ = example_losses(self.model, join(own, base), batch, key, ids)
        loss = loss_per_token(losses, tokens, jnp.where(counted, survival, 0.0))
        return loss, jnp.where(counted, losses, 0.0).sum()

    def _private_gradient(
        self,
        loss: _Loss,
        own: Params,
        tokens: Array,
        batch: Batch,
        ids: Array,
        counted: Array,
        survival: Array,
        key: Array,
    ) -> tuple[Params, Array]:
        """As the gradient of the loss by ``own``, but the noisy mean of clipped gradients.

        An example's loss is the mean over its tokens, whatever the lengths of others. Survivors
        get their weight after the noise.
        """

        def gradient_of(example: tuple) -> tuple[Params, Array]:
            row = jax.tree.map(lambda leaf: leaf[None], example)
            return jax.grad(loss, has_aux=True)(own, *row)

        found, loss_sum = self.rules.example_privacy.gradient(
            gradient_of, (tokens, batch, ids, counted, survival > 0.0), counted.sum(), key
        )
        weight = jnp.max(jnp.where(counted, survival, 0.0))
        return jax.tree.map(lambda leaf: weight * leaf, found), loss_sum


def _over_clients(function: Callable[[Any], Any], clients: Any, one_turn: bool) -> Any:
    """The function of every client, whose loops have a turn or more.

    At once all take as many turns as the one with most. One CPU takes one client after the other.
    """
    at_once = one_turn or jax.default_backend() != "cpu" or is_on_mesh()
    return jax.vmap(function)(clients) if at_once else jax.lax.map(function, clients)


def _summed_gradient(
    loss: _Loss, own: Params, tokens: Array, chunks: Any, turns: Array
) -> tuple[Params, Array]:
    """Gradient of a client's loss by ``own`` over its first chunks, and its sum of losses.

    Leaves of the chunks are ``[chunks, chunk, ...]``, behind ``turns`` of them padding alone.
    """
    gradient = jax.grad(loss, has_aux=True)

    def add(turn: Array, total: tuple[Params, Array]) -> tuple[Params, Array]:
        return jax.tree.map(jnp.add, total, gradient(own, tokens, *pick(chunks, turn)))

    if len(jax.tree.leaves(chunks)[0]) == 1:
        return gradient(own, tokens, *pick(chunks, 0))
    nothing = jax.tree.map(jnp.zeros_like, own), jnp.zeros((), tokens.dtype)
    return jax.lax.fori_loop(0, turns, add, nothing)


def _client_shares(weights: Array, samples: Array) -> Array:
    """Weights of the clients in the mean ``[N K]``, sum 1, from ``w_n [N]`` and ``B_k [N, K]``."""
    held = samples.sum(1)
    part = samples / jnp.maximum(held, 1)[:, None]
    shares = (participant_shares(weights, held > 0)[:, None] * part).reshape(-1)
    return participant_shares(shares, shares > 0.0)  # the sum is 1 but for rounding


def _sent(client: Params, blocks: Array | None) -> Params | None:
    """Which parameters clients of split models send: embedding and first blocks."""
    if blocks is None:
        return None

    def mask(name: str, leaf: Array) -> Array:
        rows = jnp.arange(len(leaf)) < blocks if name == "encoder" else name == "embedding"
        return jnp.asarray(rows).reshape(-1, *[1] * (leaf.ndim - 1))

    return {
        name: jax.tree.map(functools.partial(mask, name), part) for name, part in client.items()
    }


def _client_rows(samples: Array, batch_size: int, width: int) -> tuple[Array, Array]:
    """Consecutive parts of every cluster's mini-batch, padded to one width.

    Returns:
      Numbers of the examples among all ``N B`` of a step, ``[N K, width]``, and which of
      them count: all but the padding.
    """
    place = jnp.arange(width)[None, None]
    first, count = (jnp.cumsum(samples, axis=1) - samples)[..., None], samples[..., None]
    # A client's padding repeats its own last example: it never reads the examples of others.
    row = first + jnp.minimum(place, jnp.maximum(count - 1, 0))
    row = jnp.minimum(row, batch_size - 1)
    ids = jnp.arange(len(samples))[:, None, None] * batch_size + row
    return ids.reshape(-1, width), (place < count).reshape(-1, width)
