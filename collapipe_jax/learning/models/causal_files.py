"""Llama, Qwen2 and Qwen3 in the layout of Hugging Face: ``config.json`` and safetensors.

PyTorch keeps the weights of a linear map as ``[outputs, inputs]``, we as ``[inputs, outputs]``.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from collapipe_jax.core.errors import InputError, rename_error_keys
from collapipe_jax.learning.models.causal_lm import CausalLM
from collapipe_jax.learning.models.config import CausalConfig, RotaryScaling
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.tensor_files import (
    CAUSAL,
    CONFIG,
    as_tensors,
    check_same,
    fill_params,
    read_all,
    read_json,
    refuse_unsupported,
    shapes_and_types,
    write_checkpoint,
)

_KEY_VALUE_HEADS, _HEAD_SIZE, _ROTARY_BASE = "num_key_value_heads", "head_dim", "rope_theta"
_ROTARY = "rope_parameters"  # of versions from 5 on
_ROTARY_BEFORE = "rope_scaling"  # of versions before
# Keys of the scaling of Llama 3 there, by our field.
_SCALING = {
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "original_positions": "original_max_position_embeddings",
}

# By whether queries, keys and values have biases, and queries and keys norms.
_MODEL_TYPES = {(False, False): "llama", (True, False): "qwen2", (False, True): "qwen3"}
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# What keys must hold for the blocks to be ours; the first value stands for an absent key.
_REQUIRED: dict[str, tuple[object, ...]] = {
    "model_type": tuple(_CLASSES),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "quantization_config": (None,),
}

_EMBEDDING, _OUTPUT = (CAUSAL.tensors[path] for path in ("embedding/word", "decoder/word"))


def load_causal_lm(directory: str | Path) -> tuple[CausalConfig, Params, dict[str, Any]]:
    """Sizes and parameters of a checkpoint, to start from or to use.

    Reads checkpoints of ``LlamaForCausalLM``, ``Qwen2ForCausalLM`` and ``Qwen3ForCausalLM``, whole
    or in shards. 16-bit numbers become float32. Of tied tables each part of the model gets a copy.

    Args:
      directory: holds ``config.json``, and ``model.safetensors`` or its shards with
        ``model.safetensors.index.json``.

    Returns:
      ``(config, params, document)``, parameters as ``CausalLM.init`` returns them, and all of
      ``config.json``.

    Raises:
      InputError: on a missing or unreadable file, an unsupported key of ``config.json``, as of
        rotary positions scaled in another way than in Llama 3, or tensors that are missing,
        unknown, given twice, not finite, or of another shape or type.
    """
    directory = Path(directory)
    config, document = read_causal_config(directory / CONFIG)
    tensors = read_all(directory, _without_buffers)
    table = tensors.get(f"{_EMBEDDING}.weight")
    if table is not None and document.get("tie_word_embeddings", False):
        tensors.setdefault(f"{_OUTPUT}.weight", table)
    return config, fill_params(directory, _expected(config), tensors, CAUSAL.tensors), document


def save_causal_lm(
    directory: str | os.PathLike[str],
    config: CausalConfig,
    params: Params,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint for ``load_causal_lm`` and ``from_pretrained`` of ``transformers``.

    Each file is whole or not there, ``config.json`` last; files of the same names are
    replaced. Tables that are equal are written once, as tied. The layout has no place for
    dropout but that of attention weights, nor for ``rematerialise`` and ``compute_dtype``.

    Args:
      directory: made where it is missing.
      config: sizes, with a deviation of fresh weights.
      params: as ``CausalLM.init`` returns them, float32.
      settings: further keys of ``config.json``.

    Raises:
      InputError: on a configuration that the layout cannot express, or parameters that are not
        the configuration's.
    """
    directory = Path(directory)
    document = _config_document(config)
    check_same("params", shapes_and_types(_expected(config)), shapes_and_types(params))
    tensors = as_tensors(jax.tree.map(np.asarray, params), CAUSAL.tensors)
    output = tensors.pop(f"{_OUTPUT}.weight")
    document["tie_word_embeddings"] = np.array_equal(output, tensors[f"{_EMBEDDING}.weight"])
    if not document["tie_word_embeddings"]:
        tensors[f"{_OUTPUT}.weight"] = output
    write_checkpoint(directory, tensors, {CONFIG: document | dict(settings or {})})


def _expected(config: CausalConfig) -> Params:
    """Shapes and types of all parameters."""
    return jax.eval_shape(CausalLM(sizes=config).init, jax.random.key(0))


