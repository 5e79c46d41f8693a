"""BERT in the layout of Hugging Face: ``config.json`` and ``model.safetensors``.

PyTorch keeps the weights of a linear map as ``[outputs, inputs]``, we as ``[inputs, outputs]``.

The layout has no place for n-grams, for a pooled mean and for learnt scores of pairs of tags. A
model with one of these is written with another ``model_type`` and into another file, so no
other program takes it for a BERT.

DistilBERT (Sanh et al. 1910.01108) is a BERT without types of texts and without a pooler, under
other names. It is read, and written as a BERT.
"""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from collapipe_jax.core.errors import InputError, rename_error_keys
from collapipe_jax.learning.models.bert import HEADS, POOLINGS, init_bert, init_masked_lm_head
from collapipe_jax.learning.models.config import NGRAM_SIZES, BertConfig
from collapipe_jax.learning.models.layers import Params, init_linear
from collapipe_jax.learning.models.tensor_files import (
    BERT,
    CONFIG,
    WEIGHTS,
    as_tensors,
    check_same,
    fill_params,
    read_all,
    read_json,
    read_tensors,
    refuse_unsupported,
    shapes_and_types,
    write_checkpoint,
)

_OWN_TYPE = "collapipe_bert"
"""``model_type`` of what the layout of BERT cannot express."""
_DISTILLED_TYPE = "distilbert"
BERT_TYPES = ("bert", _DISTILLED_TYPE, _OWN_TYPE)
"""``model_type`` of what is a BERT."""
_OWN_WEIGHTS = "collapipe_bert.safetensors"
"""File of its tensors, which have the names of BERT where there are any."""
_POOLING, _HEAD_KIND = "collapipe_pooling", "collapipe_head"

_read_json = functools.partial(read_json, remedy="Name the directory of a BERT checkpoint")

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
    "model_type": BERT_TYPES,
    "hidden_act": tuple(_ACTIVATIONS),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}

DISTILLED_KEYS = {
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "activation": "hidden_act",
}
"""Keys of ``config.json`` of DistilBERT, and BERT's."""
DISTILLED_NAMES = {
    "transformer.layer": "encoder.layer",
    "attention.q_lin": "attention.self.query",
    "attention.k_lin": "attention.self.key",
    "attention.v_lin": "attention.self.value",
    "attention.out_lin": "attention.output.dense",
    "sa_layer_norm": "attention.output.LayerNorm",
    "ffn.lin1": "intermediate.dense",
    "ffn.lin2": "output.dense",
    "output_layer_norm": "output.LayerNorm",
    "vocab_transform": "cls.predictions.transform.dense",
    "vocab_layer_norm": "cls.predictions.transform.LayerNorm",
    "vocab_projector": "cls.predictions.decoder",
}
"""Parts of the names of its tensors, and BERT's."""
_DISTILLED_HEAD = "pre_classifier."  # before the classifier of texts, in place of the pooler

_HEAD, _LANGUAGE = "classifier.", "cls.predictions."
_TIED_BIAS = "cls.predictions.bias"  # of the vocabulary, which the layout may have twice
_TABLE = "embeddings.word_embeddings.weight"
_TYPES = "embeddings.token_type_embeddings.weight"

# Heads of pretraining and question answering, and the numbers 0 .. P - 1 that older versions
# stored.
_PRETRAINING, _OTHERS = "cls.", ("qa_outputs.", "embeddings.position_ids")
_UNUSED = (_PRETRAINING, *_OTHERS)


