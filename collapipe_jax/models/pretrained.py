"""BERT in the layout of Hugging Face: ``config.json``, ``model.safetensors``, ``vocab.txt``.

``tokenizer_config.json``, written beside them, states the vocabulary's case. Layout:
https://huggingface.co/docs/transformers/model_doc/bert. PyTorch keeps the weights of a linear
map as ``[outputs, inputs]``, we as ``[inputs, outputs]``.
"""

import functools
import json
import operator
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_bytes, write_text
from collapipe_jax.models.bert import init_bert
from collapipe_jax.models.config import BertConfig
from collapipe_jax.models.layers import Params
from collapipe_jax.models.pretrained_config import config_document, read_config, read_json

_CONFIG, _VOCABULARY = "config.json", "vocab.txt"
_TOKENIZER = "tokenizer_config.json"
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")

_TABLES = {
    "word": "word_embeddings",
    "position": "position_embeddings",
    "token_type": "token_type_embeddings",
}
_LAYERS = {
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward/inner": "intermediate.dense",
    "feed_forward/outer": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}

# Heads of pretraining, classification and question answering, and the numbers 0 .. P - 1
# that older versions stored.
_UNUSED = ("cls.", "classifier.", "qa_outputs.", "embeddings.position_ids")

# NumPy knows the last one because importing jax teaches it.
_READABLE_DTYPES = ("F32", "F16", "BF16")
_SHOWN = 8  # names in a message


class _Place(NamedTuple):
    """Place of a tensor of the checkpoint in our parameters.

    Attributes:
      path: keys from the root to the leaf.
      block: entry along the leaf's first axis, or None for the whole leaf.
      transposed: whether its two axes change places.
    """

    path: tuple[str, ...]
    block: int | None = None
    transposed: bool = False


def load_bert(directory: str | Path) -> tuple[BertConfig, Params]:
    """Sizes and parameters of a BERT checkpoint.

    Reads checkpoints of ``BertModel`` and of the models that contain one as ``bert.``, whole or in
    shards, with ``gamma`` and ``beta`` for a norm's weight and bias in older ones. 16-bit numbers
    become float32. Heads (``cls.*``, ``classifier.*``, ``qa_outputs.*``) and the buffer
    ``embeddings.position_ids`` are not read; any other name that BERT does not have is an error.

    A checkpoint without a pooler, as of ``BertForTokenClassification``, gives parameters
    without "pooler"; ``bert.init_pooler`` draws a fresh one.

    Args:
      directory: holds ``config.json``, and ``model.safetensors`` or its shards with
        ``model.safetensors.index.json``. ``vocab.txt`` is the tokenizer's and not read.

    Returns:
      ``(config, params)``, parameters as ``init_bert`` returns them, float32.

    Raises:
      InputError: on a missing or unreadable file, an unsupported key of ``config.json``, or
        tensors that are missing, unknown, given twice, or of another shape or type.
    """
    directory = Path(directory)
    config = read_config(directory / _CONFIG)
    tensors = _read_tensors(directory)
    pooler = any(name.startswith("pooler.") for name in tensors)
    places = _places(config, pooler)
    _name_wrong(directory, [n for n in places if n not in tensors], "missing from the checkpoint")
    _name_wrong(directory, [n for n in tensors if n not in places], "no part of such a BERT")
    params = jax.tree.map(
        lambda leaf: np.empty(leaf.shape, leaf.dtype), _expected_params(config, pooler)
    )
    shapes = {name: _view(params, place).shape for name, place in places.items()}
    misshaped = [
        f"{name} {list(tensor.shape)} for {list(shapes[name])}"
        for name, tensor in tensors.items()
        if tensor.shape != shapes[name]
    ]
    _name_wrong(directory, misshaped, "of another shape")
    for name, tensor in tensors.items():
        _view(params, places[name])[...] = tensor
    return config, jax.tree.map(jnp.asarray, params)


def save_bert(
    directory: str | os.PathLike[str],
    config: BertConfig,
    params: Params,
    *,
    vocabulary: str | Path | Sequence[str] | None = None,
    lowercase: bool | None = None,
) -> None:
    """Write a checkpoint for ``load_bert`` and ``transformers.BertModel.from_pretrained``.

    Each file is whole or not there; files of the same names are replaced. The layout has no
    place for ``rematerialise`` and ``compute_dtype``.

    Args:
      directory: made where it is missing.
      config: sizes; post-norm, and with a deviation of fresh weights.
      params: as ``init_bert`` returns them, float32. Without "pooler" they are read by
        ``BertModel.from_pretrained(directory, add_pooling_layer=False)``.
      vocabulary: tokens in the order of their numbers for ``vocab.txt``, or a file with one a
        line; None leaves that file as it is.
      lowercase: whether the tokenizer lowercases and strips accents, for
        ``tokenizer_config.json``; None leaves that file as it is.

    Raises:
      InputError: on a configuration that the layout cannot express, parameters that are not
        the configuration's, more tokens than its vocabulary has entries, or a line break in
        a token.
    """
    directory = Path(directory)
    document = config_document(config)
    _check_params(config, params)
    tokens = None if vocabulary is None else _tokens(vocabulary, config)
    leaves = jax.tree.map(np.asarray, params)
    tensors = {
        name: np.ascontiguousarray(_view(leaves, place))
        for name, place in _places(config, "pooler" in params).items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    # PyTorch's layout, which `from_pretrained` insists on being told.
    write_bytes(directory / _WEIGHTS, save(tensors, metadata={"format": "pt"}))
    write_text(directory / _CONFIG, json.dumps(document, indent=2, sort_keys=True) + "\n")
    if tokens is not None:
        write_text(directory / _VOCABULARY, "".join(f"{token}\n" for token in tokens))
    if lowercase is not None:
        tokenizer = {"do_lower_case": lowercase, "tokenizer_class": "BertTokenizer"}
        write_text(directory / _TOKENIZER, json.dumps(tokenizer, indent=2) + "\n")


def _expected_params(config: BertConfig, pooler: bool) -> Params:
    """Shapes and types of all parameters."""
    shapes = jax.eval_shape(lambda key: init_bert(key, config), jax.random.key(0))
    return {name: part for name, part in shapes.items() if pooler or name != "pooler"}


def _check_params(config: BertConfig, params: Params) -> None:
    """Refuse parameters that are not the configuration's."""

    def leaves(tree: Params) -> dict[str, tuple]:
        pairs = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(path): (leaf.shape, str(leaf.dtype)) for path, leaf in pairs}

    expected, given = leaves(_expected_params(config, "pooler" in params)), leaves(params)
    wrong = [name for name in expected | given if expected.get(name) != given.get(name)]
    _name_wrong("params", wrong, "missing, unknown, or not the configuration's in shape and type")


