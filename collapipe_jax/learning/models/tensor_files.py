"""Checkpoints of tensors by name and JSON, and the messages about those that are wrong.

One table has the names of the tensors of all models on file, and one those of their sizes.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import loads, write_bytes, write_text
from collapipe_jax.learning.models.layers import LORA_A, LORA_B, Params

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_INDEX = f"{WEIGHTS}.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")

# NumPy knows the last one because importing jax teaches it.
_READABLE_DTYPES = ("F32", "F16", "BF16")
_SHOWN = 8  # names in a message
_SUFFIXES = {"bias": ".bias", LORA_A: ".lora_A.weight", LORA_B: ".lora_B.weight"}
_TRANSPOSED = ("kernel", LORA_A, LORA_B)


def leaves(params: Params) -> dict[str, Any]:
    """Leaves by path, as ``encoder/attention/query/kernel``."""
    pairs = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in pairs}


def read_tensors(path: Path, rename: Callable[[str], str | None]) -> dict[str, np.ndarray]:
    """The tensors of a file by the names that ``rename`` gives them; None leaves one out.

    Raises:
      InputError: an unreadable file, two tensors of one name, another type of numbers, or
        a tensor with a number that is not finite.
    """
    tensors: dict[str, np.ndarray] = {}
    try:
        with safe_open(path, framework="numpy") as stored:
            for name in stored.keys():  # noqa: SIM118  (no dictionary)
                ours = rename(name)
                if ours is None:
                    continue
                if ours in tensors:
                    problem = "there twice, under this and another name"
                    _name_wrong(path, [name], problem, "Leave one of them out")
                if stored.get_slice(name).get_dtype() not in _READABLE_DTYPES:
                    problem = f"of a type other than {', '.join(_READABLE_DTYPES)}"
                    _name_wrong(path, [name], problem, "Convert them to 32-bit numbers")
                tensors[ours] = stored.get_tensor(name)
                if not np.isfinite(tensors[ours]).all():
                    _name_wrong(path, [name], "not finite", "Get the file again, or train anew")
    except (SafetensorError, OSError) as error:
        remedy = "Get the file again"
        raise InputError("file", str(path), f"cannot be read ({error})", remedy) from None
    return tensors


def read_all(directory: Path, rename: Callable[[str], str | None]) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint, whole or in shards; arguments and errors as of one file."""
    tensors: dict[str, np.ndarray] = {}
    for path in tensor_files(directory):
        found = read_tensors(path, rename)
        twice = [name for name in found if name in tensors]
        _name_wrong(path, twice, "in another shard too", "Leave one of them out")
        tensors |= found
    return tensors


def tensor_files(directory: Path) -> list[Path]:
    """Files of a checkpoint's tensors, whole or in shards, by what the folder says.

    Raises:
      InputError: there are none, or the index of shards is damaged.
    """
    if (directory / WEIGHTS).exists():
        return [directory / WEIGHTS]
    if (directory / _INDEX).exists():
        remedy = "Take the original file"
        shards = read_json(directory / _INDEX, remedy).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise InputError(f"{directory / _INDEX}: weight_map", shards, "names no files", remedy)
        for name in sorted(set(shards.values())):
            if Path(name).name != name:
                key = f"{directory / _INDEX}: weight_map"
                raise InputError(key, name, "no file of this folder", remedy)
        return [directory / name for name in sorted(set(shards.values()))]
    remedy = f"Name a directory with {WEIGHTS}"
    if any((directory / name).exists() for name in _PICKLED):
        remedy = (
            "Convert pytorch_model.bin where transformers and torch are installed: load the "
            "model by from_pretrained(directory) of its class, and call save_pretrained(directory)"
        )
    raise InputError("directory", str(directory), f"holds no {WEIGHTS}", remedy)


