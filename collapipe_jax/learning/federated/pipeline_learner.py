"""Split learning over pipelines: clusters train the clients, the edge server its one part."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int, Key

from collapipe_jax.learning.federated.aggregation import (
    ErasureLaw,
    aggregate,
    cluster_example_weights,
    loss_per_token,
    participant_shares,
    participation_of,
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
    learn_round,
    spread,
)
from collapipe_jax.learning.federated.optimizers import Optimizers, Rules, Transformations
from collapipe_jax.learning.models.adapters import join, split
from collapipe_jax.learning.models.block import encode
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import Params, example_keys
from collapipe_jax.learning.models.split_model import (
    Batch,
    ServerParams,
    ServerPart,
    SplitModel,
    cut_encoder,
    cut_model,
)
from collapipe_jax.learning.pipeline.execution import (
    SEQUENTIAL,
    Execution,
    encode_clusters,
    stage_slots,
)
from collapipe_jax.learning.pipeline.schedules import Step, one_f_one_b


class PipelineOutcome(NamedTuple):
    """Effect of the round's decision and channel on learning."""

    micro_batches: Array  # ``M_n [N]`` int32
    loss_probability: Array  # ``P_n [N]``, of the whole trip of a micro-batch
    participates: Array  # ``[N]`` bool
    # Blocks per device ``[N, K]``, 0 throughout for a cluster that does not participate; only
    # pipelines read them
    segments: Array | None = None