def _name_wrong(
    where: str | Path,
    names: list[str],
    problem: str,
    remedy: str = "Check that the sizes in the configuration belong to these tensors",
) -> None:
    """Refuse the tensors of these names, if there are any."""
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        shown = ", ".join(names[:_SHOWN]) + more
        raise InputError(f"{where}: tensors", shown, f"are {problem}", remedy)


def _places(config: BertConfig, pooler: bool) -> dict[str, _Place]:
    """The place of every tensor, by its name in ``BertModel``."""
    places = {
        f"embeddings.{theirs}.weight": _Place(("embedding", ours))
        for ours, theirs in _TABLES.items()
    }
    places |= _layer("embeddings.LayerNorm", _Place(("embedding", "norm")))
    for block in range(config.encoder_blocks):
        for ours, theirs in _LAYERS.items():
            place = _Place(("encoder", *ours.split("/")), block)
            places |= _layer(f"encoder.layer.{block}.{theirs}", place)
    return places | (_layer("pooler.dense", _Place(("pooler",))) if pooler else {})


def _layer(name: str, place: _Place) -> dict[str, _Place]:
    """Weight and bias of the linear map or norm at a place."""
    weight, transposed = ("scale", False) if name.endswith("LayerNorm") else ("kernel", True)
    return {
        f"{name}.weight": _Place((*place.path, weight), place.block, transposed),
        f"{name}.bias": _Place((*place.path, "bias"), place.block),
    }


def _view(params: Params, place: _Place) -> np.ndarray:
    """A tensor as PyTorch has it, sharing memory with our leaf."""
    leaf: Any = functools.reduce(operator.getitem, place.path, params)
    leaf = leaf if place.block is None else leaf[place.block]
    return leaf.T if place.transposed else leaf


def _read_tensors(directory: Path) -> dict[str, np.ndarray]:
    """The tensors of BERT by their names in ``BertModel``."""
    tensors: dict[str, np.ndarray] = {}
    for path in _tensor_files(directory):
        try:
            with safe_open(path, framework="numpy") as stored:
                for name in stored.keys():  # noqa: SIM118  (no dictionary)
                    ours = _canonical(name)
                    if ours.startswith(_UNUSED):
                        continue
                    if ours in tensors:
                        problem = "there twice, under this and another name"
                        _name_wrong(path, [name], problem, "Leave one of them out")
                    if stored.get_slice(name).get_dtype() not in _READABLE_DTYPES:
                        problem = f"of a type other than {', '.join(_READABLE_DTYPES)}"
                        _name_wrong(path, [name], problem, "Convert them to 32-bit numbers")
                    tensors[ours] = stored.get_tensor(name)
        except (SafetensorError, OSError) as error:
            remedy = "Get the file again"
            raise InputError("file", str(path), f"cannot be read ({error})", remedy) from None
    return tensors


def _tensor_files(directory: Path) -> list[Path]:
    if (directory / _WEIGHTS).exists():
        return [directory / _WEIGHTS]
    if (directory / _INDEX).exists():
        shards = read_json(directory / _INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            remedy = "Take the original file"
            raise InputError(f"{directory / _INDEX}: weight_map", shards, "names no files", remedy)
        return [directory / name for name in sorted(set(shards.values()))]
    remedy = f"Name a directory with {_WEIGHTS}"
    if any((directory / name).exists() for name in _PICKLED):
        remedy = (
            "Convert pytorch_model.bin where transformers and torch are installed: "
            "BertModel.from_pretrained(directory).save_pretrained(directory)"
        )
    raise InputError("directory", str(directory), f"holds no {_WEIGHTS}", remedy)


def _canonical(name: str) -> str:
    """A tensor's name as ``BertModel`` has it today."""
    name = name.removeprefix("bert.")
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


def _tokens(vocabulary: str | Path | Sequence[str], config: BertConfig) -> list[str]:
    if isinstance(vocabulary, (str, Path)):
        text = Path(vocabulary).read_text(encoding="utf-8")
        tokens = text.removesuffix("\n").split("\n")
    else:
        tokens = list(vocabulary)
    broken = [token for token in tokens if "\n" in token or "\r" in token]
    if broken:
        raise InputError("vocabulary", broken[0], "has a line break", "Give one line a token")
    if len(tokens) > config.vocabulary_size:
        problem = f"is more tokens than the {config.vocabulary_size} that the model has"
        raise InputError("vocabulary", len(tokens), problem, "Give the model's own vocabulary")
    return tokens
