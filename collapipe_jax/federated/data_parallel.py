"""One round of learning under the data-parallel policies: every device is a client.

A client trains a copy of the whole model. In ``vanilla_fl`` the device holds all of it; in
``splitfed`` the upper part stands on the edge server, one replica for each device, and is
averaged with the rest at the end of the round (SplitFedV1, Thapa et al. 2004.12088). Both
therefore learn alike but for the messages that the channel erases.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from collapipe_jax.federated.aggregation import aggregate, present_shares, select, server_update
from collapipe_jax.federated.erasures import sample_example_weights
from collapipe_jax.federated.local_steps import (
    RoundLearning,
    StepSums,
    replicate,
    round_report,
    tree_norm,
)
from collapipe_jax.federated.shared_loss import loss_per_token
from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch, SplitModel, example_losses


class ClientsState(NamedTuple):
    """What lasts from round to round.

    Attributes:
      params: global ``{"embedding", "encoder", "decoder"}``.
      client_optimizer: state of every client's own optimisers, leaves ``[N K, ...]``, the
        devices of a cluster side by side.
      server_optimizer: state of the optimiser that aggregates.
    """

    params: Params
    client_optimizer: optax.OptState
    server_optimizer: optax.OptState


class ClientErasures(NamedTuple):
    """What the round's decision and channel do to learning; array values all.

    Attributes:
      samples: ``B_k [N, K]`` int32, each client's part of its cluster's mini-batch; 0 leaves
        a client out.
      loss_probability: ``P_k [N, K]``, of a client's one message a step and its answer.
    """

    samples: jax.Array
    loss_probability: jax.Array


class _Rows(NamedTuple):
    """Which examples a client reads, and which of them are padding.

    Attributes:
      ids: ``[N K, most_samples]``, numbers of the examples among all ``N B`` of a step.
      counted: ``[N K, most_samples]`` bool, False on padding.
    """

    ids: jax.Array
    counted: jax.Array


class _Local(NamedTuple):
    """Carry of the local steps, leaves ``[N K, ...]``."""

    clients: Params
    optimizer: optax.OptState


def init_clients(
    key: jax.Array,
    model: SplitModel,
    clusters: int,
    devices: int,
    client_tx: optax.GradientTransformation,
    decoder_tx: optax.GradientTransformation,
    server_tx: optax.GradientTransformation,
) -> ClientsState:
    """A fresh model and fresh optimisers.

    Args:
      key: scalar random key; the parameters are those of ``init_learner``.
      model: what is trained.
      clusters: ``N``.
      devices: ``K``.
      client_tx: a client's optimiser of embedding and encoder.
      decoder_tx: a client's optimiser of its decoder or head.
      server_tx: optimiser on the aggregated models; ``optax.sgd(1.0)`` is averaging.

    Returns:
      The state before the first round.
    """
    params = model.init(key)
    tx = _whole_model_optimizer(client_tx, decoder_tx)
    return ClientsState(
        params=params,
        client_optimizer=jax.vmap(tx.init)(replicate(params, clusters * devices)),
        server_optimizer=server_tx.init(params),
    )


@functools.partial(
    jax.jit, static_argnames=("model", "client_tx", "decoder_tx", "server_tx", "most_samples")
)
def train_clients_round(
    state: ClientsState,
    batches: Batch,
    erasures: ClientErasures,
    weights: jax.Array,
    key: jax.Array,
    *,
    model: SplitModel,
    client_tx: optax.GradientTransformation,
    decoder_tx: optax.GradientTransformation,
    server_tx: optax.GradientTransformation,
    most_samples: int,
) -> tuple[ClientsState, RoundLearning]:
    """H local steps in all clients, aggregation of whole models, and the server's step.

    The clients of a cluster share out its mini-batch in order: device k takes the ``B_k``
    examples behind those of the devices before it. It descends the loss per token of its
    part, which a lost message takes out of a step and a survivor's weight ``1 / (1 - P_k)``
    makes up for (docs/system-model.md, section 4, with one micro-batch). Whole models are
    averaged with weights ``w_n B_k / sum_j B_j`` (section 6), ``w_n`` rescaled over the
    clusters with any sample. A client without a sample, or of a cluster of weight 0,
    contributes nothing and keeps its optimisers' state; if nobody is present nothing
    changes at all.

    Args:
      state: before the round.
      batches: leaves ``[H, N, B, ...]``, as for ``train_round``.
      erasures: leaves ``[N, K]``; new values cost no compilation.
      weights: ``w_n [N]``, >= 0.
      key: scalar random key of the round (dropout and erasures).
      model: what is trained (static).
      client_tx: as for ``init_clients`` (static), and the next two.
      decoder_tx: see there.
      server_tx: see there.
      most_samples: most samples that a client may have (static); time and memory grow
        with it, values do not depend on it. Parts beyond it, or beyond B in all, give NaN
        throughout.

    Returns:
      ``(state, RoundLearning)`` after the round; the gradient is the weighted mean over
      clients.
    """
    steps, _, batch_size = jax.tree.leaves(batches)[0].shape[:3]
    shares = _client_shares(weights, erasures.samples)
    rows = _client_rows(erasures.samples, batch_size, most_samples)
    loss_probability = erasures.loss_probability.reshape(-1)
    tx = _whole_model_optimizer(client_tx, decoder_tx)

    def step(local: _Local, inputs: tuple[Batch, jax.Array]) -> tuple[_Local, StepSums]:
        return _clients_step(local, *inputs, rows, loss_probability, shares, model, tx)

    start = _Local(replicate(state.params, shares.size), state.client_optimizer)
    end, sums = jax.lax.scan(step, start, (batches, jax.random.split(key, steps)))
    present = shares > 0.0
    mean = aggregate(end.clients, shares, present, state.params)
    params, server_optimizer = server_update(
        state.params, mean, state.server_optimizer, server_tx, present.any()
    )
    told = params, round_report(sums, present.any())
    samples = erasures.samples
    fits = (samples <= most_samples).all() & (samples.sum(1) <= batch_size).all()
    params, report = select(fits, told, jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), told))
    return ClientsState(params, end.optimizer, server_optimizer), report


def _whole_model_optimizer(
    client_tx: optax.GradientTransformation, decoder_tx: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Both optimisers as one over the whole model, each with norms and state of its own part."""
    parts = {"embedding": "client", "encoder": "client", "decoder": "decoder"}
    return optax.partition({"client": client_tx, "decoder": decoder_tx}, parts)


