"""BERT in the layout of Hugging Face: ``config.json`` and ``model.safetensors``.

Layout: https://huggingface.co/docs/transformers/model_doc/bert. PyTorch keeps the weights of a
linear map as ``[outputs, inputs]``, we as ``[inputs, outputs]``.
"""

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from safetensors.numpy import save

from collapipe_jax.errors import InputError, under_keys
from collapipe_jax.files.atomic import write_bytes, write_text
from collapipe_jax.models.bert import init_bert
from collapipe_jax.models.config import BertConfig
from collapipe_jax.models.layers import Params, init_linear
from collapipe_jax.models.tensor_files import (
    CONFIG,
    WEIGHTS,
    check_same,
    leaves,
    read_all,
    read_json,
    shapes,
    shapes_and_types,
)

_read_json = functools.partial(read_json, remedy="Name the directory of a BERT checkpoint")

# Sizes in ``config.json``, with the values that stand for an absent key.
_SIZES = {
    "width": ("hidden_size", None),
    "heads": ("num_attention_heads", None),
    "feed_forward_width": ("intermediate_size", None),
    "encoder_blocks": ("num_hidden_layers", None),
    "vocabulary_size": ("vocab_size", None),
    "positions": ("max_position_embeddings", None),
    "token_types": ("type_vocab_size", None),
    "dropout_rate": ("hidden_dropout_prob", 0.1),
    "attention_dropout_rate": ("attention_probs_dropout_prob", 0.1),
    "norm_epsilon": ("layer_norm_eps", 1e-12),
    "initial_deviation": ("initializer_range", 0.02),
}

# Ours by theirs. Of two names the first is the one that is written.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}

# What keys must hold for the encoder to be ours; the first value stands for an absent key.
_REQUIRED: dict[str, tuple[object, ...]] = {
    "model_type": ("bert",),
    "hidden_act": tuple(_ACTIVATIONS),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}

# Names in ``BertModel`` by the path of our layer or table; {} is the number of a block.
_TENSORS = {
    "embedding/word": "embeddings.word_embeddings",
    "embedding/position": "embeddings.position_embeddings",
    "embedding/token_type": "embeddings.token_type_embeddings",
    "embedding/norm": "embeddings.LayerNorm",
    "encoder/attention/query": "encoder.layer.{}.attention.self.query",
    "encoder/attention/key": "encoder.layer.{}.attention.self.key",
    "encoder/attention/value": "encoder.layer.{}.attention.self.value",
    "encoder/attention/out": "encoder.layer.{}.attention.output.dense",
    "encoder/attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "encoder/feed_forward/inner": "encoder.layer.{}.intermediate.dense",
    "encoder/feed_forward/outer": "encoder.layer.{}.output.dense",
    "encoder/feed_forward_norm": "encoder.layer.{}.output.LayerNorm",
    "pooler": "pooler.dense",
    "head": "classifier",
}
_HEAD = "classifier."

# Heads of pretraining and question answering, and the numbers 0 .. P - 1 that older versions
# stored.
_UNUSED = ("cls.", "qa_outputs.", "embeddings.position_ids")


def load_bert(directory: str | Path) -> tuple[BertConfig, Params]:
    """Sizes and parameters of a BERT checkpoint, to start from.

    Reads checkpoints of ``BertModel`` and of the models that contain one as ``bert.``, whole or in
    shards, with ``gamma`` and ``beta`` for a norm's weight and bias in older ones. 16-bit numbers
    become float32. Heads (``cls.*``, ``classifier.*``, ``qa_outputs.*``) and the buffer
    ``embeddings.position_ids`` are not read; any other name that BERT does not have is an error.

    Args:
      directory: holds ``config.json``, and ``model.safetensors`` or its shards with
        ``model.safetensors.index.json``. The vocabulary is the tokenizer's and not read.

    Returns:
      ``(config, params)``, parameters as ``init_bert`` returns them, float32; without "pooler"
      where the checkpoint has none, as of ``BertForTokenClassification``.

    Raises:
      InputError: on a missing or unreadable file, an unsupported key of ``config.json``, or
        tensors that are missing, unknown, given twice, not finite, or of another shape or type.
    """
    directory = Path(directory)
    config, _ = _read_config(directory / CONFIG)
    return config, _fill(directory, config, _read_all(directory, (*_UNUSED, _HEAD)), labels=0)


def load_labelling_bert(directory: str | Path) -> tuple[BertConfig, Params, tuple[str, ...]]:
    """Sizes, parameters with "head", and names of the labels; arguments and errors likewise.

    Reads checkpoints of ``BertForSequenceClassification`` and ``BertForTokenClassification``.
    """
    directory = Path(directory)
    config, document = _read_config(directory / CONFIG)
    named: Any = document.get("id2label")
    try:
        labels = tuple(str(named[str(number)]) for number in range(len(named)))
    except (KeyError, TypeError):
        labels = ()
    if not labels:
        problem = "is no object of labels by their numbers from 0 on"
        remedy = "Name a model with a head for labels"
        raise InputError(f"{directory / CONFIG}: id2label", named, problem, remedy)
    return config, _fill(directory, config, _read_all(directory, _UNUSED), len(labels)), labels


