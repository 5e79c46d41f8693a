"""Encoder-decoder Transformer for translation, cut between control unit, devices and server.

``embed`` runs on the control unit, ``encoder.encode`` on the devices, ``decode`` and the
loss on the edge server.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from safetensors.numpy import save

from collapipe_jax.core.errors import InputError, rename_error_keys
from collapipe_jax.core.files import write_bytes, write_json
from collapipe_jax.learning.models.block import MemoryBlock, Norm, encode, init_encoder
from collapipe_jax.learning.models.config import PAD_ID, Ids, TransformerConfig
from collapipe_jax.learning.models.layers import (
    Params,
    bind,
    filled_share,
    init_norm,
    init_stack,
    layer_keys,
    narrowed,
    run_stack,
    shortened,
    summed_cross_entropy,
    vocabulary_scores,
)
from collapipe_jax.learning.models.split_model import SplitModel
from collapipe_jax.learning.models.tensor_files import (
    CONFIG,
    WEIGHTS,
    check_same,
    leaves,
    read_json,
    read_tensors,
    shapes_and_types,
)


class TranslationBatch(NamedTuple):
    """Token numbers of a batch of sentence pairs, int32, 0 where padded."""

    source_ids: Ids  # [B, source_length]
    target_ids: Ids  # [B, target_length + 1], from start to end token


def init_params(key: Array, config: TransformerConfig) -> Params:
    """Fresh parameters of the whole model, the server's table, blocks and norms as "decoder"."""
    embedding_key, encoder_key, table_key, decoder_key = jax.random.split(key, 4)
    return {
        "embedding": _init_table(embedding_key, config),
        "encoder": init_encoder(encoder_key, config),
        "decoder": {
            "embedding": _init_table(table_key, config),
            "memory_norm": init_norm(config),
            "blocks": init_stack(MemoryBlock, decoder_key, config, config.decoder_blocks),
            "norm": init_norm(config),
        },
    }


def _init_table(key: Array, config: TransformerConfig) -> Params:
    """A table of variance 1 / h: 1 once scaled by sqrt(h), as are logits by the tied table."""
    shape = (config.vocabulary_size, config.width)
    return {"embedding": jax.random.normal(key, shape) * config.width**-0.5}


def embed(
    embedding_params: Params, config: TransformerConfig, ids: Array, start: Array | int = 0
) -> Array:
    """Token embeddings times sqrt(h) plus sinusoidal positions (Vaswani et al. 1706.03762).

    A position has sines in the first half of its row, then cosines.
    A number in ``ids [B, S]`` outside the vocabulary is clamped to its end. The first token
    stands at position ``start``, an array value.
    """
    table = embedding_params["embedding"]
    tokens = table.at[ids].get(mode="clip") * math.sqrt(config.width)
    rate = jnp.exp(-math.log(10_000.0) * jnp.arange(0, config.width, 2) / config.width)
    angle = (start + jnp.arange(ids.shape[1]))[:, None] * rate[None, :]
    return tokens + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)[None]


def decode(
    decoder_params: Params,
    config: TransformerConfig,
    target_in: Array,
    memory: Array,
    memory_mask: Array,
    keys: Array | None = None,
) -> Array:
    """Hidden states ``[B, T, h]`` of the decoder after the final norm, with a causal mask.

    Args:
      decoder_params, config, keys: as in ``models``.
      target_in: target tokens from the start token on, ``[B, T]``.
      memory: the encoder's output ``[B, S, h]``, not yet normed.
      memory_mask: ``[B, S]``, True on real source tokens.
    """
    x = embed(decoder_params["embedding"], config, target_in)
    memory = bind(Norm, config, decoder_params["memory_norm"])(memory)
    memory = narrowed(memory, config)
    causal = jnp.tril(jnp.ones((x.shape[1],) * 2, bool))[None]
    # The encoder's layers come first in the count, so that no two layers share keys.
    layers = config.encoder_blocks + jnp.arange(config.decoder_blocks)

    def run_block(x: Array, params: Params, layer: Array) -> Array:
        module = bind(MemoryBlock, config, params)
        source = *module.memory_attention.project(memory), memory_mask[:, None, :]
        return module(x, causal, layer_keys(keys, layer), memory=source)[0]

    x = run_stack(run_block, config, decoder_params["blocks"], layers, x)
    return bind(Norm, config, decoder_params["norm"])(x)


def logits(decoder_params: Params, config: TransformerConfig, hidden: Array) -> Array:
    """Scores ``[..., V]`` of the next token from hidden states ``[..., h]``; tied weights."""
    return vocabulary_scores(decoder_params["embedding"]["embedding"].T, hidden, config)


