"""BERT's masked language model: pieces that were hidden, from those around them.

The head lies at the edge server: a linear map, an activation, a norm, and scores of all pieces.
The published model ties the table of scores to the embedding. The embedding lies at the control
units, so the server has a table of its own, and nothing more travels.

Source: Devlin et al. 1810.04805, section 3.1.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from collapipe_jax.learning.models.bert import UNLABELLED, BertBody, init_bert
from collapipe_jax.learning.models.block import Norm, encode
from collapipe_jax.learning.models.config import BertConfig, Ids
from collapipe_jax.learning.models.layers import (
    ACTIVATIONS,
    Params,
    add_bias,
    apply_linear,
    bind,
    init_linear,
    init_norm,
    summed_cross_entropy,
    vocabulary_scores,
)


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


def piece_scores(head_params: Params, config: BertConfig, states: Array) -> Array:
    """Logits ``[..., V]`` of all pieces from hidden states ``[..., h]``."""
    x = ACTIVATIONS[config.activation](apply_linear(head_params["transform"], states))
    x = bind(Norm, config, head_params["transform_norm"])(x)
    output = head_params["output"]
    return add_bias(vocabulary_scores(output["kernel"], x, config), output["bias"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedBert(BertBody):
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
        return piece_scores(decoder_params, self.sizes, states)

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
