"""BERT (Devlin et al. 1810.04805), cut between control unit, devices and edge server.

``embed_bert`` runs on the control unit, ``encoder.encode`` on the devices, ``pool`` and a head
for tagging or classification on the edge server. A tagger's head may be a chain of tags.
"""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.block import Norm, encode, init_encoder
from collapipe_jax.learning.models.config import PAD_ID, BertConfig, Ids
from collapipe_jax.learning.models.layers import (
    ACTIVATIONS,
    Params,
    add_bias,
    apply_linear,
    bind,
    dropout,
    filled_share,
    init_linear,
    init_norm,
    layer_keys,
    shortened,
    summed_cross_entropy,
    vocabulary_scores,
)
from collapipe_jax.learning.models.split_model import SplitModel

POOLINGS = ("first", "mean")
"""Hidden state that stands for a text: that of its first piece, or the mean of all."""
HEADS = ("linear", "bio", "crf")
"""Choice of tags: each on its own, without impossible pairs, or with learnt scores of pairs."""

UNLABELLED = -1
"""Label of a token that is not scored."""


class LabelledBatch(NamedTuple):
    """Texts with a label at every scored token, or one a text; int32."""

    token_ids: Ids  # [B, S], 0 where padded
    labels: Ids  # [B, S] or [B], UNLABELLED where nothing is scored
    # Buckets [B, S, G] of the n-grams of the word that a piece begins, from 1 on, and 0 for none;
    # None for a model without n-grams
    ngrams: Ids | None = None


def init_bert(key: Array, config: BertConfig) -> Params:
    """Fresh parameters of BERT.

    Returns:
      ``{"embedding", "encoder", "pooler"}``, the first with tables ``word [V, h]``,
      ``position [P, h]`` and ``token_type [T, h]``, and their norm.
    """
    tables_key, encoder_key, pooler_key = jax.random.split(key, 3)
    rows = {
        "word": config.vocabulary_size,
        "position": config.positions,
        "token_type": config.token_types,
    }
    law = nnx.initializers.truncated_normal(config.table_deviation)
    keys = jax.random.split(tables_key, 3)
    tables = {name: law(k, (rows[name], config.width)) for name, k in zip(rows, keys, strict=True)}
    if config.ngram_buckets:
        ngram_key = jax.random.fold_in(tables_key, len(rows))
        tables["ngram"] = law(ngram_key, (config.ngram_buckets, config.width))
    return {
        "embedding": {**tables, "norm": init_norm(config)},
        "encoder": init_encoder(encoder_key, config),
        "pooler": init_linear(pooler_key, config.width, config.width, config),
    }


def embed_bert(
    embedding_params: Params,
    config: BertConfig,
    token_ids: Array,
    token_types: Array | None = None,
    keys: Array | None = None,
    ngrams: Array | None = None,
) -> Array:
    """Input ``[B, S, h]`` of the first block: three embeddings, summed, normed, dropped.

    With n-grams a fourth is the sum of their embeddings, divided as the sizes say.

    Args:
      embedding_params: tables ``word``, ``position`` and ``token_type``, and ``norm``.
      config: sizes.
      token_ids: ``[B, S]``; a number outside the vocabulary is clamped to its end.
      token_types: ``[B, S]``, clamped likewise; all 0 when None.
      keys: the embedding draws as layer ``L``, next to the blocks ``0 .. L - 1``.
      ngrams: as in ``LabelledBatch``.

    Raises:
      InputError: if ``S`` exceeds the number of positions.
    """
    length = token_ids.shape[1]
    if length > config.positions:
        problem = f"is more tokens than the {config.positions} positions that the model has"
        remedy = "Cut the text, or take a model with more positions"
        raise InputError("token_ids", length, problem, remedy)
    if token_types is None:
        token_types = jnp.zeros_like(token_ids)
    x = embedding_params["word"].at[token_ids].get(mode="clip")
    # Rows rather than a slice, whose gradient XLA's CPU backend sums over a padded table.
    x = x + embedding_params["position"].at[jnp.arange(length)].get(mode="clip")[None]
    x = x + embedding_params["token_type"].at[token_types].get(mode="clip")
    if ngrams is not None:
        x = x + combined_rows(embedding_params["ngram"], ngrams, config.ngram_combiner)
    x = bind(Norm, config, embedding_params["norm"])(x)
    return dropout(x, layer_keys(keys, config.encoder_blocks), 0, config.dropout_rate)