def source_memory(params: Params, config: TransformerConfig, source_ids: Array) -> Array:
    """The encoded source ``[B, S, h]``, without dropout."""
    x = embed(params["embedding"], config, source_ids)
    return encode(params["encoder"], config, x, source_ids != PAD_ID)


@dataclasses.dataclass(frozen=True)
class Translator(SplitModel):
    """The encoder-decoder; batches are ``TranslationBatch``.

    The loss is label-smoothed cross entropy, summed over the target's tokens.
    """

    sizes: TransformerConfig

    @property
    def unsmoothed(self) -> "Translator":
        """The same model, its loss without label smoothing."""
        return Translator(dataclasses.replace(self.sizes, label_smoothing=0.0))

    def init(self, key: Array) -> Params:
        """Fresh parameters of all three parts."""
        return init_params(key, self.sizes)

    def embed(
        self, embedding_params: Params, batch: TranslationBatch, keys: Array | None
    ) -> tuple[Array, Array]:
        """Embedded sources and their mask, without dropout."""
        del keys
        x = embed(embedding_params, self.sizes, batch.source_ids)
        return x, batch.source_ids != PAD_ID

    def losses(
        self, decoder_params: Params, encoded: Array, batch: TranslationBatch, keys: Array | None
    ) -> tuple[Array, Array]:
        """Loss in nats and number of target tokens of every example ``[B]``."""
        target_in, target_out = batch.target_ids[:, :-1], batch.target_ids[:, 1:]
        mask = batch.source_ids != PAD_ID
        hidden = decode(decoder_params, self.sizes, target_in, encoded, mask, keys)
        scores, scored = logits(decoder_params, self.sizes, hidden), target_out != PAD_ID
        return summed_cross_entropy(scores, target_out, scored, self.sizes.label_smoothing)

    def filled(self, batch: TranslationBatch) -> np.ndarray:
        """Share of the row that the longer of source and target fills."""
        return np.maximum(filled_share(batch.source_ids), filled_share(batch.target_ids))

    def shortened(self, batch: TranslationBatch, share: float) -> TranslationBatch:
        """The same pairs in shorter rows."""
        return TranslationBatch(*(shortened(rows, share) for rows in batch))


# The encoder-decoder in a layout of its own: ``config.json`` and ``model.safetensors``.
#
# ``config.json`` has ``model_type``, ``format_version`` and the fields of ``TransformerConfig``
# but for the adapters, which are in the weights. A tensor is named by its path in the
# parameters, as ``decoder/blocks/attention/query/kernel``.

_MODEL_TYPE, _FORMAT_VERSION = "collapipe_translation", 1
_FIELDS = [
    field.name for field in dataclasses.fields(TransformerConfig) if field.name != "adapters"
]


def save_translator(
    folder: Path, config: TransformerConfig, params: Params, settings: Mapping[str, Any]
) -> None:
    """Write sizes, parameters and further keys of ``config.json``, that file the last."""
    tensors = {path: np.ascontiguousarray(leaf) for path, leaf in leaves(params).items()}
    write_bytes(folder / WEIGHTS, save(tensors))
    head = {"model_type": _MODEL_TYPE, "format_version": _FORMAT_VERSION}
    sizes = {name: getattr(config, name) for name in _FIELDS}
    write_json(folder / CONFIG, head | sizes | dict(settings))


def load_translator(folder: Path) -> tuple[TransformerConfig, Params, dict[str, Any]]:
    """Sizes, parameters as of ``init_params``, and further keys of ``config.json``.

    Raises:
      InputError: on a missing or unreadable file, another format, wrong sizes, or tensors that
        are missing, unknown, not finite, or of another shape or type.
    """
    path = folder / CONFIG
    document = read_json(path, "Name the folder of a trained translator")
    for key, known in (("model_type", _MODEL_TYPE), ("format_version", _FORMAT_VERSION)):
        if (found := document.pop(key, None)) != known:
            remedy = "Name a folder that this version wrote"
            raise InputError(f"{path}: {key}", found, f"not {known!r}", remedy)
    missing = [name for name in _FIELDS if name not in document]
    if missing:
        raise InputError(str(path), ", ".join(missing), "missing", "Take the original file")
    with rename_error_keys({f"model.{name}": f"{path}: {name}" for name in _FIELDS}):
        config = TransformerConfig(**{name: document.pop(name) for name in _FIELDS})
    expected = jax.eval_shape(lambda key: init_params(key, config), jax.random.key(0))
    tensors = read_tensors(folder / WEIGHTS, lambda name: name)
    check_same(folder / WEIGHTS, shapes_and_types(expected), shapes_and_types(tensors))
    params = [jnp.asarray(tensors[name]) for name in leaves(expected)]
    return config, jax.tree.unflatten(jax.tree.structure(expected), params), document