def load_bert(directory: str | Path) -> tuple[BertConfig, Params]:
    """Sizes and parameters of a BERT checkpoint, to start from.

    Reads checkpoints of ``BertModel`` and of the models that contain one as ``bert.``, whole or in
    shards, with ``gamma`` and ``beta`` for a norm's weight and bias in older ones. 16-bit numbers
    become float32. A DistilBERT becomes a BERT with one type of texts. Heads (``cls.*``,
    ``classifier.*``, ``qa_outputs.*``) and the buffer ``embeddings.position_ids`` are not read; any
    other name that BERT does not have is an error.

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
    config, document = read_bert_config(directory / CONFIG)
    tensors = _read_all(directory, document, (*_UNUSED, _HEAD, _DISTILLED_HEAD))
    return config, _fill(directory, config, tensors)


class LabellingBert(NamedTuple):
    """A BERT with a head for labels."""

    sizes: BertConfig
    params: Params  # with "head", and "transitions" where pairs of tags have scores
    labels: tuple[str, ...]  # their names
    # As of ``BertWithHead``
    pooling: str
    head: str


def load_labelling_bert(directory: str | Path) -> LabellingBert:
    """A BERT with a head for labels; arguments and errors as of ``load_bert``.

    Reads checkpoints of ``BertForSequenceClassification`` and ``BertForTokenClassification``.
    """
    directory = Path(directory)
    config, document = read_bert_config(directory / CONFIG)
    labels = read_labels(directory / CONFIG, document)
    pooling, head = read_head(directory / CONFIG, document)
    tensors = _read_all(directory, document, _UNUSED)
    params = _fill(directory, config, tensors, labels=len(labels), crf=head == "crf")
    return LabellingBert(config, params, labels, pooling, head)


def read_labels(path: Path, document: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the labels in a ``config.json``, in order."""
    named: Any = document.get("id2label")
    try:
        labels = tuple(str(named[str(number)]) for number in range(len(named)))
    except (KeyError, TypeError):
        labels = ()
    if not labels:
        problem = "is no object of labels by their numbers from 0 on"
        remedy = "Name a model with a head for labels"
        raise InputError(f"{path}: id2label", named, problem, remedy)
    return labels


def read_head(path: Path, document: Mapping[str, Any]) -> tuple[str, str]:
    """Pooling and head in a ``config.json``, as of ``BertWithHead``."""
    pooling, head = document.get(_POOLING, POOLINGS[0]), document.get(_HEAD_KIND, HEADS[0])
    for key, value, known in ((_POOLING, pooling, POOLINGS), (_HEAD_KIND, head, HEADS)):
        if value not in known:
            remedy = f"Take a model where it is one of {', '.join(known)}"
            raise InputError(f"{path}: {key}", value, "is unknown", remedy)
    return pooling, head


def load_masked_bert(directory: str | Path) -> tuple[BertConfig, Params]:
    """Sizes and parameters with the head for hidden pieces, whose table is its own.

    Arguments and errors as of ``load_bert``.
    """
    directory = Path(directory)
    config, document = read_bert_config(directory / CONFIG)
    tensors = _read_all(directory, document, (*_OTHERS, _HEAD))
    # Tied tables are on file once, and newer versions store the bias under its first name alone.
    bias = tensors.pop(_TIED_BIAS, None)
    output = BERT.tensors["output"]
    for part, tied in (("weight", tensors.get(_TABLE)), ("bias", bias)):
        if tied is not None:
            tensors.setdefault(f"{output}.{part}", tied)
    return config, _fill(directory, config, tensors, masked_lm=True)


def _fill(
    directory: Path, config: BertConfig, tensors: Mapping[str, np.ndarray], **head: Any
) -> Params:
    """Parameters of tensors by name, which are checked, with a head as of ``_expected_params``."""
    pooler = any(name.startswith("pooler.") for name in tensors)
    expected = _expected_params(config, pooler, **head)
    return fill_params(directory, expected, tensors, BERT.tensors)