def combined_rows(table: Array, numbers: Array, combiner: str) -> Array:
    """Combination ``[B, S, h]`` of the rows ``[B, S, G]`` of a table, which count from 1.

    The number 0 is no row. The sum of n rows is divided by n or, for "sqrtn", by ``sqrt(n)``. The
    latter leaves independent rows their deviation. One row of every piece is added at a time, so
    all of them are never in memory.

    Source: Bojanowski et al. 1607.04606, section 3.2; ``tf.nn.embedding_lookup_sparse``.
    """

    def add(total: Array, column: Array) -> tuple[Array, None]:
        rows = table.at[column - 1].get(mode="clip")
        return total + jnp.where((column > 0)[..., None], rows, 0.0), None

    numbers = numbers.astype(jnp.int32)
    start = jnp.zeros((*numbers.shape[:-1], table.shape[-1]), table.dtype)
    total, _ = jax.lax.scan(add, start, jnp.moveaxis(numbers, -1, 0))
    count = jnp.maximum((numbers > 0).sum(-1, keepdims=True), 1)
    return total / (jnp.sqrt(count) if combiner == "sqrtn" else count)


def pool(pooler_params: Params, hidden: Array, averaged: Array | None = None) -> Array:
    """One vector ``[B, h]`` a text: a linear map and tanh of a hidden state.

    It is that of the first token, or the mean over those marked in ``averaged [B, S]``.
    """
    if averaged is None:
        state = hidden[:, 0]
    else:
        weights = averaged[..., None].astype(hidden.dtype)
        state = (hidden * weights).sum(1) / jnp.maximum(weights.sum(1), 1.0)
    return jnp.tanh(apply_linear(pooler_params, state))


