"""One round of learning: H local steps in every cluster, then aggregation."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from collapipe_jax.federated.aggregation import aggregate, present_shares, select, server_update
from collapipe_jax.federated.erasures import AS_ASSUMED, ErasureLaw, cluster_weights
from collapipe_jax.federated.mesh_mean import mean_over_clusters
from collapipe_jax.federated.shared_loss import shared_loss
from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch, SplitModel
from collapipe_jax.pipeline.execution import SEQUENTIAL, Execution
from collapipe_jax.pipeline.mesh import make_pipeline_mesh


class LearnerState(NamedTuple):
    """What lasts from round to round.

    Attributes:
      client: global ``{"embedding", "encoder"}``, encoder leaves ``[L, ...]``.
      client_optimizer: state of every cluster's own optimiser, leaves ``[N, ...]``.
      decoder: the edge server's parameters.
      decoder_optimizer: state of the decoder's optimiser.
      server_optimizer: state of the optimiser that aggregates.
    """

    client: Params
    client_optimizer: optax.OptState
    decoder: Params
    decoder_optimizer: optax.OptState
    server_optimizer: optax.OptState


class Erasures(NamedTuple):
    """What the round's decision and channel do to learning; array values all.

    Attributes:
      micro_batches: ``M_n [N]`` int32.
      loss_probability: ``P_n [N]``, of one micro-batch's whole trip.
      present: ``[N]`` bool, False for a cluster that sits out.
    """

    micro_batches: jax.Array
    loss_probability: jax.Array
    present: jax.Array


class RoundLearning(NamedTuple):
    """What a round tells about learning, all ``[]``; NaN when nobody was present.

    Attributes:
      loss: training loss in nats a token, over all examples of the present clusters
        and all local steps, erased or not.
      erased_fraction: share of those examples whose micro-batch was erased.
      gradient_norm: norm of the gradient of the shared loss over clients and decoder
        (the weighted mean over clusters), averaged over the local steps.
    """

    loss: jax.Array
    erased_fraction: jax.Array
    gradient_norm: jax.Array


class _Local(NamedTuple):
    """Carry of the local steps."""

    clients: Params  # leaves [N, ...]
    client_optimizer: optax.OptState  # leaves [N, ...]
    decoder: Params
    decoder_optimizer: optax.OptState


class StepSums(NamedTuple):
    """What a local step adds to the round's report, all ``[]``; ``RoundLearning`` says of what."""

    loss_sum: jax.Array
    token_count: jax.Array
    erased_fraction: jax.Array
    gradient_norm: jax.Array


def init_learner(
    key: jax.Array,
    model: SplitModel,
    clusters: int,
    client_tx: optax.GradientTransformation,
    decoder_tx: optax.GradientTransformation,
    server_tx: optax.GradientTransformation,
) -> LearnerState:
    """A fresh model and fresh optimisers.

    Args:
      key: scalar random key.
      model: what is trained.
      clusters: ``N``.
      client_tx: optimiser of embedding and encoder inside a cluster.
      decoder_tx: optimiser of the edge server's decoder.
      server_tx: optimiser on the aggregated clients; ``optax.sgd(1.0)`` is averaging.

    Returns:
      The state before the first round.
    """
    params = model.init(key)
    client = {name: params[name] for name in ("embedding", "encoder")}
    return LearnerState(
        client=client,
        client_optimizer=jax.vmap(client_tx.init)(replicate(client, clusters)),
        decoder=params["decoder"],
        decoder_optimizer=decoder_tx.init(params["decoder"]),
        server_optimizer=server_tx.init(client),
    )