def save_bert(
    directory: str | os.PathLike[str],
    config: BertConfig,
    params: Params,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint for ``load_bert`` and ``from_pretrained`` of ``transformers``.

    Each file is whole or not there, ``config.json`` last; files of the same names are
    replaced. The layout has no place for ``rematerialise`` and ``compute_dtype``.

    Args:
      directory: made where it is missing.
      config: sizes; post-norm, and with a deviation of fresh weights.
      params: as ``init_bert`` returns them, float32. Without "pooler" they are read by
        ``BertModel.from_pretrained(directory, add_pooling_layer=False)``. A linear map "head"
        makes them those of ``BertForSequenceClassification``, or of
        ``BertForTokenClassification`` without "pooler". The head of ``init_masked_lm_head`` makes
        them those of ``BertForMaskedLM``.
      settings: further keys of ``config.json``, as of ``label_settings``.

    Raises:
      InputError: on a configuration that the layout cannot express, or parameters that are not
        the configuration's.
    """
    directory, labels = Path(directory), len(params["head"]["bias"]) if "head" in params else 0
    document = _config_document(config) | dict(settings or {})
    crf, masked_lm = "transitions" in params, "output" in params
    expected = _expected_params(config, "pooler" in params, labels, crf=crf, masked_lm=masked_lm)
    check_same("params", shapes_and_types(expected), shapes_and_types(params))
    tensors = as_tensors(jax.tree.map(np.asarray, params), BERT.tensors)
    if masked_lm:
        tensors[_TIED_BIAS] = tensors[f"{_LANGUAGE}decoder.bias"]
    if labels or masked_lm:
        tensors = {name_with_head(name): tensor for name, tensor in tensors.items()}
    file = WEIGHTS
    if config.ngram_buckets or crf or document.get(_POOLING, POOLINGS[0]) != POOLINGS[0]:
        document |= {"model_type": _OWN_TYPE, "architectures": ["CollapipeBert"]}
        file = _OWN_WEIGHTS
    write_checkpoint(directory, tensors, {CONFIG: document}, file)


MASKED_LM_SETTINGS = {"architectures": ["BertForMaskedLM"], "tie_word_embeddings": False}
"""Keys of ``config.json`` of a masked language model whose head has a table of its own."""


def label_settings(
    labels: Sequence[str], *, pools: bool, pooling: str = POOLINGS[0], head: str = HEADS[0]
) -> dict[str, Any]:
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
    if pooling != POOLINGS[0]:
        settings[_POOLING] = pooling
    if head != HEADS[0]:
        settings[_HEAD_KIND] = head
    return settings


def _expected_params(
    config: BertConfig,
    pooler: bool,
    labels: int = 0,
    *,
    crf: bool = False,
    masked_lm: bool = False,
) -> Params:
    """Shapes and types of all parameters; of no labels there is no head for them."""

    def init(key: Array) -> Params:
        head = {"head": init_linear(key, config.width, labels, config)} if labels else {}
        head |= {"transitions": jnp.zeros((labels, labels))} if crf else {}
        head |= init_masked_lm_head(key, config) if masked_lm else {}
        return init_bert(key, config) | head

    expected = jax.eval_shape(init, jax.random.key(0))
    return {name: part for name, part in expected.items() if pooler or name != "pooler"}


def name_with_head(name: str) -> str:
    """A tensor's name in a BERT with a head, by that in ``BertModel``."""
    return name if name.startswith((_HEAD, _LANGUAGE)) else f"bert.{name}"


def _read_all(
    directory: Path, document: Mapping[str, Any], unused: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """The tensors of BERT and its head by their names in ``BertModel``, but for unused ones."""
    rename = functools.partial(_canonical, unused=unused)
    if document.get("model_type") == _OWN_TYPE:
        return read_tensors(directory / _OWN_WEIGHTS, rename)
    tensors = read_all(directory, rename)
    if document.get("model_type") == _DISTILLED_TYPE and _TABLE in tensors:
        tensors[_TYPES] = np.zeros((1, tensors[_TABLE].shape[-1]), np.float32)
    return tensors


def _canonical(name: str, unused: tuple[str, ...]) -> str | None:
    """A tensor's name as ``BertModel`` has it today; None for what begins as an unused one."""
    name = name.removeprefix("bert.").removeprefix(f"{_DISTILLED_TYPE}.")
    for theirs, ours in DISTILLED_NAMES.items():
        name = name.replace(theirs, ours)
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return None if name.startswith(unused) else name


def read_bert_config(path: Path) -> tuple[BertConfig, dict[str, Any]]:
    """Sizes on file, and all that is there.

    Keys that change the encoder's output are read, or refused where they are not supported.
    """
    document, blamed = _read_json(path), {}
    if document.get("model_type") == _DISTILLED_TYPE:
        renamed = {DISTILLED_KEYS.get(key, key): value for key, value in document.items()}
        document = {"type_vocab_size": 1, **renamed}
        blamed = {f"{path}: {ours}": f"{path}: {key}" for key, ours in DISTILLED_KEYS.items()}
    with rename_error_keys(blamed):
        refuse_unsupported(path, document, _REQUIRED)
        sizes = BERT.read_sizes(document)
        with rename_error_keys(BERT.size_keys(path)):
            activation = _ACTIVATIONS[document.get("hidden_act", "gelu")]
            config = BertConfig(**sizes, activation=activation)
    return config, document


def is_distilled(directory: str | Path) -> bool:
    """Whether a folder's names are those of DistilBERT."""
    return _read_json(Path(directory) / CONFIG).get("model_type") == _DISTILLED_TYPE


def _config_document(config: BertConfig) -> dict[str, Any]:
    """``config.json`` of these sizes."""
    problem = "has no place in config.json"
    if config.norm != "post":
        raise InputError("model.norm", config.norm, problem, "BERT's norm is 'post'")
    names = [theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation]
    sizes = BERT.written_sizes(config, () if config.ngram_buckets else NGRAM_SIZES)
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "dtype": "float32",
        "hidden_act": names[0],
        **sizes,
        "attention_probs_dropout_prob": config.attention_rate,
    }
