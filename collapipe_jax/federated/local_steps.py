"""One round of learning: H local steps in every cluster, then aggregation."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from collapipe_jax.federated.aggregation import aggregate, present_shares, select, server_update
from collapipe_jax.federated.erasures import sample_example_weights
from collapipe_jax.models.layers import Params, example_keys
from collapipe_jax.models.split_model import Batch, SplitModel
from collapipe_jax.pipeline.execution import forward, forward_clusters, gather_clusters
from collapipe_jax.pipeline.mesh import make_pipeline_mesh


class LearnerState(NamedTuple):
    """What lasts from round to round.

    Attributes:
      client: Global `{"embedding", "encoder"}`, encoder leaves `[L, ...]`.
      client_optimizer: State of every cluster's own optimiser, leaves `[N, ...]`.
      decoder: The edge server's parameters.
      decoder_optimizer: State of the decoder's optimiser.
      server_optimizer: State of the optimiser that aggregates.
    """

    client: Params
    client_optimizer: optax.OptState
    decoder: Params
    decoder_optimizer: optax.OptState
    server_optimizer: optax.OptState


class Erasures(NamedTuple):
    """What the round's decision and channel do to learning; array values all.

    Attributes:
      micro_batches: `M_n [N]` int32.
      loss_probability: `P_n [N]`, of one micro-batch's whole trip.
      present: `[N]` bool, False for a cluster that sits out.
      segments: Blocks per device `[N, K]`, 0 throughout for a cluster that sits out. Only a
        pipeline reads them, see `Execution`; None where there is none.
    """

    micro_batches: jax.Array
    loss_probability: jax.Array
    present: jax.Array
    segments: jax.Array | None = None


class Execution(NamedTuple):
    """What runs the encoder; it changes neither values nor gradients. Static, all of it.

    Attributes:
      backend: One of `pipeline.execution.BACKENDS`.
      micro_batches: Into how many a pipeline cuts a mini-batch, a divisor of `B`.
    """

    backend: str = "sequential"
    micro_batches: int = 1


SEQUENTIAL = Execution()
"""One scan over the whole encoder: the fast way to the gradient of every partition."""


class RoundLearning(NamedTuple):
    """What a round tells about learning, all `[]`; NaN when nobody was present.

    Attributes:
      loss: Training loss in nats a token, over all examples of the present clusters
        and all local steps, erased or not.
      erased_fraction: Share of those examples whose micro-batch was erased.
      gradient_norm: Norm of the gradient of the shared loss over clients and decoder
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


