"""A decoder-only language model, cut between control unit, devices and edge server.

The control unit looks tokens up, ``encoder.encode`` runs the blocks on the devices, and the edge
server has the last norm and the table of outputs.

The two tables are apart: neither has to travel because of the other. A model whose file ties
them starts with two equal ones, and training moves each by its own gradient.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from collapipe_jax.learning.models.block import RMSNorm, encode, init_encoder
from collapipe_jax.learning.models.config import CausalConfig, Ids
from collapipe_jax.learning.models.layers import (
    Params,
    bind,
    dropout,
    filled_share,
    layer_keys,
    shortened,
    summed_cross_entropy,
    vocabulary_scores,
)
from collapipe_jax.learning.models.split_model import SplitModel

NOTHING = -1
"""Number in place of a token behind a text: any from 0 on may be a token of a vocabulary."""


class CausalBatch(NamedTuple):
    """Texts with their first and last token; int32, ``NOTHING`` behind them."""

    token_ids: Ids  # [B, S + 1]; each token but the first is predicted from those before it
    # Which tokens are part of the loss, bool [B, S + 1]: of an exchange the answer's; the first of
    # a text is not. None where all are that have a token before them
    scored: Any = None
    # Packed rows: number from 1 of each token's text in its row, 0 behind the texts, [B, S + 1].
    # None where a row has one text
    segment_ids: Ids | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalLM(SplitModel):
    """Next-token prediction; batches are ``CausalBatch``.

    Parameters are ``{"embedding": {"word" [V, h]}, "encoder", "decoder": {"norm", "word"}}``.
    """

    sizes: CausalConfig
    label_smoothing: float = 0.0  # share in [0, 1) of the target's mass spread over the vocabulary

    @property
    def unsmoothed(self) -> "CausalLM":
        """The same model, its loss without label smoothing."""
        return dataclasses.replace(self, label_smoothing=0.0)

    def init(self, key: Array) -> Params:
        """Fresh parameters of all three parts."""
        sizes, (word_key, encoder_key, output_key) = self.sizes, jax.random.split(key, 3)
        law = nnx.initializers.truncated_normal(sizes.table_deviation)
        shape = sizes.vocabulary_size, sizes.width
        return {
            "embedding": {"word": law(word_key, shape)},
            "encoder": init_encoder(encoder_key, sizes),
            "decoder": {"norm": {"scale": jnp.ones(sizes.width)}, "word": law(output_key, shape)},
        }

    def embed(
        self, embedding_params: Params, batch: CausalBatch, keys: Array | None
    ) -> tuple[Array, Array]:
        """Rows of the table for all tokens but the last, and which are tokens, or of which text."""
        ids, texts = batch.token_ids[:, :-1], batch.segment_ids
        mask = ids != NOTHING if texts is None else texts[:, :-1]
        x = look_up(embedding_params, ids)
        # The embedding draws as the layer after the blocks.
        keys = layer_keys(keys, self.sizes.encoder_blocks)
        return dropout(x, keys, 0, self.sizes.dropout_rate), mask

    def losses(
        self, decoder_params: Params, encoded: Array, batch: CausalBatch, keys: Array | None
    ) -> tuple[Array, Array]:
        """Cross entropy in nats summed over all tokens but the first, and their number ``[B]``."""
        del keys
        targets, scored = batch.token_ids[:, 1:], scored_targets(batch)
        scores = next_scores(decoder_params, self.sizes, encoded)
        targets = jnp.where(scored, targets, 0)
        return summed_cross_entropy(scores, targets, scored, self.label_smoothing)

    def rows_read(self, batch: CausalBatch) -> dict[str, Array]:
        """Tokens of the texts; what lies behind a text is no row."""
        ids = batch.token_ids[..., :-1]
        return {"word": jnp.where(ids == NOTHING, self.sizes.vocabulary_size, ids)}

    def filled(self, batch: CausalBatch) -> np.ndarray:
        """Share of the row that its texts fill."""
        return filled_share(batch.token_ids - NOTHING)  # which has 0 for nothing

    def shortened(self, batch: CausalBatch, share: float) -> CausalBatch:
        """The same texts in shorter rows."""
        return jax.tree.map(lambda rows: shortened(rows, share), batch)


def scored_targets(batch: CausalBatch) -> Array:
    """Which predictions are part of the loss, ``[B, S]``."""
    is_token = batch.token_ids[:, 1:] != NOTHING
    return is_token if batch.scored is None else is_token & batch.scored[:, 1:]


def look_up(embedding_params: Params, ids: Array) -> Array:
    """Rows ``[B, S, h]`` of the table; a number outside the vocabulary is clamped to its end."""
    return embedding_params["word"].at[jnp.maximum(ids, 0)].get(mode="clip")


def next_scores(decoder_params: Params, sizes: CausalConfig, hidden: Array) -> Array:
    """Scores ``[..., V]`` of the next token from the last block's output ``[..., h]``."""
    normed = bind(RMSNorm, sizes, decoder_params["norm"])(hidden)
    return vocabulary_scores(decoder_params["word"].T, normed, sizes)


@functools.partial(jax.jit, static_argnums=0)
def logits(model: CausalLM, params: Params, batch: CausalBatch) -> Array:
    """Scores ``[B, S, V]`` of what follows each token but the last of its row."""
    x, mask = model.embed(params["embedding"], batch, None)
    encoded = encode(params["encoder"], model.sizes, x, mask)
    return next_scores(params["decoder"], model.sizes, encoded)