@struct.dataclass(kw_only=True)
class PipelineLearner:
    """The ``Learner`` of pipeline policies.

    In a step, cluster n descends ``sum_b e_b loss_b / sum_b tokens_b`` with the erasure
    weights e of docs/system-model.md, section 4, on its own copy of the clients. The edge
    server steps its one decoder on the mean of the clusters' gradients, weighted by
    ``cluster_weight`` rescaled over the participants. The last ``server_blocks`` of the encoder
    are part of what it steps, and segments are partitions of the others. A cluster that does not
    participate, or one of weight 0, contributes nothing and keeps its optimiser's state; without
    any participant nothing changes.
    """

    cluster_weight: Any  # ``w_n [N]``, >= 0
    optimizers: Optimizers  # of clusters, decoder and server
    model: SplitModel = struct.field(pytree_node=False)  # the model that is trained
    # How the encoder is executed
    execution: Execution = struct.field(pytree_node=False, default=SEQUENTIAL)
    # Law of the erasures
    erasure_law: ErasureLaw = struct.field(pytree_node=False, default=ErasureLaw())
    # Last blocks of the encoder, which the edge server holds
    server_blocks: int = struct.field(pytree_node=False, default=0)
    rules: Rules = Rules()  # of the clusters; the server's part has neither drift nor copies

    @property
    def copies(self) -> int:
        """Number of clusters."""
        return self.cluster_weight.shape[-1]

    def init(self, params: Params) -> LearningState:
        """State before the first round, with fresh optimisers."""
        trained, base = split(params, self.model.sizes.adapters)
        client, server = cut_model(trained, self.server_blocks)
        return initial_state(client, server, base, self._method, self.copies)

    @property
    def _method(self) -> Method:
        own = _server_transformations(self.optimizers.transformations, self.server_blocks)
        return Method(own, self.rules)

    @property
    def _cluster_blocks(self) -> int:
        """Blocks of the encoder that a cluster runs."""
        return self.model.sizes.encoder_blocks - self.server_blocks

    @property
    def _cluster_sizes(self) -> EncoderConfig:
        """Sizes of the encoder that a cluster runs, of one block or more."""
        return dataclasses.replace(self.model.sizes, encoder_blocks=self._cluster_blocks)

    def outcome(self, decision: Any, cost: Any) -> PipelineOutcome:
        """Effect on learning of a pipeline decision and of its cost."""
        present = ~cost.absent
        return PipelineOutcome(
            decision.micro_batches, cost.loss_probability, present, decision.segments
        )

    @jax.jit
    def round(
        self,
        state: LearningState,
        batches: Batch,
        outcome: PipelineOutcome,
        key: Key[Array, ""],
        index: Int[Array, ""] | int,
    ) -> tuple[LearningState, LearningReport]:
        """One round; arguments and results as in ``Learner``."""
        shares = participant_shares(self.cluster_weight, outcome.participates)
        round_key = jax.random.fold_in(key, jax.tree.leaves(batches)[0].shape[0])
        gradients_of = partial(self._gradients, outcome, shares, round_key)
        met = met_rows_by_table(self.rules, state.client, self.model.rows_read(batches))
        present = participation_of(self.cluster_weight, outcome.participates, shares, met)
        return learn_round(gradients_of, state, present, self._method, batches, key, index)

    def _gradients(
        self,
        outcome: PipelineOutcome,
        shares: Array,
        round_key: Array,
        clients: Params,
        server: ServerParams,
        base: Params,
        batch: Batch,
        step_key: Array,
    ) -> StepGradients:
        """Gradients of all clients and the edge server's part."""
        clusters, batch_size = jax.tree.leaves(batch)[0].shape[:2]
        ids = jnp.arange(clusters * batch_size).reshape(clusters, batch_size)
        erasure_key, key = jax.random.split(step_key)
        drops = self.model.sizes.drops or self.rules.activation_noise is not None
        key = key if drops else None
        drawn = outcome.micro_batches, outcome.loss_probability, shares
        example_weights = cluster_example_weights(
            self.erasure_law, erasure_key, round_key, batch_size, *drawn
        )
        keys = jax.vmap(example_keys, in_axes=(None, 0))(key, ids)
        # Without a block in a cluster there are no stages to interleave.
        interleaved = self.execution.schedule == "1f1b" and self._cluster_blocks > 0
        gradients_of = self._by_micro_batch if interleaved else self._by_mini_batch
        data = batch, keys, example_weights
        found = gradients_of(outcome, shares, clients, server, base, data)
        counted = shares > 0.0
        erased = (counted * (example_weights == 0.0).mean(1)).sum() / jnp.maximum(counted.sum(), 1)
        return StepGradients(*found, erased)

    def _embedded(self, clients: Params, base: Params, batch: Batch, keys: Array | None) -> tuple:
        """Embedded tokens ``[N, B, S, h]`` of all clusters, and their mask."""

        def embed(own: Params, *rest: Any) -> tuple[Array, Array]:
            return self.model.embed(join(own, base["embedding"]), *rest)

        return jax.vmap(embed)(clients["embedding"], batch, keys)

    def _sent(self, encoded: Array, keys: Array | None) -> Array:
        """Activations ``[B, S, h]`` of a cluster as it sends them."""
        if (noise := self.rules.activation_noise) is None:
            return encoded
        assert keys is not None
        return with_noise(encoded, keys, noise)

    def _losses(
        self,
        server: ServerParams,
        base: Params,
        encoded: Array,
        mask: Array,
        batch: Batch,
        keys: Array | None,
    ) -> tuple[Array, Array]:
        """Losses and tokens ``[b]`` of examples, from the activations that the server gets.

        Args:
          server: its part of the model.
          base: its blocks' other parameters, which get no gradient.
          encoded: ``[b, S, h]``.
          mask: of the embedding, ``[b, S]``.
          batch: the examples.
          keys: theirs, ``[b]``.
        """
        if not isinstance(server, ServerPart):
            return self.model.losses(server, encoded, batch, keys)
        first, blocks = self._cluster_blocks, join(server.encoder, base)
        encoded = encode(blocks, self.model.sizes, encoded, mask, keys, first)
        return self.model.losses(server.decoder, encoded, batch, keys)

    def _by_mini_batch(
        self,
        outcome: PipelineOutcome,
        shares: Array,
        clients: Params,
        server: ServerParams,
        base: Params,
        data: tuple,
    ) -> tuple[Params, ServerParams, Array, Array]:
        """Gradients of clients and the server's part, whole mini-batches at a time."""
        batch, keys, _ = data
        cluster_base, server_base = cut_encoder(base["encoder"], self.server_blocks)

        def encode_all(clients: Params) -> tuple[Array, Array]:
            x, mask = self._embedded(clients, base, batch, keys)
            if self._cluster_blocks:
                rest = x, mask, outcome.segments, keys, self.execution, outcome.micro_batches
                encoder, sizes = clients["encoder"], self._cluster_sizes
                x = encode_clusters(encoder, sizes, *rest, cluster_base)
            return jax.vmap(self._sent)(x, keys), mask

        encoded, send_back, mask = jax.vjp(encode_all, clients, has_aux=True)
        is_private = self.rules.cluster_privacy is not None
        run = self._server_by_cluster if is_private else self._server
        sent, server_gradient, sums = run(shares, server, server_base, encoded, mask, data)
        (client_gradient,) = send_back(sent)
        return client_gradient, server_gradient, *sums

    def _server(
        self,
        shares: Array,
        server: ServerParams,
        base: Params,
        encoded: Array,
        mask: Array,
        data: tuple,
    ) -> tuple[Array, ServerParams, tuple[Array, Array]]:
        """Gradients by the activations and by the server's part, which runs ``N B`` examples once.

        The edge server's loss is ``sum_n shares_n loss_n``, so its gradient by its part is the
        weighted mean of the clusters' gradients. What it sends back to a cluster is divided by
        the share, which leaves cluster n the gradient of its own ``loss_n``.

        Returns:
          Both gradients, and sums of losses and tokens by cluster.
        """
        batch, keys, example_weights = data

        def flat(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)

        def loss(encoded: Array, server: ServerParams) -> tuple[Array, tuple[Array, Array]]:
            encoded = spread(encoded, (COPY, EXAMPLE))
            found = self._losses(server, base, *flat((encoded, mask, batch, keys)))
            losses, tokens = (leaf.reshape(example_weights.shape) for leaf in found)
            cluster_loss = loss_per_token(losses, tokens, example_weights)
            return (shares * cluster_loss).sum(), (losses.sum(1), tokens.sum(1))

        gradients = jax.grad(loss, argnums=(0, 1), has_aux=True)
        (sent, server_gradient), sums = gradients(encoded, server)
        scale = 1.0 / jnp.where(shares > 0.0, shares, 1.0)
        return sent * scale[:, None, None, None], server_gradient, sums

    def _server_by_cluster(
        self,
        _: Array,
        server: ServerParams,
        base: Params,
        encoded: Array,
        mask: Array,
        data: tuple,
    ) -> tuple[Array, ServerParams, tuple[Array, Array]]:
        """As ``_server``, with every cluster's own gradient by the server's part, ``[N, ...]``."""

        def loss(
            encoded: Array, server: ServerParams, mask: Array, data: tuple
        ) -> tuple[Array, tuple[Array, Array]]:
            batch, keys, example_weights = data
            losses, tokens = self._losses(server, base, encoded, mask, batch, keys)
            return loss_per_token(losses, tokens, example_weights), (losses.sum(), tokens.sum())

        gradients = jax.vmap(jax.grad(loss, (0, 1), has_aux=True), (0, None, 0, 0))
        (sent, server_gradients), sums = gradients(encoded, server, mask, data)
        return sent, server_gradients, sums

    def _by_micro_batch(
        self,
        outcome: PipelineOutcome,
        shares: Array,
        clients: Params,
        server: ServerParams,
        base: Params,
        data: tuple,
    ) -> tuple[Params, ServerParams, Array, Array]:
        """As ``_by_mini_batch``, with the server's part in every cluster's last stage, by 1F1B.

        The tokens that divide a cluster's loss are known after its last micro-batch; they
        divide the gradient of the sum.
        """
        sizes, (batch, keys, _) = self._cluster_sizes, data
        cluster_base, server_base = cut_encoder(base["encoder"], self.server_blocks)

        def fill(clients: Params) -> tuple[tuple[Params, Array], tuple[Params, Array, Array]]:
            x, mask = self._embedded(clients, base, batch, keys)
            rest = sizes, outcome.segments, self.execution, cluster_base
            slots, base_slots, stages = stage_slots(clients["encoder"], *rest)
            return (slots, x), (base_slots, mask, stages)

        def loss(
            server: ServerParams, encoded: Array, data: tuple
        ) -> tuple[Array, tuple[Array, Array]]:
            mask, (batch, keys, example_weights) = data
            encoded = self._sent(encoded, keys)
            losses, tokens = self._losses(server, server_base, encoded, mask, batch, keys)
            return (example_weights * losses).sum(), (losses.sum(), tokens.sum())

        # Forward into the slots of the stages, 1F1B inside, and back out of them.
        (slots, x), pull_back, rest = jax.vjp(fill, clients, has_aux=True)
        base_slots, mask, stages = rest
        inputs = x, mask, stages, (mask, data), self.execution.micro_batches, keys, base_slots
        (_, (loss_sum, tokens)), found = one_f_one_b(Step(slots, server, sizes, loss, *inputs))
        found = jax.vmap(lambda tree, count: jax.tree.map(lambda leaf: leaf / count, tree))(
            found, jnp.maximum(tokens, 1.0)
        )
        (client_gradient,) = pull_back((found.slots, found.x))
        is_private = self.rules.cluster_privacy is not None
        server_gradient = found.head if is_private else aggregate(found.head, shares)
        return client_gradient, server_gradient, loss_sum, tokens


