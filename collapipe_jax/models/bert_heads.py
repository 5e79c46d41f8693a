"""BERT with a head as models that the network cuts: tagging and sequence classification."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.models.bert import embed_bert, init_bert, pool
from collapipe_jax.models.config import PAD_ID, BertConfig, Ids
from collapipe_jax.models.cross_entropy import cross_entropy
from collapipe_jax.models.encoder import encode
from collapipe_jax.models.layers import Params, dropout, initial_weights, layer_keys

UNLABELLED = -1
"""Label of a token that is not scored."""


class LabelledBatch(NamedTuple):
    """Texts with a label at every scored token, or one a text.

    Attributes:
      token_ids: ``[B, S]`` int32, 0 where padded.
      labels: ``[B, S]`` or ``[B]`` int32, ``UNLABELLED`` where nothing is scored.
    """

    token_ids: Ids
    labels: Ids


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertWithHead:
    """BERT, dropout and a linear map, as a ``SplitModel``; batches are ``LabelledBatch``.

    Attributes:
      sizes: of BERT.
      labels: number of labels.
      pools: whether the head labels the pooled text instead of every token.
      label_smoothing: share in [0, 1) of the target's mass spread over the labels.
    """

    sizes: BertConfig
    labels: int
    pools: bool
    label_smoothing: float = 0.0

    @property
    def encoder(self) -> BertConfig:
        """Sizes of the encoder."""
        return self.sizes

    @property
    def unsmoothed(self) -> "BertWithHead":
        """The same model, its loss without label smoothing."""
        return dataclasses.replace(self, label_smoothing=0.0)

    def init(self, key: Array) -> Params:
        """Fresh parameters; head and pooler are the decoder."""
        body_key, head_key = jax.random.split(key)
        body = init_bert(body_key, self.sizes)
        pooler = body.pop("pooler")
        kernel = initial_weights(self.sizes)(head_key, (self.sizes.width, self.labels))
        decoder = {"head": {"kernel": kernel, "bias": jnp.zeros(self.labels)}}
        return body | {"decoder": decoder | ({"pooler": pooler} if self.pools else {})}

    def embed(
        self, embedding_params: Params, batch: LabelledBatch, keys: Array | None
    ) -> tuple[Array, Array]:
        """Embedded tokens and their mask; all texts are of one type."""
        x = embed_bert(embedding_params, self.sizes, batch.token_ids, None, keys)
        return x, batch.token_ids != PAD_ID

    def scores(self, decoder_params: Params, encoded: Array, keys: Array | None = None) -> Array:
        """Logits ``[B, S, labels]`` or ``[B, labels]`` from hidden states ``[B, S, h]``."""
        x = pool(decoder_params["pooler"], encoded) if self.pools else encoded
        # The head draws as the layer after the embedding's.
        keys = layer_keys(keys, self.sizes.encoder_blocks + 1)
        return _linear(decoder_params["head"], dropout(x, keys, 0, self.sizes.dropout_rate))

    def losses(
        self, decoder_params: Params, encoded: Array, batch: LabelledBatch, keys: Array | None
    ) -> tuple[Array, Array]:
        """Cross entropy in nats summed over the scored labels, and their number ``[B]``."""
        scored = batch.labels != UNLABELLED
        targets = jnp.where(scored, batch.labels, 0)
        scores = self.scores(decoder_params, encoded, keys)
        losses = cross_entropy(scores, targets, self.label_smoothing)
        axes = tuple(range(1, losses.ndim))
        return jnp.where(scored, losses, 0.0).sum(axes), scored.sum(axes).astype(losses.dtype)


def predict(model: BertWithHead, params: Params, batch: LabelledBatch) -> Array:
    """Likeliest label of every token ``[B, S]``, or of every text ``[B]``."""
    x, mask = model.embed(params["embedding"], batch, None)
    encoded = encode(params["encoder"], model.sizes, x, mask)
    return model.scores(params["decoder"], encoded).argmax(-1)


def _linear(params: Params, x: Array) -> Array:
    bias = params["bias"].reshape((1,) * (x.ndim - 1) + (-1,))
    return x @ params["kernel"] + bias
