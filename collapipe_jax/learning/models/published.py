"""Sizes of a published model from its folder, whatever its kind."""

from pathlib import Path
from typing import Any

from collapipe_jax.core.files import read_object
from collapipe_jax.learning.models.causal_files import read_causal_config
from collapipe_jax.learning.models.config import (
    NGRAM_SIZES,
    PUBLISHED_SIZES,
    BertConfig,
    CausalConfig,
)
from collapipe_jax.learning.models.pretrained import BERT_TYPES, read_bert_config
from collapipe_jax.learning.models.tensor_files import CONFIG, read_json

FURTHER_SIZES = ("key_value_heads", "head_size", "query_bias", "query_key_norm")
"""Sizes of a decoder-only model that other models have not."""


def read_published_sizes(folder: str | Path) -> BertConfig | CausalConfig:
    """Sizes in ``config.json`` of a BERT, a Llama or a Qwen.

    Raises:
      InputError: a missing or unreadable file, or a model of another kind.
    """
    path = Path(folder) / CONFIG
    document = read_json(path, "Name the folder of a BERT, Llama or Qwen")
    is_bert = document.get("model_type") in BERT_TYPES
    return (read_bert_config if is_bert else read_causal_config)(path)[0]


def published_keys(folder: str | Path) -> dict[str, Any]:
    """Values of the configuration that follow from a model's folder, as ``"section.key"``.

    Raises:
      InputError: as :func:`read_published_sizes`.
    """
    sizes = read_published_sizes(folder)
    further = NGRAM_SIZES if isinstance(sizes, BertConfig) else FURTHER_SIZES
    rates = "dropout_rate", "attention_dropout_rate"
    keys: dict[str, Any] = {
        f"model.{name}": getattr(sizes, name)
        for name in (*PUBLISHED_SIZES, *further, *rates)
        if name != "vocabulary_size"
    }
    keys["task.vocabulary_size"] = sizes.vocabulary_size
    settings = read_object(Path(folder) / "tokenizer_config.json") or {}
    if isinstance(sizes, BertConfig) and isinstance(settings.get("do_lower_case"), bool):
        keys["task.lowercase"] = settings["do_lower_case"]
    return keys