def bert_encode(
    params: Params,
    config: BertConfig,
    token_ids: Array,
    mask: Array,
    token_types: Array | None,
    keys: Array | None = None,
) -> tuple[Array, Array | None]:
    """The whole of BERT on one device; arguments and errors as in ``embed_bert``.

    Returns:
      ``(hidden [B, S, h], pooled [B, h])``; ``pooled`` is None for parameters without "pooler".
    """
    x = embed_bert(params["embedding"], config, token_ids, token_types, keys)
    hidden = encode(params["encoder"], config, x, mask, keys)
    return hidden, pool(params["pooler"], hidden) if "pooler" in params else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _BertBody(SplitModel):
    """BERT without a head; batches have ``token_ids`` and ``ngrams`` as ``LabelledBatch``."""

    sizes: BertConfig

    def embed(
        self, embedding_params: Params, batch: Any, keys: Array | None
    ) -> tuple[Array, Array]:
        """Embedded tokens and their mask; all texts are of one type."""
        x = embed_bert(embedding_params, self.sizes, batch.token_ids, None, keys, batch.ngrams)
        return x, batch.token_ids != PAD_ID

    def rows_read(self, batch: Any) -> dict[str, Array]:
        """Tokens of the texts, and the n-grams of their words."""
        rows = {"word": batch.token_ids}
        if batch.ngrams is None:
            return rows
        numbers, buckets = batch.ngrams.astype(jnp.int32), self.sizes.ngram_buckets
        return rows | {"ngram": jnp.where(numbers > 0, numbers - 1, buckets)}

    def filled(self, batch: Any) -> np.ndarray:
        """Share of the row that a text fills."""
        return filled_share(batch.token_ids)

    def shortened(self, batch: Any, share: float) -> Any:
        """The same texts in shorter rows."""
        ngrams = batch.ngrams
        if ngrams is not None:
            ngrams = np.swapaxes(shortened(np.swapaxes(ngrams, -1, -2), share), -1, -2)
        return batch._replace(token_ids=shortened(batch.token_ids, share), ngrams=ngrams)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertWithHead(_BertBody):
    """BERT, dropout and a linear map; batches are ``LabelledBatch``."""

    labels: int
    pools: bool  # whether the head labels the pooled text instead of every token
    # share in [0, 1) of the target's mass spread over the labels; not of the head "crf"
    label_smoothing: float = 0.0
    pooling: str = "first"  # one of ``POOLINGS``
    head: str = "linear"  # one of ``HEADS``, of a model that does not pool
    # Pairs of labels of which the second must not follow the first; of "bio" and "crf"
    forbidden: tuple[tuple[int, int], ...] = ()

    @property
    def unsmoothed(self) -> "BertWithHead":
        """The same model, its loss without label smoothing."""
        return dataclasses.replace(self, label_smoothing=0.0)

    def init(self, key: Array) -> Params:
        """Fresh parameters; head and pooler are the decoder."""
        body_key, head_key = jax.random.split(key)
        body = init_bert(body_key, self.sizes)
        pooler = body.pop("pooler")
        decoder: Params = {"head": init_linear(head_key, self.sizes.width, self.labels, self.sizes)}
        if self.head == "crf":
            decoder["transitions"] = jnp.zeros((self.labels, self.labels))
        return body | {"decoder": decoder | ({"pooler": pooler} if self.pools else {})}

    def scores(
        self, decoder_params: Params, encoded: Array, mask: Array, keys: Array | None = None
    ) -> Array:
        """Logits ``[B, S, labels]`` or ``[B, labels]`` from hidden states ``[B, S, h]``."""
        x = encoded
        if self.pools:
            averaged = mask if self.pooling == "mean" else None
            x = pool(decoder_params["pooler"], encoded, averaged)
        # The head draws as the layer after the embedding's.
        keys = layer_keys(keys, self.sizes.encoder_blocks + 1)
        x = dropout(x, keys, 0, self.sizes.dropout_rate)
        return apply_linear(decoder_params["head"], x)

    def losses(
        self, decoder_params: Params, encoded: Array, batch: LabelledBatch, keys: Array | None
    ) -> tuple[Array, Array]:
        """Cross entropy in nats summed over the scored labels, and their number ``[B]``."""
        scored = batch.labels != UNLABELLED
        targets = jnp.where(scored, batch.labels, 0)
        scores = self.scores(decoder_params, encoded, batch.token_ids != PAD_ID, keys)
        if self.head == "crf":
            losses = chain_losses(scores, self.transitions(decoder_params), targets, scored)
            return losses, scored.sum(1).astype(losses.dtype)
        return summed_cross_entropy(scores, targets, scored, self.label_smoothing)

    def transitions(self, decoder_params: Params) -> Array:
        """Scores ``[labels, labels]`` of a tag after another."""
        free = jnp.zeros((self.labels, self.labels))
        return allowed_transitions(decoder_params.get("transitions", free), self.forbidden)

    def shortened(self, batch: LabelledBatch, share: float) -> LabelledBatch:
        """The same texts in shorter rows."""
        labels = batch.labels if self.pools else shortened(batch.labels, share)
        return super().shortened(batch, share)._replace(labels=labels)


def logits(model: BertWithHead, params: Params, batch: LabelledBatch) -> Array:
    """Logits of every token ``[B, S, labels]``, or of every text ``[B, labels]``."""
    x, mask = model.embed(params["embedding"], batch, None)
    encoded = encode(params["encoder"], model.sizes, x, mask)
    return model.scores(params["decoder"], encoded, mask)


