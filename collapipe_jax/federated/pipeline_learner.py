"""Split learning over pipelines: clusters train the clients, the edge server one decoder."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int, Key

from collapipe_jax.federated.aggregation import aggregate, participant_shares, select, server_update
from collapipe_jax.federated.erasures import UNBIASED, ErasureLaw, cluster_example_weights
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
from collapipe_jax.federated.shared_loss import shared_loss
from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch, SplitModel
from collapipe_jax.pipeline.execution import SEQUENTIAL, Execution
from collapipe_jax.pipeline.mesh import make_pipeline_mesh


class PipelineState(NamedTuple):
    """State from round to round.

    Attributes:
      client: global ``{"embedding", "encoder"}``, encoder leaves ``[L, ...]``.
      client_optimizer: state of every cluster's own optimiser, leaves ``[N, ...]``.
      decoder: the edge server's parameters.
      decoder_optimizer: state of the decoder's optimiser.
      server_optimizer: state of the server's optimiser.
    """

    client: Params
    client_optimizer: optax.OptState
    decoder: Params
    decoder_optimizer: optax.OptState
    server_optimizer: optax.OptState


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


class _Local(NamedTuple):
    """Carry of the local steps; leaves of the clients are ``[N, ...]``."""

    clients: Params
    client_optimizer: optax.OptState
    decoder: Params
    decoder_optimizer: optax.OptState


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
    erasure_law: ErasureLaw = struct.field(pytree_node=False, default=UNBIASED)

    def init(self, key: Key[Array, ""]) -> PipelineState:
        """State before the first round, with fresh parameters and optimisers."""
        params, optimizers = self.model.init(key), self.optimizers
        client = {name: params[name] for name in ("embedding", "encoder")}
        copies = replicate(client, self.cluster_weight.shape[0])
        return PipelineState(
            client=client,
            client_optimizer=jax.vmap(optimizers.client.init)(copies),
            decoder=params["decoder"],
            decoder_optimizer=optimizers.decoder.init(params["decoder"]),
            server_optimizer=optimizers.server.init(client),
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
        state: PipelineState,
        batches: Batch,
        outcome: PipelineOutcome,
        key: Key[Array, ""],
        index: Int[Array, ""] | int,
    ) -> tuple[PipelineState, LearningReport]:
        """One round; arguments and results as in ``Learner``."""
        steps, clusters, batch_size = jax.tree.leaves(batches)[0].shape[:3]
        participates = outcome.participates & (self.cluster_weight > 0.0)
        anyone = participates.any()
        shares = participant_shares(self.cluster_weight, participates)
        round_key = jax.random.fold_in(key, steps)

        def step(
            local: _Local, batch: Batch, step_key: Array, number: Array
        ) -> tuple[_Local, StepSums]:
            erasure_key, dropout_key = jax.random.split(step_key)
            example_weights = cluster_example_weights(
                self.erasure_law,
                erasure_key,
                round_key,
                batch_size,
                outcome.micro_batches,
                outcome.loss_probability,
                shares,
            )
            rest = shares, dropout_key, number, outcome.segments
            return self._local_step(local, batch, example_weights, *rest)

        start = _Local(
            clients=replicate(state.client, clusters),
            client_optimizer=state.client_optimizer,
            decoder=state.decoder,
            decoder_optimizer=state.decoder_optimizer,
        )
        end, sums = local_steps(step, start, batches, key, index)
        mean = self._aggregate(end.clients, participates, state.client, outcome.segments)
        client, server_optimizer = server_update(
            state.client, mean, state.server_optimizer, self.optimizers.server, anyone
        )
        rest = end.client_optimizer, end.decoder, end.decoder_optimizer, server_optimizer
        return PipelineState(client, *rest), round_report(sums, anyone)

    def params(self, state: PipelineState) -> Params:
        """Parameters of the whole model."""
        return {**state.client, "decoder": state.decoder}

    def with_params(self, state: PipelineState, params: Params) -> PipelineState:
        """The state with other parameters of the whole model."""
        client = {name: params[name] for name in state.client}
        return state._replace(client=client, decoder=params["decoder"])

    def _local_step(
        self,
        local: _Local,
        batch: Batch,
        example_weights: Float[Array, "N B"],
        shares: Float[Array, " N"],
        dropout_key: Key[Array, ""],
        number: Int[Array, ""],
        segments: Int[Array, "N K"] | None,
    ) -> tuple[_Local, StepSums]:
        """One mini-batch in every cluster, leaves ``[N, B, ...]``."""

        def loss(clients: Params, decoder: Params) -> tuple[Array, tuple]:
            return shared_loss(
                clients,
                decoder,
                batch,
                example_weights,
                shares,
                dropout_key,
                model=self.model,
                segments=segments,
                execution=self.execution,
            )

        participates = shares > 0.0
        gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
        (client_gradient, decoder_gradient), (loss_sum, token_count) = gradient(
            local.clients, local.decoder
        )

        step = functools.partial(apply_gradient, self.optimizers.client)
        own = client_gradient, local.client_optimizer, local.clients
        clients = jax.vmap(step, in_axes=(0, 0, 0, None))(*own, number)
        decoder = apply_gradient(
            self.optimizers.decoder,
            decoder_gradient,
            local.decoder_optimizer,
            local.decoder,
            number,
        )
        mean = jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, axes=1), client_gradient)
        erased = (participates * (example_weights == 0.0).mean(1)).sum()
        erased_fraction = erased / jnp.maximum(participates.sum(), 1)
        sums = step_sums(
            participates, loss_sum, token_count, erased_fraction, (mean, decoder_gradient)
        )
        clients = select(participates, clients, local[:2])
        decoder = select(participates.any(), decoder, local[2:])
        return _Local(*clients, *decoder), sums

    def _aggregate(
        self, clients: Params, participates: Array, previous: Params, segments: Array | None
    ) -> Params:
        mesh = None
        if self.execution.backend == "sharded" and segments is not None:
            mesh = make_pipeline_mesh(*segments.shape)
        return aggregate(clients, self.cluster_weight, participates, previous, mesh)