_SITE = 0x75706C6B  # folded into the keys of examples, whose layers have small numbers


def with_noise(
    activations: Float[Array, "B S h"], keys: Key[Array, " B"], noise: Any
) -> Float[Array, "B S h"]:
    """Activations with Gaussian noise, ``noise`` times their root mean square at each position.

    The size of the noise has no gradient, as if it was a constant.

    Args:
      activations: of examples.
      keys: of the examples; a draw is a function of its example's alone.
      noise: deviation over the root mean square.
    """
    size = jnp.sqrt(jnp.mean(jnp.square(activations), axis=-1, keepdims=True))

    def draw(key: Array) -> Array:
        return jax.random.normal(jax.random.fold_in(key, _SITE), activations.shape[1:])

    scale = noise * jax.lax.stop_gradient(size)
    return activations + (scale * jax.vmap(draw)(keys)).astype(activations.dtype)


def _server_transformations(own: Transformations, server_blocks: int) -> Transformations:
    """The optimisers of a run, whose second steps all of the edge server's part.

    There is one copy of that part, which the server steps on the mean of the clusters' gradients.
    Its blocks learn at the clusters' rate, with an optimiser of their kind: rates go by what a
    parameter is, not by where it lies. A published block would forget at the rate of a fresh head.
    Norms of blocks and decoder are clipped each by itself.
    """
    if not server_blocks:
        return own
    parts = ServerPart("client", "decoder")
    both = optax.partition({"client": own.client, "decoder": own.decoder}, parts)
    return own._replace(decoder=both)