def _client_shares(weights: jax.Array, samples: jax.Array) -> jax.Array:
    """Weights ``[N K]`` of the clients in the mean, sum 1, from ``w_n [N]`` and ``B_k [N, K]``."""
    held = samples.sum(1)
    part = samples / jnp.maximum(held, 1)[:, None]
    return (present_shares(weights, held > 0)[:, None] * part).reshape(-1)


def _client_rows(samples: jax.Array, batch_size: int, most_samples: int) -> _Rows:
    """Consecutive parts of every cluster's mini-batch, padded to one width."""
    clusters, _ = samples.shape
    place = jnp.arange(most_samples)[None, None]
    first, count = (jnp.cumsum(samples, axis=1) - samples)[..., None], samples[..., None]
    # A client's padding repeats its own last example: it never reads what others hold.
    row = first + jnp.minimum(place, jnp.maximum(count - 1, 0))
    row = jnp.minimum(row, batch_size - 1)
    ids = jnp.arange(clusters)[:, None, None] * batch_size + row
    return jax.tree.map(lambda a: a.reshape(-1, most_samples), _Rows(ids, place < count))


def _clients_step(
    local: _Local,
    batch: Batch,
    key: jax.Array,
    rows: _Rows,
    loss_probability: jax.Array,
    shares: jax.Array,
    model: SplitModel,
    tx: optax.GradientTransformation,
) -> tuple[_Local, StepSums]:
    """One part of a mini-batch in every client: leaves of the batch ``[N, B, ...]``.

    ``loss_probability`` and ``shares`` are ``[N K]``.
    """
    present = shares > 0.0
    erasure_key, dropout_key = jax.random.split(key)
    # One message a step: its examples share one weight, whatever their number.
    survival = jax.vmap(sample_example_weights, in_axes=(0, None, None, 0))(
        jax.random.split(erasure_key, shares.size), 1, 1, loss_probability
    )[:, 0]
    own = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[rows.ids], batch)
    loss = functools.partial(_client_loss, dropout_key=dropout_key, model=model)
    grads, (loss_sum, token_count) = jax.vmap(jax.grad(loss, has_aux=True))(
        local.clients, own, rows, survival
    )
    updates, optimizer = jax.vmap(tx.update)(grads, local.optimizer, local.clients)
    stepped = _Local(optax.apply_updates(local.clients, updates), optimizer)
    nothing = jax.tree.map(lambda g: jnp.zeros_like(g[0]), grads)
    count = jnp.where(present, rows.counted.sum(1), 0)
    sums = StepSums(
        loss_sum=jnp.where(present, loss_sum, 0.0).sum(),
        token_count=jnp.where(present, token_count, 0.0).sum(),
        erased_fraction=(count * (survival == 0.0)).sum() / jnp.maximum(count.sum(), 1),
        gradient_norm=tree_norm(aggregate(grads, shares, present, nothing)),
    )
    return select(present, stepped, local), sums


def _client_loss(
    params: Params,
    batch: Batch,
    rows: _Rows,
    survival: jax.Array,
    *,
    dropout_key: jax.Array,
    model: SplitModel,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """One client's loss, and its ``(loss_sum, token_count)`` without the erasure weight.

    Leaves of batch and rows are ``[most_samples, ...]``, ``survival`` is ``[]``. Dropout goes by
    the numbers of the examples, so it does not depend on how the mini-batch is shared out.
    """
    key = dropout_key if model.encoder.dropout_rate > 0.0 else None
    losses, tokens = example_losses(model, params, batch, key, rows.ids)
    tokens = jnp.where(rows.counted, tokens, 0.0)
    loss = loss_per_token(losses, tokens, jnp.where(rows.counted, survival, 0.0))
    return loss, (jnp.where(rows.counted, losses, 0.0).sum(), tokens.sum())