@functools.partial(
    jax.jit,
    static_argnames=("model", "client_tx", "decoder_tx", "server_tx", "execution", "erasure_law"),
)
def train_round(
    state: LearnerState,
    batches: Batch,
    erasures: Erasures,
    weights: jax.Array,
    key: jax.Array,
    *,
    model: SplitModel,
    client_tx: optax.GradientTransformation,
    decoder_tx: optax.GradientTransformation,
    server_tx: optax.GradientTransformation,
    segments: jax.Array | None = None,
    execution: Execution = SEQUENTIAL,
    erasure_law: ErasureLaw = AS_ASSUMED,
) -> tuple[LearnerState, RoundLearning]:
    """H local steps in all clusters, aggregation, and the server's step.

    In a step, cluster n descends ``sum_b e_b loss_b / sum_b tokens_b`` with the erasure
    weights e of docs/system-model.md, section 4, on its own copy of the clients; the
    edge server steps its one decoder on the mean of the clusters' gradients, weighted
    by ``weights`` rescaled over the present clusters. An absent cluster, or one of
    weight 0, contributes nothing and keeps its optimiser's state; if nobody is
    present nothing changes at all.

    Args:
      state: before the round.
      batches: leaves ``[H, N, B, ...]``. Lengths may stay below the configuration's.
      erasures: leaves ``[N]``; new values cost no compilation.
      weights: ``w_n [N]``, >= 0.
      key: scalar random key of the round (dropout and erasures).
      model: what is trained (static).
      client_tx: as for ``init_learner`` (static), and the next two.
      decoder_tx: see there.
      server_tx: see there.
      segments: blocks per device ``[N, K]``, 0 throughout for a cluster that sits out. Only
        pipelines read them; new values cost no compilation.
      execution: what runs the encoder (static).
      erasure_law: how losses are drawn and made up for (static).

    Returns:
      ``(state, RoundLearning)`` after the round.
    """
    steps, clusters = jax.tree.leaves(batches)[0].shape[:2]
    present = erasures.present & (weights > 0.0)
    shares = present_shares(weights, present)

    loss = functools.partial(shared_loss, model=model, segments=segments, execution=execution)
    draw_weights = functools.partial(
        cluster_weights,
        erasure_law,
        round_key=jax.random.fold_in(key, steps),
        batch_size=jax.tree.leaves(batches)[0].shape[2],
        micro_batches=erasures.micro_batches,
        loss_probability=erasures.loss_probability,
        shares=shares,
    )

    def step(local: _Local, inputs: tuple[Batch, jax.Array]) -> tuple[_Local, StepSums]:
        batch, step_key = inputs
        erasure_key, dropout_key = jax.random.split(step_key)
        weights = draw_weights(erasure_key)
        return _local_step(local, batch, weights, shares, dropout_key, loss, client_tx, decoder_tx)

    start = _Local(
        clients=replicate(state.client, clusters),
        client_optimizer=state.client_optimizer,
        decoder=state.decoder,
        decoder_optimizer=state.decoder_optimizer,
    )
    end, sums = jax.lax.scan(step, start, (batches, jax.random.split(key, steps)))
    if execution.backend == "sharded":
        mesh = make_pipeline_mesh(*segments.shape)
        mean = mean_over_clusters(end.clients, weights, present, state.client, mesh=mesh)
    else:
        mean = aggregate(end.clients, weights, present, state.client)
    client, server_optimizer = server_update(
        state.client, mean, state.server_optimizer, server_tx, present.any()
    )
    return (
        LearnerState(
            client, end.client_optimizer, end.decoder, end.decoder_optimizer, server_optimizer
        ),
        round_report(sums, present.any()),
    )


def _local_step(
    local: _Local,
    batch: Batch,
    example_weights: jax.Array,
    shares: jax.Array,
    dropout_key: jax.Array,
    loss: Callable,
    client_tx: optax.GradientTransformation,
    decoder_tx: optax.GradientTransformation,
) -> tuple[_Local, StepSums]:
    """One mini-batch in every cluster: leaves of the batch ``[N, B, ...]``, ``shares [N]``.

    ``example_weights`` is ``[N, B]``; ``loss`` is ``shared_loss`` with its keywords bound.
    """
    present = shares > 0.0
    gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
    (client_grads, decoder_grads), (loss_sum, token_count) = gradient(
        local.clients, local.decoder, batch, example_weights, shares, dropout_key
    )
    updates, client_optimizer = jax.vmap(client_tx.update)(
        client_grads, local.client_optimizer, local.clients
    )
    clients = optax.apply_updates(local.clients, updates)
    updates, decoder_optimizer = decoder_tx.update(
        decoder_grads, local.decoder_optimizer, local.decoder
    )
    decoder = optax.apply_updates(local.decoder, updates)
    mean_client_grads = jax.tree.map(lambda g: jnp.tensordot(shares, g, axes=1), client_grads)
    sums = StepSums(
        loss_sum=jnp.where(present, loss_sum, 0.0).sum(),
        token_count=jnp.where(present, token_count, 0.0).sum(),
        erased_fraction=(present * (example_weights == 0.0).mean(1)).sum()
        / jnp.maximum(present.sum(), 1),
        gradient_norm=tree_norm((mean_client_grads, decoder_grads)),
    )
    clients, client_optimizer = select(
        present, (clients, client_optimizer), (local.clients, local.client_optimizer)
    )
    decoder, decoder_optimizer = select(
        present.any(), (decoder, decoder_optimizer), (local.decoder, local.decoder_optimizer)
    )
    return _Local(clients, client_optimizer, decoder, decoder_optimizer), sums


def round_report(sums: StepSums, anyone: jax.Array) -> RoundLearning:
    """What the local steps of a round add up to.

    Args:
      sums: leaves ``[H]``.
      anyone: scalar bool, False when nobody was present.

    Returns:
      The report, NaN where ``anyone`` is False.
    """
    report = RoundLearning(
        loss=sums.loss_sum.sum() / sums.token_count.sum(),
        erased_fraction=sums.erased_fraction.mean(),
        gradient_norm=sums.gradient_norm.mean(),
    )
    return jax.tree.map(lambda number: jnp.where(anyone, number, jnp.nan), report)


def tree_norm(tree: Any) -> jax.Array:
    """Euclidean norm over all leaves."""
    return jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)))


def replicate(tree: Any, copies: int) -> Any:
    """Leaves ``[...]`` to ``[copies, ...]``."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (copies, *leaf.shape)), tree)
