"""BERT with a head as models that the network cuts: tagging and sequence classification."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from collapipe_jax.models.bert import embed_bert, init_bert, pool
from collapipe_jax.models.config import PAD_ID, BertConfig
from collapipe_jax.models.cross_entropy import cross_entropy
from collapipe_jax.models.encoder import encode
from collapipe_jax.models.layers import Params, dropout, initial_weights, layer_keys

UNLABELLED = -1
"""Label of a token that is not scored."""


class TaggingBatch(NamedTuple):
    """Texts with a label at every token that is scored.

    Attributes:
      token_ids: ``[B, S]`` int32, 0 where padded.
      labels: ``[B, S]`` int32, ``UNLABELLED`` where a token is not scored.
    """

    token_ids: jax.Array
    labels: jax.Array


class ClassificationBatch(NamedTuple):
    """Texts with one label each.

    Attributes:
      token_ids: ``[B, S]`` int32, 0 where padded.
      labels: ``[B]`` int32.
    """

    token_ids: jax.Array
    labels: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Bert:
    """Common parts of both models.

    Attributes:
      sizes: of BERT.
      labels: number of labels.
      label_smoothing: share in [0, 1) of the target's mass spread over the labels.
      pools: whether the head reads the pooled text.
    """

    pools: ClassVar[bool]

    sizes: BertConfig
    labels: int
    label_smoothing: float = 0.0

    @property
    def encoder(self) -> BertConfig:
        """Sizes of the encoder."""
        return self.sizes

    @property
    def unsmoothed(self) -> "_Bert":
        """The same model, its loss without label smoothing."""
        return dataclasses.replace(self, label_smoothing=0.0)

    def embed(
        self,
        embedding_params: Params,
        batch: TaggingBatch | ClassificationBatch,
        keys: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Embedded tokens and their mask; all texts are of one type."""
        x = embed_bert(embedding_params, self.sizes, batch.token_ids, None, keys)
        return x, batch.token_ids != PAD_ID

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters; the head, and the pooler where it is read, are the decoder."""
        body_key, head_key = jax.random.split(key)
        body = init_bert(body_key, self.sizes)
        pooler = body.pop("pooler")
        kernel = initial_weights(self.sizes)(head_key, (self.sizes.width, self.labels))
        decoder = {"head": {"kernel": kernel, "bias": jnp.zeros(self.labels)}}
        return body | {"decoder": decoder | ({"pooler": pooler} if self.pools else {})}

    def _drop(self, x: jax.Array, keys: jax.Array | None) -> jax.Array:
        """Dropout before the head, which draws as the layer after the embedding."""
        return dropout(
            x, layer_keys(keys, self.sizes.encoder_blocks + 1), 0, self.sizes.dropout_rate
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertTagger(_Bert):
    """A label for every token: dropout and a linear map."""

    pools = False

    def scores(
        self, decoder_params: Params, encoded: jax.Array, keys: jax.Array | None = None
    ) -> jax.Array:
        """Logits ``[B, S, labels]`` from hidden states ``[B, S, h]``."""
        return _linear(decoder_params["head"], self._drop(encoded, keys))

    def losses(
        self,
        decoder_params: Params,
        encoded: jax.Array,
        batch: TaggingBatch,
        keys: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Cross entropy in nats summed over the scored tokens, and their number ``[B]``."""
        scored = batch.labels != UNLABELLED
        targets = jnp.where(scored, batch.labels, 0)
        losses = cross_entropy(
            self.scores(decoder_params, encoded, keys), targets, self.label_smoothing
        )
        return jnp.where(scored, losses, 0.0).sum(-1), scored.sum(-1).astype(losses.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertClassifier(_Bert):
    """A label for a text: pooler, dropout and a linear map."""

    pools = True

    def scores(
        self, decoder_params: Params, encoded: jax.Array, keys: jax.Array | None = None
    ) -> jax.Array:
        """Logits ``[B, labels]`` from hidden states ``[B, S, h]``."""
        pooled = pool(decoder_params["pooler"], encoded)
        return _linear(decoder_params["head"], self._drop(pooled, keys))

    def losses(
        self,
        decoder_params: Params,
        encoded: jax.Array,
        batch: ClassificationBatch,
        keys: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Cross entropy in nats and 1 for every text ``[B]``."""
        scores = self.scores(decoder_params, encoded, keys)
        losses = cross_entropy(scores, batch.labels, self.label_smoothing)
        return losses, jnp.ones_like(losses)


def predict(
    model: BertTagger | BertClassifier, params: Params, batch: TaggingBatch | ClassificationBatch
) -> jax.Array:
    """Likeliest label of every token ``[B, S]``, or of every text ``[B]``."""
    x, mask = model.embed(params["embedding"], batch, None)
    encoded = encode(params["encoder"], model.sizes, x, mask)
    return model.scores(params["decoder"], encoded).argmax(-1)


def _linear(params: Params, x: jax.Array) -> jax.Array:
    bias = params["bias"].reshape((1,) * (x.ndim - 1) + (-1,))
    return x @ params["kernel"] + bias
