"""Sizes of BERT in ``config.json`` of Hugging Face."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collapipe_jax.errors import InputError
from collapipe_jax.models.config import BertConfig

_SIZES = {
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "feed_forward_width": "intermediate_size",
    "encoder_blocks": "num_hidden_layers",
    "vocabulary_size": "vocab_size",
    "positions": "max_position_embeddings",
    "token_types": "type_vocab_size",
}

# With the values that stand for an absent key.
_SHARES = {
    "dropout_rate": ("hidden_dropout_prob", 0.1),
    "norm_epsilon": ("layer_norm_eps", 1e-12),
    "initial_deviation": ("initializer_range", 0.02),
}

# The first name is the one that is written.
_ACTIVATIONS = {
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh"),
    "relu": ("relu",),
}

# What keys must hold for the encoder to be ours; the first value stands for an absent key.
_REQUIRED: dict[str, tuple[object, ...]] = {
    "model_type": ("bert",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}


def read_config(path: Path) -> BertConfig:
    """Sizes on file.

    Keys that change the encoder's output are read, or refused where they are not supported.

    Raises:
      InputError: on an unreadable file, or naming the key that is wrong or not supported.
    """
    document = read_json(path)
    for key, allowed in _REQUIRED.items():
        if document.get(key, allowed[0]) not in allowed:
            remedy = f"Take a checkpoint where it is {allowed[0]!r}"
            raise InputError(f"{path}: {key}", document[key], "is not supported", remedy)
    found: dict[str, Any] = {
        **{ours: _size(path, document, theirs) for ours, theirs in _SIZES.items()},
        **{ours: _share(path, document, *theirs) for ours, theirs in _SHARES.items()},
    }
    attention_rate = _share(path, document, "attention_probs_dropout_prob", 0.1)
    if attention_rate != found["dropout_rate"]:
        key = f"{path}: attention_probs_dropout_prob"
        problem = f"differs from hidden_dropout_prob {found['dropout_rate']}"
        raise InputError(key, attention_rate, problem, "Give both the same rate")
    return BertConfig(**found, activation=_activation(path, document))


def read_json(path: Path) -> Mapping[str, Any]:
    """The JSON object on file.

    Raises:
      InputError: if the file cannot be read or holds anything else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        remedy = "Name the directory of a BERT checkpoint"
        raise InputError("file", str(path), f"cannot be read ({error})", remedy) from None
    if not isinstance(document, dict):
        raise InputError("file", str(path), "holds no JSON object", "Take the original file")
    return document


def _size(path: Path, document: Mapping[str, Any], key: str) -> int:
    value = document.get(key)
    if type(value) is not int or value < 1:
        raise InputError(f"{path}: {key}", value, "is no positive integer", "Give the model's")
    return value


def _share(path: Path, document: Mapping[str, Any], key: str, absent: float) -> float:
    value = document.get(key, absent)
    if type(value) not in (int, float) or not 0.0 <= value < 1.0:
        raise InputError(f"{path}: {key}", value, "is no number in [0, 1)", "Give the model's")
    return float(value)


def _activation(path: Path, document: Mapping[str, Any]) -> str:
    theirs = document.get("hidden_act", "gelu")
    for ours, names in _ACTIVATIONS.items():
        if theirs in names:
            return ours
    known = ", ".join(name for names in _ACTIVATIONS.values() for name in names)
    raise InputError(f"{path}: hidden_act", theirs, "is not supported", f"Supported are {known}")


def config_document(config: BertConfig) -> dict[str, Any]:
    """``config.json`` of these sizes.

    Raises:
      InputError: on a norm other than BERT's, or fresh weights without a deviation.
    """
    problem = "cannot be said in config.json"
    if config.norm != "post":
        raise InputError("model.norm", config.norm, problem, "BERT's norm is 'post'")
    if config.initial_deviation == 0.0:
        remedy = "Give the deviation of fresh weights, 0.02 in BERT"
        raise InputError("model.initial_deviation", 0.0, problem, remedy)
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "dtype": "float32",
        "hidden_act": _ACTIVATIONS[config.activation][0],
        "attention_probs_dropout_prob": config.dropout_rate,
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        **{theirs: getattr(config, ours) for ours, (theirs, _) in _SHARES.items()},
    }