class _StepSums(NamedTuple):
    """What a local step adds to the round's report, all `[]`."""

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
      key: Scalar random key.
      model: What is trained.
      clusters: `N`.
      client_tx: Optimiser of embedding and encoder inside a cluster.
      decoder_tx: Optimiser of the edge server's decoder.
      server_tx: Optimiser on the aggregated clients; `optax.sgd(1.0)` is averaging.

    Returns:
      The state before the first round.
    """
    params = model.init(key)
    client = {name: params[name] for name in ("embedding", "encoder")}
    return LearnerState(
        client=client,
        client_optimizer=jax.vmap(client_tx.init)(_replicate(client, clusters)),
        decoder=params["decoder"],
        decoder_optimizer=decoder_tx.init(params["decoder"]),
        server_optimizer=server_tx.init(client),
    )


@functools.partial(
    jax.jit, static_argnames=("model", "client_tx", "decoder_tx", "server_tx", "execution")
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
    execution: Execution = SEQUENTIAL,
) -> tuple[LearnerState, RoundLearning]:
    """H local steps in all clusters, aggregation, and the server's step.

    In a step, cluster n descends `sum_b e_b loss_b / sum_b tokens_b` with the erasure
    weights e of docs/system-model.md, section 4, on its own copy of the clients; the
    edge server steps its one decoder on the mean of the clusters' gradients, weighted
    by `weights` rescaled over the present clusters. An absent cluster, or one of
    weight 0, contributes nothing and keeps its optimiser's state; if nobody is
    present nothing changes at all.

    Args:
      state: Before the round.
      batches: Leaves `[H, N, B, ...]`. Lengths may stay below the configuration's.
      erasures: Leaves `[N]`; new values cost no compilation.
      weights: `w_n [N]`, >= 0.
      key: Scalar random key of the round (dropout and erasures).
      model: What is trained (static).
      client_tx: As for `init_learner` (static), and the next two.
      decoder_tx: See there.
      server_tx: See there.
      execution: What runs the encoder (static).

    Returns:
      `(state, RoundLearning)` after the round.
    """
    steps, clusters = jax.tree.leaves(batches)[0].shape[:2]
    present = erasures.present & (weights > 0.0)
    shares = present_shares(weights, present)

    def step(local: _Local, inputs: tuple[Batch, jax.Array]) -> tuple[_Local, _StepSums]:
        batch, step_key = inputs
        return _local_step(
            local, batch, erasures, shares, step_key, model, client_tx, decoder_tx, execution
        )

    start = _Local(
        clients=_replicate(state.client, clusters),
        client_optimizer=state.client_optimizer,
        decoder=state.decoder,
        decoder_optimizer=state.decoder_optimizer,
    )
    end, sums = jax.lax.scan(step, start, (batches, jax.random.split(key, steps)))
    mean = aggregate(end.clients, weights, present, state.client)
    client, server_optimizer = server_update(
        state.client, mean, state.server_optimizer, server_tx, present.any()
    )
    report = RoundLearning(
        loss=sums.loss_sum.sum() / sums.token_count.sum(),
        erased_fraction=sums.erased_fraction.mean(),
        gradient_norm=sums.gradient_norm.mean(),
    )
    report = jax.tree.map(lambda number: jnp.where(present.any(), number, jnp.nan), report)
    return (
        LearnerState(
            client, end.client_optimizer, end.decoder, end.decoder_optimizer, server_optimizer
        ),
        report,
    )


def _local_step(
    local: _Local,
    batch: Batch,
    erasures: Erasures,
    shares: jax.Array,
    key: jax.Array,
    model: SplitModel,
    client_tx: optax.GradientTransformation,
    decoder_tx: optax.GradientTransformation,
    execution: Execution,
) -> tuple[_Local, _StepSums]:
    """One mini-batch in every cluster: leaves of the batch `[N, B, ...]`, `shares [N]`."""
    clusters, batch_size = jax.tree.leaves(batch)[0].shape[:2]
    present = shares > 0.0
    erasure_key, dropout_key = jax.random.split(key)
    example_weights = jax.vmap(sample_example_weights, in_axes=(0, None, 0, 0))(
        jax.random.split(erasure_key, clusters),
        batch_size,
        erasures.micro_batches,
        erasures.loss_probability,
    )
    gradient = jax.grad(_shared_loss, argnums=(0, 1), has_aux=True)
    (client_grads, decoder_grads), (loss_sum, token_count) = gradient(
        local.clients,
        local.decoder,
        batch,
        example_weights,
        shares,
        dropout_key,
        model,
        erasures.segments,
        execution,
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
    sums = _StepSums(
        loss_sum=jnp.where(present, loss_sum, 0.0).sum(),
        token_count=jnp.where(present, token_count, 0.0).sum(),
        erased_fraction=(present * (example_weights == 0.0).mean(1)).sum()
        / jnp.maximum(present.sum(), 1),
        gradient_norm=_norm((mean_client_grads, decoder_grads)),
    )
    clients, client_optimizer = select(
        present, (clients, client_optimizer), (local.clients, local.client_optimizer)
    )
    decoder, decoder_optimizer = select(
        present.any(), (decoder, decoder_optimizer), (local.decoder, local.decoder_optimizer)
    )
    return _Local(clients, client_optimizer, decoder, decoder_optimizer), sums


def _shared_loss(
    clients: Params,
    decoder: Params,
    batch: Batch,
    example_weights: jax.Array,
    shares: jax.Array,
    dropout_key: jax.Array,
    model: SplitModel,
    segments: jax.Array | None,
    execution: Execution,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """A scalar whose gradients are all that a step needs, from one pass of the decoder.

    Its value is `sum_n shares_n loss_n`, so its gradient by the decoder is the weighted
    mean of the clusters' gradients. On the way back to the clusters the share is
    divided out again, which leaves cluster n the gradient of its own `loss_n`. The
    decoder thus runs once over all `N B` examples, its matrix products are shared, and
    no per-cluster copy of its gradient ever exists.

    Args:
      clients: Leaves `[N, ...]`.
      decoder: The one decoder.
      batch: Leaves `[N, B, ...]`.
      example_weights: Erasure weights `[N, B]`.
      shares: `[N]`, sum 1 over the present clusters, 0 for absent ones.
      dropout_key: Scalar key of the step.
      model: What is trained.
      segments: `[N, K]`, for a pipeline.
      execution: What runs the encoder.

    Returns:
      The scalar, and `(loss_sum [N], token_count [N])` without erasure weights.
    """
    clusters, batch_size = example_weights.shape
    key = dropout_key if model.encoder.dropout_rate > 0.0 else None
    ids = jnp.arange(clusters * batch_size).reshape(clusters, batch_size)
    encoded = _encode_on_devices(clients, batch, ids, model, key, segments, execution)
    encoded = _scale_gradient(encoded, 1.0 / jnp.where(shares > 0.0, shares, 1.0))
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (encoded, batch, ids))
    losses, tokens = model.losses(decoder, flat[0], flat[1], example_keys(key, flat[2]))
    losses, tokens = losses.reshape(ids.shape), tokens.reshape(ids.shape)
    token_count = tokens.sum(1)
    cluster_loss = (example_weights * losses).sum(1) / jnp.maximum(token_count, 1.0)
    return (shares * cluster_loss).sum(), (losses.sum(1), token_count)


def _encode_on_devices(
    clients: Params,
    batch: Batch,
    example_ids: jax.Array,
    model: SplitModel,
    dropout_key: jax.Array | None,
    segments: jax.Array | None,
    execution: Execution,
) -> jax.Array:
    """What the clusters send up `[N, B, S, h]`: embedded on control units, encoded on devices."""

    def embed(client: Params, batch: Batch, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        return model.embed(client["embedding"], batch, example_keys(dropout_key, ids))

    x, mask = jax.vmap(embed)(clients, batch, example_ids)
    encoders, sizes, cut = clients["encoder"], model.encoder, execution.micro_batches
    if execution.backend == "sharded":
        slots = gather_clusters(encoders, sizes, segments)
        mesh = make_pipeline_mesh(*segments.shape)
        rest = mask, segments, dropout_key, example_ids
        return forward_clusters(slots, sizes, x, *rest, micro_batches=cut, mesh=mesh)

    def encode(params: Params, x: jax.Array, mask: jax.Array, segments, ids) -> jax.Array:
        rest = mask, segments, dropout_key, ids
        return forward(params, sizes, x, *rest, backend=execution.backend, micro_batches=cut)

    # One batched product for all clusters: neither a loop nor unrolling is faster on a CPU.
    return jax.vmap(encode)(encoders, x, mask, segments, example_ids)


@jax.custom_vjp
def _scale_gradient(x: jax.Array, scale: jax.Array) -> jax.Array:
    """The identity on `x [N, ...]`, whose gradient is multiplied by `scale [N]`."""
    del scale
    return x


def _scale_gradient_forward(x: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x, scale


def _scale_gradient_backward(scale: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, None]:
    return cotangent * scale.reshape(-1, *[1] * (cotangent.ndim - 1)), None


_scale_gradient.defvjp(_scale_gradient_forward, _scale_gradient_backward)


def _norm(tree: Any) -> jax.Array:
    """Euclidean norm over all leaves."""
    return jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)))


def _replicate(tree: Any, copies: int) -> Any:
    """Leaves `[...]` to `[copies, ...]`."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (copies, *leaf.shape)), tree)