def _fill(
    directory: Path, config: BertConfig, tensors: Mapping[str, np.ndarray], labels: int
) -> Params:
    """Parameters of tensors by name, which are checked; of no labels there is no head."""
    pooler = any(name.startswith("pooler.") for name in tensors)
    expected = _expected_params(config, pooler, labels)
    params = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), expected)
    ours = _as_tensors(params)
    check_same(directory, shapes(ours), shapes(dict(tensors)))
    for name, tensor in tensors.items():
        ours[name][...] = tensor
    return jax.tree.map(jnp.asarray, params)


def save_bert(
    directory: str | os.PathLike[str],
    config: BertConfig,
    params: Params,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint for ``load_bert`` and ``from_pretrained`` of ``transformers``.

    Each file is whole or not there, ``config.json`` the last; files of the same names are
    replaced. The layout has no place for ``rematerialise`` and ``compute_dtype``.

    Args:
      directory: made where it is missing.
      config: sizes; post-norm, and with a deviation of fresh weights.
      params: as ``init_bert`` returns them, float32. Without "pooler" they are read by
        ``BertModel.from_pretrained(directory, add_pooling_layer=False)``. A linear map "head"
        makes them those of ``BertForSequenceClassification``, or of
        ``BertForTokenClassification`` without "pooler".
      settings: further keys of ``config.json``, as of ``label_settings``.

    Raises:
      InputError: on a configuration that the layout cannot express, or parameters that are not
        the configuration's.
    """
    directory, labels = Path(directory), len(params["head"]["bias"]) if "head" in params else 0
    document = _config_document(config) | dict(settings or {})
    expected = _expected_params(config, "pooler" in params, labels)
    check_same("params", shapes_and_types(expected), shapes_and_types(params))
    tensors = _as_tensors(jax.tree.map(np.asarray, params))
    body = "bert." if labels else ""
    tensors = {
        name if name.startswith(_HEAD) else body + name: np.ascontiguousarray(tensor)
        for name, tensor in tensors.items()
    }
    # `from_pretrained` insists on this mark of PyTorch's layout.
    write_bytes(directory / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    write_text(directory / CONFIG, json.dumps(document, indent=2, sort_keys=True) + "\n")


def label_settings(labels: Sequence[str], *, pools: bool) -> dict[str, Any]:
    """Keys of ``config.json`` of a model with a head: its class, and the names of its labels."""
    kind = "Sequence" if pools else "Token"
    settings: dict[str, Any] = {
        "architectures": [f"BertFor{kind}Classification"],
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
        "num_labels": len(labels),
    }
    # With one label it would be a regression.
    if pools and len(labels) > 1:
        settings["problem_type"] = "single_label_classification"
    return settings


def _expected_params(config: BertConfig, pooler: bool, labels: int) -> Params:
    """Shapes and types of all parameters."""

    def init(key: Array) -> Params:
        head = {"head": init_linear(key, config.width, labels, config)} if labels else {}
        return init_bert(key, config) | head

    expected = jax.eval_shape(init, jax.random.key(0))
    return {name: part for name, part in expected.items() if pooler or name != "pooler"}


def _as_tensors(params: Params) -> dict[str, np.ndarray]:
    """The tensors of ``BertModel`` by their names, sharing memory with our leaves."""
    tensors = {}
    for path, leaf in leaves(params).items():
        layer, _, kind = path.rpartition("/")
        name = _TENSORS[path if path in _TENSORS else layer]
        name += ".bias" if kind == "bias" else ".weight"
        leaf = np.swapaxes(leaf, -1, -2) if kind == "kernel" else leaf
        blocks = enumerate(leaf) if path.startswith("encoder/") else [(0, leaf)]
        tensors |= {name.format(block): tensor for block, tensor in blocks}
    return tensors


def _read_all(directory: Path, unused: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The tensors of BERT and its head by their names in ``BertModel``, but for unused ones."""
    return read_all(directory, functools.partial(_canonical, unused=unused))


def _canonical(name: str, unused: tuple[str, ...]) -> str | None:
    """A tensor's name as ``BertModel`` has it today; None for what begins as an unused one."""
    name = name.removeprefix("bert.")
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return None if name.startswith(unused) else name


def _read_config(path: Path) -> tuple[BertConfig, dict[str, Any]]:
    """Sizes on file, and all that is there.

    Keys that change the encoder's output are read, or refused where they are not supported.
    """
    document = _read_json(path)
    for key, allowed in _REQUIRED.items():
        if document.get(key, allowed[0]) not in allowed:
            remedy = f"Take a checkpoint where it is {allowed[0]!r}"
            raise InputError(f"{path}: {key}", document[key], "is not supported", remedy)
    sizes: dict[str, Any] = {o: document.get(key, absent) for o, (key, absent) in _SIZES.items()}
    with under_keys({f"model.{ours}": f"{path}: {key}" for ours, (key, _) in _SIZES.items()}):
        config = BertConfig(**sizes, activation=_ACTIVATIONS[document.get("hidden_act", "gelu")])
    return config, document


def _config_document(config: BertConfig) -> dict[str, Any]:
    """``config.json`` of these sizes."""
    problem = "has no place in config.json"
    if config.norm != "post":
        raise InputError("model.norm", config.norm, problem, "BERT's norm is 'post'")
    if config.initial_deviation == 0.0:
        remedy = "Give the deviation of fresh weights, 0.02 in BERT"
        raise InputError("model.initial_deviation", 0.0, problem, remedy)
    names = [theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation]
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "dtype": "float32",
        "hidden_act": names[0],
        **{theirs: getattr(config, ours) for ours, (theirs, _) in _SIZES.items()},
        "attention_probs_dropout_prob": config.attention_rate,
    }
