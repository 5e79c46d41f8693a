"""Split learning over pipelines: clusters train the clients, the edge server one decoder."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from collapipe_jax.federated.aggregation import participant_shares
from collapipe_jax.federated.erasures import ErasureLaw, cluster_example_weights, loss_per_token
from collapipe_jax.federated.learner import (
    LearningReport,
    LearningState,
    StepGradients,
    learn_round,
    replicate,
)
from collapipe_jax.federated.optimizers import Optimizers
from collapipe_jax.models.layers import Params, example_keys
from collapipe_jax.models.split_model import Batch, SplitModel
from collapipe_jax.pipeline.execution import SEQUENTIAL, Execution, encode_clusters
from collapipe_jax.pipeline.mesh import make_pipeline_mesh


class PipelineOutcome(NamedTuple):
    """Effect of the round's decision and channel on learning.

    Attributes:
      micro_batches: ``M_n [N]`` int32.
      loss_probability: ``P_n [N]``, of the whole trip of a micro-batch.
      participates: ``[N]`` bool.
      segments: blocks per device ``[N, K]``, 0 throughout for a cluster that does not
        participate; only pipelines read them.
    """

    micro_batches: Array
    loss_probability: Array
    participates: Array
    segments: Array | None = None


@struct.dataclass(kw_only=True)
class PipelineLearner:
    """The ``Learner`` of pipeline policies.

    In a step, cluster n descends ``sum_b e_b loss_b / sum_b tokens_b`` with the erasure
    weights e of docs/system-model.md, section 4, on its own copy of the clients. The edge
    server steps its one decoder on the mean of the clusters' gradients, weighted by
    ``cluster_weight`` rescaled over the participants. A cluster that does not participate, or
    one of weight 0, contributes nothing and keeps its optimiser's state; without any
    participant nothing changes.

    Attributes:
      cluster_weight: ``w_n [N]``, >= 0.
      model: the model that is trained.
      optimizers: of clusters, decoder and server.
      execution: how the encoder is executed.
      erasure_law: law of the erasures.
    """

    cluster_weight: Any
    model: SplitModel = struct.field(pytree_node=False)
    optimizers: Optimizers = struct.field(pytree_node=False)
    execution: Execution = struct.field(pytree_node=False, default=SEQUENTIAL)
    erasure_law: ErasureLaw = struct.field(pytree_node=False, default=ErasureLaw())

    def init(self, params: Params) -> LearningState:
        """State before the first round, with fresh optimisers."""
        client = {name: params[name] for name in ("embedding", "encoder")}
        copies = replicate(client, self.cluster_weight.shape[0])
        return LearningState(
            client=client,
            client_optimizer=jax.vmap(self.optimizers.client.init)(copies),
            decoder=params["decoder"],
            decoder_optimizer=self.optimizers.decoder.init(params["decoder"]),
            server_optimizer=self.optimizers.server.init(client),
        )

    def outcome(self, decision: Any, cost: Any) -> PipelineOutcome:
        """Effect on learning of a pipeline decision and of its cost."""
        return PipelineOutcome(
            micro_batches=decision.micro_batches,
            loss_probability=cost.loss_probability,
            participates=~cost.absent,
            segments=decision.segments,
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
        steps, _, batch_size = jax.tree.leaves(batches)[0].shape[:3]
        micro_batches, loss_probability, participates, segments = outcome
        shares = participant_shares(self.cluster_weight, participates)
        round_key = jax.random.fold_in(key, steps)

        def gradients_of(
            clients: Params, decoder: Params, batch: Batch, step_key: Array
        ) -> StepGradients:
            erasure_key, dropout_key = jax.random.split(step_key)
            drawn = erasure_key, round_key, batch_size, micro_batches, loss_probability, shares
            example_weights = cluster_example_weights(self.erasure_law, *drawn)
            own = batch, example_weights, shares, dropout_key, segments
            (client, server), (loss_sum, token_count) = jax.grad(self._loss, (0, 1), has_aux=True)(
                clients, decoder, *own
            )
            counted = shares > 0.0
            erased = (counted * (example_weights == 0.0).mean(1)).sum()
            erased_fraction = erased / jnp.maximum(counted.sum(), 1)
            return StepGradients(client, server, loss_sum, token_count, erased_fraction)

        mesh = None
        if self.execution.backend == "sharded" and segments is not None:
            mesh = make_pipeline_mesh(*segments.shape)
        optimizers = self.optimizers
        return learn_round(gradients_of, state, shares, optimizers, batches, key, index, mesh)

    def _loss(
        self,
        clients: Params,
        decoder: Params,
        batch: Batch,
        example_weights: Float[Array, "N B"],
        shares: Float[Array, " N"],
        dropout_key: Key[Array, ""],
        segments: Int[Array, "N K"] | None,
    ) -> tuple[Float[Array, ""], tuple[Float[Array, " N"], Float[Array, " N"]]]:
        """Scalar with the gradients of all clients and the decoder, from one pass of the decoder.

        Its value is ``sum_n shares_n loss_n``, so its gradient by the decoder is the weighted
        mean of the clusters' gradients. The backward pass to the clusters divides by the share,
        which leaves cluster n the gradient of its own ``loss_n``. The decoder thus runs once
        over all ``N B`` examples, without a copy of its gradient for each cluster.

        Returns:
          The scalar, and ``(loss_sum [N], token_count [N])`` without erasure weights.
        """
        model = self.model
        key = dropout_key if model.encoder.dropout_rate > 0.0 else None
        ids = jnp.arange(example_weights.size).reshape(example_weights.shape)

        def embed(client: Params, batch: Batch, ids: Array) -> tuple[Array, Array]:
            return model.embed(client["embedding"], batch, example_keys(key, ids))

        x, mask = jax.vmap(embed)(clients, batch, ids)
        encoded = encode_clusters(
            clients["encoder"], model.encoder, x, mask, segments, key, ids, self.execution
        )
        encoded = _scale_gradient(encoded, 1.0 / jnp.where(shares > 0.0, shares, 1.0))
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (encoded, batch, ids))
        losses, tokens = model.losses(decoder, flat[0], flat[1], example_keys(key, flat[2]))
        losses, tokens = losses.reshape(ids.shape), tokens.reshape(ids.shape)
        cluster_loss = loss_per_token(losses, tokens, example_weights)
        return (shares * cluster_loss).sum(), (losses.sum(1), tokens.sum(1))


@jax.custom_vjp
def _scale_gradient(x: Array, scale: Array) -> Array:
    """The identity on ``x [N, ...]``, whose gradient is multiplied by ``scale [N]``."""
    del scale
    return x


def _scale_gradient_forward(x: Array, scale: Array) -> tuple[Array, Array]:
    return x, scale


def _scale_gradient_backward(scale: Array, cotangent: Array) -> tuple[Array, None]:
    return cotangent * scale.reshape(-1, *[1] * (cotangent.ndim - 1)), None


_scale_gradient.defvjp(_scale_gradient_forward, _scale_gradient_backward)