@functools.partial(jax.jit, static_argnums=0)
def predict(model: BertWithHead, params: Params, batch: LabelledBatch) -> Array:
    """Likeliest label of every token ``[B, S]``, or of every text ``[B]``.

    With another head than "linear", labels of the batch mark the tokens of the sequence.
    """
    scores = logits(model, params, batch)
    if model.head == "linear":
        return scores.argmax(-1)
    scored = batch.labels != UNLABELLED
    return likeliest_tags(scores, model.transitions(params["decoder"]), scored)


@functools.partial(jax.jit, static_argnums=0)
def label_probabilities(model: BertWithHead, params: Params, batch: LabelledBatch) -> Array:
    """Probabilities of the labels of texts, ``[B, labels]``."""
    return jax.nn.softmax(logits(model, params, batch))


_FORBIDDEN_SCORE = -1e4
"""Finite, so that differences of scores stay numbers."""


def allowed_transitions(transitions: Array, forbidden: Collection[tuple[int, int]]) -> Array:
    """Scores ``[T, T]`` from tag to tag, with pairs of numbers that must not follow each other."""
    blocked = np.zeros(transitions.shape, bool)
    for before, after in forbidden:
        blocked[before, after] = True
    return jnp.where(blocked, _FORBIDDEN_SCORE, transitions)


def chain_losses(emissions: Array, transitions: Array, tags: Array, scored: Array) -> Array:
    """Negative log likelihood of the tags of each row in nats, ``[B]``.

    The logarithm of the sum over all sequences comes from the forward algorithm.

    Args:
      emissions: ``[B, S, T]``.
      transitions: ``[T, T]``.
      tags: numbers ``[B, S]``, read where scored.
      scored: ``[B, S]``; a row without any position has the loss 0.
    """

    def step(carry: tuple, inputs: tuple) -> tuple[tuple, None]:
        log_sums, path, previous, begun = carry
        emission, tag, now = inputs
        own = jnp.take_along_axis(emission, tag[:, None], axis=1)[:, 0]
        path_after = path + own + jnp.where(begun, transitions[previous, tag], 0.0)
        arrived = jax.nn.logsumexp(log_sums[:, :, None] + transitions[None], axis=1)
        sums_after = emission + jnp.where(begun[:, None], arrived, 0.0)
        log_sums = jnp.where(now[:, None], sums_after, log_sums)
        path, previous = jnp.where(now, path_after, path), jnp.where(now, tag, previous)
        return (log_sums, path, previous, begun | now), None

    rows, _, labels = emissions.shape
    start = (jnp.zeros((rows, labels), emissions.dtype), jnp.zeros(rows, emissions.dtype))
    start += (jnp.zeros(rows, tags.dtype), jnp.zeros(rows, bool))
    inputs = jnp.moveaxis(emissions, 1, 0), tags.T, scored.T
    (log_sums, path, _, begun), _ = jax.lax.scan(step, start, inputs)
    return jnp.where(begun, jax.nn.logsumexp(log_sums, axis=1) - path, 0.0)


def likeliest_tags(emissions: Array, transitions: Array, scored: Array) -> Array:
    """Tags ``[B, S]`` of the sequence with the highest score, by Viterbi's algorithm.

    Arguments as of ``chain_losses``. Values at positions that are not scored mean nothing.
    """
    labels = emissions.shape[-1]

    def forward(carry: tuple, inputs: tuple) -> tuple[tuple, Array]:
        best, begun = carry
        emission, now = inputs
        arriving = best[:, :, None] + transitions[None]
        moves = (begun & now)[:, None]
        after = emission + jnp.where(moves, arriving.max(1), 0.0)
        came_from = jnp.where(moves, arriving.argmax(1), jnp.arange(labels)[None])
        return (jnp.where(now[:, None], after, best), begun | now), came_from

    def backward(tag: Array, came_from: Array) -> tuple[Array, Array]:
        before = jnp.take_along_axis(came_from, tag[:, None], axis=1)[:, 0]
        return before, tag

    start = jnp.zeros((len(emissions), labels), emissions.dtype), jnp.zeros(len(emissions), bool)
    inputs = jnp.moveaxis(emissions, 1, 0), scored.T
    (best, _), came_from = jax.lax.scan(forward, start, inputs)
    _, tags = jax.lax.scan(backward, best.argmax(-1), came_from, reverse=True)
    return tags.T