def _without_buffers(name: str) -> str | None:
    """The name of a tensor; None for the rates of rotation, which older versions stored."""
    return None if name.endswith(".rotary_emb.inv_freq") else name


def read_causal_config(path: Path) -> tuple[CausalConfig, dict[str, Any]]:
    """Sizes on file, and all that is there.

    Keys that change the output are read, or refused where they are not supported.
    """
    document = read_json(path, "Name the directory of a Llama or Qwen checkpoint")
    refuse_unsupported(path, document, _REQUIRED)
    sizes = CAUSAL.read_sizes(document)
    names = {"key_value_heads": _KEY_VALUE_HEADS, "head_size": _HEAD_SIZE}
    names |= {"rotary_base": _ROTARY_BASE}
    sizes["key_value_heads"] = document.get(_KEY_VALUE_HEADS) or sizes["heads"]
    sizes["head_size"], width = document.get(_HEAD_SIZE), sizes["width"]
    if not sizes["head_size"]:
        known = isinstance(width, int) and isinstance(sizes["heads"], int)
        sizes["head_size"] = width // max(sizes["heads"], 1) if known else None
    rotary = _rotary(path, document)
    base = rotary.get(_ROTARY_BASE, document.get(_ROTARY_BASE, 10_000))
    whole = isinstance(base, float) and base.is_integer()
    sizes["rotary_base"] = int(base) if whole else base
    kind = next(kind for kind, name in _MODEL_TYPES.items() if name == document["model_type"])
    names |= {ours: f"{_ROTARY}.{theirs}" for ours, theirs in _SCALING.items()}
    keys = {f"model.{ours}": f"{path}: {theirs}" for ours, theirs in names.items()}
    with rename_error_keys(CAUSAL.size_keys(path) | keys):
        if _kind(rotary) == "llama3":
            scaling: dict[str, Any] = {ours: rotary.get(key) for ours, key in _SCALING.items()}
            sizes["rotary_scaling"] = RotaryScaling(**scaling)
        config = CausalConfig(**sizes, query_bias=kind[0], query_key_norm=kind[1])
    return config, document


def _rotary(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of rotary positions; an ``InputError`` where they are scaled otherwise."""
    found: dict[str, Any] = {}
    for key in (_ROTARY_BEFORE, _ROTARY):
        rotary = document.get(key) or {}
        if not isinstance(rotary, dict) or _kind(rotary) not in ("default", "llama3"):
            problem = "this scaling of rotary positions is not supported"
            remedy = "Take a checkpoint without, or Llama 3"
            raise InputError(f"{path}: {key}", rotary, problem, remedy)
        found |= rotary
    return found


def _kind(rotary: Mapping[str, Any]) -> Any:
    """Kind of the scaling, under its newer or its older key."""
    return rotary.get("rope_type", rotary.get("type", "default"))


def model_type(config: CausalConfig) -> str:
    """Llama, Qwen2 or Qwen3, as ``config.json`` names the one that has these blocks."""
    if (kind := (config.query_bias, config.query_key_norm)) not in _MODEL_TYPES:
        problem, remedy = "has no place in config.json", "Qwen3, which norms queries, has none"
        raise InputError("model.query_bias", True, problem, remedy)
    return _MODEL_TYPES[kind]


def _config_document(config: CausalConfig) -> dict[str, Any]:
    """``config.json`` of these sizes."""
    problem = "has no place in config.json"
    if config.activation != "silu":
        raise InputError("model.activation", config.activation, problem, "The gate's is 'silu'")
    kind, base = model_type(config), float(config.rotary_base)
    rotary: dict[str, Any] = {"rope_type": "default", _ROTARY_BASE: base}
    if config.rotary_scaling is not None:
        rotary |= {"rope_type": "llama3"}
        rotary |= {key: getattr(config.rotary_scaling, ours) for ours, key in _SCALING.items()}
    return {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        "dtype": "float32",
        "hidden_act": "silu",
        **CAUSAL.written_sizes(config),
        "attention_dropout": config.attention_rate,
        _KEY_VALUE_HEADS: config.key_value_heads,
        _HEAD_SIZE: config.head_size,
        # Versions before 5 read these two, later ones the third.
        _ROTARY_BASE: base,
        **({_ROTARY_BEFORE: rotary} if config.rotary_scaling is not None else {}),
        _ROTARY: rotary,
    }