def as_tensors(params: Params, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Tensors of parameters by their names on file, sharing memory with leaves.

    PyTorch's linear maps have outputs first, so matrices are transposed. Adapters are PEFT's.

    Args:
      params: any parts of a model.
      names: on file by the path of our layer or table; {} is the number of a block.
    """
    tensors = {}
    for path, leaf in leaves(params).items():
        layer, _, kind = path.rpartition("/")
        name = names[path if path in names else layer] + _SUFFIXES.get(kind, ".weight")
        leaf = np.swapaxes(leaf, -1, -2) if kind in _TRANSPOSED else leaf
        blocks = enumerate(leaf) if path.startswith("encoder/") else [(0, leaf)]
        tensors |= {name.format(block): tensor for block, tensor in blocks}
    return tensors


def fill_params(
    where: str | Path,
    expected: Params,
    tensors: Mapping[str, np.ndarray],
    names: Mapping[str, str],
) -> Params:
    """Parameters of these shapes from all tensors, named as in ``as_tensors``.

    Raises:
      InputError: tensors that are missing, unknown, or of another shape.
    """
    # Before any memory is taken: a damaged configuration may have any sizes.
    like = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), expected)
    check_same(where, _shapes(as_tensors(like, names)), _shapes(dict(tensors)))
    params = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), expected)
    ours = as_tensors(params, names)
    for name, tensor in tensors.items():
        ours[name][...] = tensor
    return jax.tree.map(jnp.asarray, params)


def write_checkpoint(
    directory: Path,
    tensors: Mapping[str, np.ndarray],
    documents: Mapping[str, Mapping[str, Any]],
    weights: str = WEIGHTS,
) -> None:
    """Write tensors, and then JSON documents by the names of their files.

    Each file is whole or not there; files of the same names are replaced.
    """
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    # `from_pretrained` insists on this mark of PyTorch's layout.
    write_bytes(directory / weights, save(tensors, metadata={"format": "pt"}))
    for name, document in documents.items():
        text = json.dumps(document, indent=2, sort_keys=True, allow_nan=False)
        write_text(directory / name, text + "\n")


def refuse_unsupported(
    path: Path, document: Mapping[str, Any], required: Mapping[str, Sequence[object]]
) -> None:
    """Refuse a document with a key of another value than these; the first stands for no key."""
    for key, allowed in required.items():
        if (found := document.get(key, allowed[0])) not in allowed:
            remedy = f"Take a checkpoint where it is {allowed[0]!r}"
            raise InputError(f"{path}: {key}", found, "is not supported", remedy)


def check_same(where: str | Path, expected: dict[str, str], found: dict[str, str]) -> None:
    """Refuse tensors, described by name, that are missing, unknown or not as expected."""
    _name_wrong(where, [n for n in expected if n not in found], "missing")
    _name_wrong(where, [n for n in found if n not in expected], "no part of such a model")
    wrong = [f"{n} {found[n]} for {expected[n]}" for n in found if found[n] != expected[n]]
    _name_wrong(where, wrong, "of another shape or type")


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


def _shapes(tensors: dict[str, Any]) -> dict[str, str]:
    """Shape of every tensor as a text, for ``check_same``."""
    return {name: str(list(tensor.shape)) for name, tensor in tensors.items()}


def shapes_and_types(params: Params) -> dict[str, str]:
    """Type and shape of every leaf by its path, as a text for ``check_same``."""
    return {path: f"{leaf.dtype} {list(leaf.shape)}" for path, leaf in leaves(params).items()}


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object on file, or an ``InputError``."""
    try:
        document = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError("file", str(path), f"cannot be read ({reason})", remedy) from None
    if not isinstance(document, dict):
        raise InputError("file", str(path), "holds no JSON object", "Take the original file")
    return document


# Names on file.
#
# BERT: https://huggingface.co/docs/transformers/model_doc/bert. Llama, Qwen2 and Qwen3: .../llama,
# .../qwen2 and .../qwen3. Adapters of PEFT have these names, too. The translator's tensors on file
# have the paths of our parameters.

# Our layer or table; its name in BertModel; its name in Llama and Qwen. {} is the number of a block
_TENSORS: tuple[tuple[str, str, str], ...] = (
    ("embedding/word", "embeddings.word_embeddings", "model.embed_tokens"),
    ("embedding/position", "embeddings.position_embeddings", ""),
    ("embedding/token_type", "embeddings.token_type_embeddings", ""),
    ("embedding/ngram", "embeddings.ngram_embeddings", ""),
    ("embedding/norm", "embeddings.LayerNorm", ""),
    ("encoder/attention_norm", "encoder.layer.{}.attention.output.LayerNorm",
     "model.layers.{}.input_layernorm"),
    ("encoder/attention/query", "encoder.layer.{}.attention.self.query",
     "model.layers.{}.self_attn.q_proj"),
    ("encoder/attention/key", "encoder.layer.{}.attention.self.key",
     "model.layers.{}.self_attn.k_proj"),
    ("encoder/attention/value", "encoder.layer.{}.attention.self.value",
     "model.layers.{}.self_attn.v_proj"),
    ("encoder/attention/out", "encoder.layer.{}.attention.output.dense",
     "model.layers.{}.self_attn.o_proj"),
    ("encoder/attention/query_norm", "", "model.layers.{}.self_attn.q_norm"),
    ("encoder/attention/key_norm", "", "model.layers.{}.self_attn.k_norm"),
    ("encoder/feed_forward_norm", "encoder.layer.{}.output.LayerNorm",
     "model.layers.{}.post_attention_layernorm"),
    ("encoder/feed_forward/gate", "", "model.layers.{}.mlp.gate_proj"),
    ("encoder/feed_forward/inner", "encoder.layer.{}.intermediate.dense",
     "model.layers.{}.mlp.up_proj"),
    ("encoder/feed_forward/outer", "encoder.layer.{}.output.dense",
     "model.layers.{}.mlp.down_proj"),
    ("decoder/norm", "", "model.norm"),
    ("decoder/word", "", "lm_head"),
    ("pooler", "pooler.dense", ""),
    ("head", "classifier", ""),
    ("transitions", "classifier.transitions", ""),
    ("transform", "cls.predictions.transform.dense", ""),
    ("transform_norm", "cls.predictions.transform.LayerNorm", ""),
    ("output", "cls.predictions.decoder", ""),
)  # fmt: skip

# Our size; its key in config.json of BERT, and of Llama and Qwen; the value of an absent key, or
# the two of them where they differ
_SIZES: tuple[tuple[str, str, str, Any], ...] = (
    ("width", "hidden_size", "hidden_size", None),
    ("heads", "num_attention_heads", "num_attention_heads", None),
    ("feed_forward_width", "intermediate_size", "intermediate_size", None),
    ("encoder_blocks", "num_hidden_layers", "num_hidden_layers", None),
    ("vocabulary_size", "vocab_size", "vocab_size", None),
    ("positions", "max_position_embeddings", "max_position_embeddings", None),
    ("token_types", "type_vocab_size", "", None),
    ("dropout_rate", "hidden_dropout_prob", "", 0.1),
    ("attention_dropout_rate", "attention_probs_dropout_prob", "attention_dropout", (0.1, 0.0)),
    ("norm_epsilon", "layer_norm_eps", "rms_norm_eps", (1e-12, 1e-6)),
    ("initial_deviation", "initializer_range", "initializer_range", 0.02),
    ("ngram_buckets", "collapipe_ngram_buckets", "", 0),
    ("word_ngrams", "collapipe_word_ngrams", "", 1),
    ("ngram_combiner", "collapipe_ngram_combiner", "", "mean"),
)


class Layout(NamedTuple):
    """Names of one kind of model."""

    tensors: Mapping[str, str]  # by the path of our layer or table
    sizes: Mapping[str, tuple[str, Any]]  # key in config.json and value of an absent one, by ours

    def read_sizes(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes in ``config.json``."""
        return {ours: document.get(key, absent) for ours, (key, absent) in self.sizes.items()}

    def pattern(self, target: str) -> str:
        """Regular expression of a linear map's names in all blocks; empty if they have none."""
        names = [name for path, name in self.tensors.items() if path.endswith(f"/{target}")]
        return re.escape(names[0]).replace(r"\{\}", r"\d+") if names else ""

    def size_keys(self, path: Path) -> dict[str, str]:
        """Keys to blame in ``config.json``, by ours in ``model``; see ``rename_error_keys``."""
        return {f"model.{ours}": f"{path}: {key}" for ours, (key, _) in self.sizes.items()}

    def written_sizes(self, config: Any, without: Sequence[str] = ()) -> dict[str, Any]:
        """Keys of ``config.json`` for these sizes."""
        if config.initial_deviation == 0.0:
            problem, remedy = "has no place in config.json", "Give one, such as 0.02"
            raise InputError("model.initial_deviation", 0.0, problem, remedy)
        rows = self.sizes.items()
        return {key: getattr(config, ours) for ours, (key, _) in rows if ours not in without}


def _layout(column: int) -> Layout:
    """The layout of a column of the tables."""
    sizes = {}
    for ours, *keys, absent in _SIZES:
        if keys[column]:
            sizes[ours] = keys[column], absent[column] if isinstance(absent, tuple) else absent
    tensors = {ours: names[column] for ours, *names in _TENSORS if names[column]}
    return Layout(tensors, sizes)


BERT, CAUSAL = _layout(0), _layout(1)
"""Layouts of BERT, and of Llama, Qwen2 and Qwen3."""