# BERT's masked language model: pieces that were hidden, from those around them.
#
# The head lies at the edge server: a linear map, an activation, a norm, and scores of all
# pieces. The published model ties the table of scores to the embedding. The embedding lies at
# the control units, so the server has a table of its own, and nothing more travels.
#
# Source: Devlin et al. 1810.04805, section 3.1.


class MaskedBatch(NamedTuple):
    """Texts with hidden pieces; int32."""

    token_ids: Ids  # [B, S], 0 where padded
    positions: Ids  # [B, P], where pieces are to be found
    labels: Ids  # [B, P], these pieces; UNLABELLED where a text has fewer
    ngrams: Ids | None = None  # as in ``LabelledBatch``


def init_masked_lm_head(key: Array, config: BertConfig) -> Params:
    """Fresh parameters ``{"transform", "transform_norm", "output"}`` of the head."""
    transform_key, output_key = jax.random.split(key)
    return {
        "transform": init_linear(transform_key, config.width, config.width, config),
        "transform_norm": init_norm(config),
        "output": init_linear(output_key, config.width, config.vocabulary_size, config),
    }


def _piece_scores(head_params: Params, config: BertConfig, states: Array) -> Array:
    """Logits ``[..., V]`` of all pieces from hidden states ``[..., h]``."""
    x = ACTIVATIONS[config.activation](apply_linear(head_params["transform"], states))
    x = bind(Norm, config, head_params["transform_norm"])(x)
    output = head_params["output"]
    return add_bias(vocabulary_scores(output["kernel"], x, config), output["bias"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedBert(_BertBody):
    """BERT with the head above; batches are ``MaskedBatch``."""

    label_smoothing: float = 0.0  # share in [0, 1) of the target's mass spread over the pieces

    @property
    def unsmoothed(self) -> "MaskedBert":
        """The same model, its loss without label smoothing."""
        return dataclasses.replace(self, label_smoothing=0.0)

    def init(self, key: Array) -> Params:
        """Fresh parameters; the head is the decoder, and there is no pooler."""
        body_key, head_key = jax.random.split(key)
        body = init_bert(body_key, self.sizes)
        del body["pooler"]
        return body | {"decoder": init_masked_lm_head(head_key, self.sizes)}

    def scores(self, decoder_params: Params, encoded: Array, positions: Array) -> Array:
        """Logits ``[B, P, V]`` at positions ``[B, P]``, from hidden states ``[B, S, h]``."""
        states = jnp.take_along_axis(encoded, positions[..., None], axis=1)
        return _piece_scores(decoder_params, self.sizes, states)

    def losses(
        self, decoder_params: Params, encoded: Array, batch: MaskedBatch, keys: Array | None
    ) -> tuple[Array, Array]:
        """Cross entropy in nats summed over the hidden pieces, and their number ``[B]``."""
        del keys  # as published, the head drops nothing
        scored = batch.labels != UNLABELLED
        scores = self.scores(decoder_params, encoded, batch.positions)
        targets = jnp.where(scored, batch.labels, 0)
        return summed_cross_entropy(scores, targets, scored, self.label_smoothing)


@functools.partial(jax.jit, static_argnums=0)
def predict_pieces(model: MaskedBert, params: Params, batch: MaskedBatch) -> Array:
    """Logits ``[B, P, V]`` of the pieces at the positions of a batch."""
    x, mask = model.embed(params["embedding"], batch, None)
    encoded = encode(params["encoder"], model.sizes, x, mask)
    return model.scores(params["decoder"], encoded, batch.positions)
