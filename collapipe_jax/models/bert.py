"""BERT (Devlin et al. 1810.04805), cut between control unit, devices and edge server.

``embed_bert`` runs on the control unit, ``encoder.encode`` on the devices, ``pool`` and a head
on the edge server. Parameters are ``{"embedding", "encoder", "pooler"}``.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from collapipe_jax.errors import InputError
from collapipe_jax.models.config import BertConfig
from collapipe_jax.models.encoder import encode, init_encoder
from collapipe_jax.models.layers import (
    Norm,
    Params,
    bind,
    dropout,
    example_keys,
    initial_weights,
    layer_keys,
)


def init_bert(key: Array, config: BertConfig) -> Params:
    """Fresh parameters of BERT.

    Returns:
      ``{"embedding", "encoder", "pooler"}``: tables ``word [V, h]``, ``position [P, h]`` and
      ``token_type [T, h]`` with their norm, the blocks ``[L, ...]``, and the pooler.
    """
    tables_key, encoder_key, pooler_key = jax.random.split(key, 3)
    rows = {
        "word": config.vocabulary_size,
        "position": config.positions,
        "token_type": config.token_types,
    }
    # The inputs of a table's row are the width's numbers, not the rows: with a deviation of
    # 0 in the configuration, LeCun's law would favour the shortest table.
    law = nnx.initializers.truncated_normal(config.initial_deviation or config.width**-0.5)
    tables = {
        name: law(table_key, (count, config.width))
        for (name, count), table_key in zip(
            rows.items(), jax.random.split(tables_key, 3), strict=True
        )
    }
    norm = {"scale": jnp.ones(config.width), "bias": jnp.zeros(config.width)}
    return {
        "embedding": {**tables, "norm": norm},
        "encoder": init_encoder(encoder_key, config),
        "pooler": init_pooler(pooler_key, config),
    }


def init_pooler(key: Array, config: BertConfig) -> Params:
    """Fresh parameters of the pooler, ``{"kernel": [h, h], "bias": [h]}``."""
    kernel = initial_weights(config)(key, (config.width, config.width))
    return {"kernel": kernel, "bias": jnp.zeros(config.width)}


def embed_bert(
    embedding_params: Params,
    config: BertConfig,
    token_ids: Array,
    token_types: Array | None = None,
    keys: Array | None = None,
) -> Array:
    """Input of the first block: word, position and token type, summed, normed, dropped.

    Args:
      embedding_params: tables ``word``, ``position`` and ``token_type``, and ``norm``.
      config: sizes.
      token_ids: ``[B, S]``; a number outside the vocabulary is clamped to its end.
      token_types: ``[B, S]``, clamped likewise; all 0 when None.
      keys: the embedding draws as layer ``L``, next to the blocks ``0 .. L - 1``; a head's
        dropout takes layers from ``L + 1`` on.

    Returns:
      ``[B, S, h]``, of the tables' type.

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
    x = bind(Norm, config, embedding_params["norm"])(x)
    return dropout(x, layer_keys(keys, config.encoder_blocks), 0, config.dropout_rate)


def pool(pooler_params: Params, hidden: Array) -> Array:
    """One vector ``[B, h]`` a text: a linear map and tanh of the first token's hidden state."""
    return jnp.tanh(hidden[:, 0] @ pooler_params["kernel"] + pooler_params["bias"][None])


def bert_encode(
    params: Params,
    config: BertConfig,
    token_ids: Array,
    mask: Array,
    token_types: Array | None,
    *,
    dropout_key: Array | None = None,
    example_ids: Array | None = None,
) -> tuple[Array, Array | None]:
    """The whole of BERT on one device.

    Returns:
      ``(hidden [B, S, h], pooled [B, h])``; ``pooled`` is None for parameters without "pooler".

    Raises:
      InputError: if ``S`` exceeds the number of positions.
    """
    ids = jnp.arange(token_ids.shape[0]) if example_ids is None else example_ids
    keys = example_keys(dropout_key, ids)
    x = embed_bert(params["embedding"], config, token_ids, token_types, keys)
    hidden = encode(params["encoder"], config, x, mask, dropout_key, ids)
    return hidden, pool(params["pooler"], hidden) if "pooler" in params else None
