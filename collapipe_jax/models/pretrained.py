"""BERT in the layout of Hugging Face: ``config.json``, ``model.safetensors``, ``vocab.txt``.

``tokenizer_config.json``, written beside them, states the vocabulary's case. Layout:
https://huggingface.co/docs/transformers/model_doc/bert. PyTorch keeps the weights of a linear
map as ``[outputs, inputs]``, we as ``[inputs, outputs]``.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from collapipe_jax.errors import InputError, under_keys
from collapipe_jax.files.atomic import write_bytes, write_text
from collapipe_jax.models.bert import init_bert
from collapipe_jax.models.config import BertConfig
from collapipe_jax.models.layers import Params

_CONFIG, _VOCABULARY = "config.json", "vocab.txt"
_TOKENIZER = "tokenizer_config.json"
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")

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
}

# Heads of pretraining, classification and question answering, and the numbers 0 .. P - 1
# that older versions stored.
_UNUSED = ("cls.", "classifier.", "qa_outputs.", "embeddings.position_ids")

# NumPy knows the last one because importing jax teaches it.
_READABLE_DTYPES = ("F32", "F16", "BF16")
_SHOWN = 8  # names in a message


def load_bert(directory: str | Path) -> tuple[BertConfig, Params]:
    """Sizes and parameters of a BERT checkpoint.

    Reads checkpoints of ``BertModel`` and of the models that contain one as ``bert.``, whole or in
    shards, with ``gamma`` and ``beta`` for a norm's weight and bias in older ones. 16-bit numbers
    become float32. Heads (``cls.*``, ``classifier.*``, ``qa_outputs.*``) and the buffer
    ``embeddings.position_ids`` are not read; any other name that BERT does not have is an error.

    Args:
      directory: holds ``config.json``, and ``model.safetensors`` or its shards with
        ``model.safetensors.index.json``. ``vocab.txt`` is the tokenizer's and not read.

    Returns:
      ``(config, params)``, parameters as ``init_bert`` returns them, float32; without "pooler"
      where the checkpoint has none, as of ``BertForTokenClassification``.

    Raises:
      InputError: on a missing or unreadable file, an unsupported key of ``config.json``, or
        tensors that are missing, unknown, given twice, or of another shape or type.
    """
    directory = Path(directory)
    config = _read_config(directory / _CONFIG)
    tensors = _read_tensors(directory)
    pooler = any(name.startswith("pooler.") for name in tensors)
    expected = _expected_params(config, pooler)
    params = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), expected)
    ours = _as_tensors(params)
    shapes, found = ({n: str(list(a.shape)) for n, a in each.items()} for each in (ours, tensors))
    _check_same(directory, shapes, found)
    for name, tensor in tensors.items():
        ours[name][...] = tensor
    return config, jax.tree.map(jnp.asarray, params)


def save_bert(
    directory: str | os.PathLike[str],
    config: BertConfig,
    params: Params,
    *,
    vocabulary: Sequence[str] | None = None,
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
      vocabulary: tokens in the order of their numbers for ``vocab.txt``; None leaves that file
        as it is.
      lowercase: whether the tokenizer lowercases and strips accents, for
        ``tokenizer_config.json``; None leaves that file as it is.

    Raises:
      InputError: on a configuration that the layout cannot express, parameters that are not
        the configuration's, more tokens than its vocabulary has entries, or a line break in
        a token.
    """
    directory = Path(directory)
    document = _config_document(config)
    kinds, found = (
        {path: f"{leaf.dtype} {list(leaf.shape)}" for path, leaf in _leaves(tree).items()}
        for tree in (_expected_params(config, "pooler" in params), params)
    )
    _check_same("params", kinds, found)
    _check_vocabulary(config, vocabulary or ())
    tensors = _as_tensors(jax.tree.map(np.asarray, params))
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    directory.mkdir(parents=True, exist_ok=True)
    # PyTorch's layout, which `from_pretrained` insists on being told.
    write_bytes(directory / _WEIGHTS, save(tensors, metadata={"format": "pt"}))
    write_text(directory / _CONFIG, json.dumps(document, indent=2, sort_keys=True) + "\n")
    if vocabulary is not None:
        write_text(directory / _VOCABULARY, "".join(f"{token}\n" for token in vocabulary))
    if lowercase is not None:
        tokenizer = {"do_lower_case": lowercase, "tokenizer_class": "BertTokenizer"}
        write_text(directory / _TOKENIZER, json.dumps(tokenizer, indent=2) + "\n")


def _expected_params(config: BertConfig, pooler: bool) -> Params:
    """Shapes and types of all parameters."""
    shapes = jax.eval_shape(lambda key: init_bert(key, config), jax.random.key(0))
    return {name: part for name, part in shapes.items() if pooler or name != "pooler"}


def _check_same(where: str | Path, expected: dict[str, str], found: dict[str, str]) -> None:
    """Refuse tensors, described by name, that are missing, unknown or not as expected."""
    _name_wrong(where, [n for n in expected if n not in found], "missing")
    _name_wrong(where, [n for n in found if n not in expected], "no part of such a BERT")
    wrong = [f"{n} {found[n]} for {expected[n]}" for n in found if found[n] != expected[n]]
    _name_wrong(where, wrong, "of another shape or type")


def _leaves(params: Params) -> dict[str, Any]:
    """Leaves by path, as ``encoder/attention/query/kernel``."""
    pairs = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in pairs}


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


def _as_tensors(params: Params) -> dict[str, np.ndarray]:
    """The tensors of ``BertModel`` by their names, sharing memory with our leaves."""
    tensors = {}
    for path, leaf in _leaves(params).items():
        layer, _, kind = path.rpartition("/")
        name = _TENSORS[path if path in _TENSORS else layer]
        name += ".bias" if kind == "bias" else ".weight"
        leaf = np.swapaxes(leaf, -1, -2) if kind == "kernel" else leaf
        blocks = enumerate(leaf) if path.startswith("encoder/") else [(0, leaf)]
        tensors |= {name.format(block): tensor for block, tensor in blocks}
    return tensors


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
        shards = _read_json(directory / _INDEX).get("weight_map")
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


def _check_vocabulary(config: BertConfig, tokens: Sequence[str]) -> None:
    """Refuse tokens that a file with one a line, or the model, has no room for."""
    broken = [token for token in tokens if "\n" in token or "\r" in token]
    if broken:
        raise InputError("vocabulary", broken[0], "has a line break", "Give one line a token")
    if len(tokens) > config.vocabulary_size:
        problem = f"is more tokens than the {config.vocabulary_size} that the model has"
        raise InputError("vocabulary", len(tokens), problem, "Give the model's own vocabulary")


def _read_config(path: Path) -> BertConfig:
    """Sizes on file.

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
    attention_rate = document.get("attention_probs_dropout_prob", 0.1)
    if attention_rate != config.dropout_rate:
        key = f"{path}: attention_probs_dropout_prob"
        problem = f"differs from hidden_dropout_prob {config.dropout_rate}"
        raise InputError(key, attention_rate, problem, "Give both the same rate")
    return config


def _config_document(config: BertConfig) -> dict[str, Any]:
    """``config.json`` of these sizes."""
    problem = "cannot be said in config.json"
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
        "attention_probs_dropout_prob": config.dropout_rate,
        **{theirs: getattr(config, ours) for ours, (theirs, _) in _SIZES.items()},
    }


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON object on file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        remedy = "Name the directory of a BERT checkpoint"
        raise InputError("file", str(path), f"cannot be read ({error})", remedy) from None
    if not isinstance(document, dict):
        raise InputError("file", str(path), "holds no JSON object", "Take the original file")
    return document
