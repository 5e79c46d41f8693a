"""Low-rank adapters beside a base, which stays as it is, and their files in PEFT's layout.

LoRA (Hu et al. 2106.09685) adds ``s (x A) B`` to a linear map ``x W + b``. Embedding and
encoder of the model are the base; adapters and decoder are trained. The parts are trees of one
nesting with disjoint leaves, so each has a place of its own in a program's memory.
"""

import functools
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

from collapipe_jax.core.errors import InputError, rename_error_keys
from collapipe_jax.learning.models.bert_files import (
    LabellingBert,
    load_bert,
    name_with_head,
    read_head,
    read_labels,
)
from collapipe_jax.learning.models.causal_files import load_causal_lm
from collapipe_jax.learning.models.config import (
    GATED_LAYERS,
    LARGEST,
    AdapterConfig,
    BertConfig,
    CausalConfig,
    EncoderConfig,
)
from collapipe_jax.learning.models.layers import LORA_A, LORA_B, Params, init_linear
from collapipe_jax.learning.models.split_model import CLIENT_PARTS
from collapipe_jax.learning.models.tensor_files import (
    BERT,
    CAUSAL,
    CONFIG,
    Layout,
    as_tensors,
    fill_params,
    read_json,
    read_tensors,
    refuse_unsupported,
    write_checkpoint,
)

NO_BASE: Params = {name: {} for name in CLIENT_PARTS}
"""The base of a model that is trained as a whole."""


def add_adapters(key: Array, params: Params, adapters: AdapterConfig | None) -> Params:
    """The model with fresh adapters in its encoder; with None the same model.

    ``A`` is uniform within ``1 / sqrt(inputs)`` and ``B`` is 0, so that the model computes what
    it did before.
    """
    if adapters is None:
        return params
    leaves: dict[tuple, Any] = dict(flatten_dict(params["encoder"]))
    maps = sorted(path[:-1] for path in leaves if path[-1] == "kernel")
    adapted = [path for path in maps if path[-1] in adapters.targets]
    for path, own in zip(adapted, jax.random.split(key, len(adapted)), strict=True):
        *stack, inputs, outputs = leaves[*path, "kernel"].shape
        bound, shape = inputs**-0.5, (*stack, inputs, adapters.rank)
        leaves[*path, LORA_A] = jax.random.uniform(own, shape, minval=-bound, maxval=bound)
        leaves[*path, LORA_B] = jnp.zeros((*stack, adapters.rank, outputs))
    return {**params, "encoder": unflatten_dict(leaves)}


def split(params: Params, adapters: AdapterConfig | None = None) -> tuple[Params, Params]:
    """Parameters that are trained, and those of the base, by parts.

    Without adapters all are trained, and the base has no leaves. Where ``adapters`` freeze ``A``,
    it is of the base, whose blocks are in their ``base_dtype``.
    """
    encoder: dict[tuple, Any] = dict(flatten_dict(params["encoder"]))
    names = (LORA_B,) if adapters is not None and adapters.freezes_a else (LORA_A, LORA_B)
    changing = {path: leaf for path, leaf in encoder.items() if path[-1] in names}
    if not changing:
        return params, NO_BASE
    base = {path: leaf for path, leaf in encoder.items() if path not in changing}
    if adapters is not None:
        base = {path: leaf.astype(adapters.base_dtype) for path, leaf in base.items()}
    trained = {**params, **NO_BASE, "encoder": unflatten_dict(changing)}
    return trained, {"embedding": params["embedding"], "encoder": unflatten_dict(base)}


def join(trained: Params, base: Params) -> Params:
    """One tree of what is trained and of the base, with any leading axes of either."""
    return unflatten_dict(flatten_dict(base) | flatten_dict(trained))


def fuse(params: Params, adapters: AdapterConfig | None) -> Params:
    """The plain model that computes the same, with kernels ``W + s A B`` in 32 bits."""
    if adapters is None:
        return params
    encoder = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params["encoder"])
    leaves: dict[tuple, Any] = dict(flatten_dict(encoder))
    for path in [path[:-1] for path in leaves if path[-1] == LORA_A]:
        a, b = leaves.pop((*path, LORA_A)), leaves.pop((*path, LORA_B))
        leaves[*path, "kernel"] = leaves[*path, "kernel"] + adapters.scale * (a @ b)
    return {**params, "encoder": unflatten_dict(leaves)}


def digest(base: Params) -> np.ndarray | None:
    """SHA-256 of a base's numbers in 32 bits, ``[32]`` bytes; None where there is no base."""
    if not (leaves := jax.tree.leaves(base)):
        return None
    whole = hashlib.sha256()
    for leaf in leaves:
        whole.update(np.asarray(leaf, np.float32).tobytes())
    return np.frombuffer(whole.digest(), np.uint8)


# Adapters in the layout of PEFT, beside the checkpoint that they change.
#
# A folder holds ``adapter_config.json`` and ``adapter_model.safetensors``, which ``PeftModel``
# reads, and ``config.json`` with what else the task needs. What is trained besides adapters is
# whole there, as modules to save. Layout:
# https://huggingface.co/docs/peft/developer_guides/checkpoint.

ADAPTER_CONFIG, _ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_DIGEST, _BASE_DTYPE = "collapipe_base_sha256", "collapipe_base_dtype"
_BASE = "base_model_name_or_path"
_PREFIX = "base_model.model."
_TEXTS, _TOKENS, _CAUSAL = "SEQ_CLS", "TOKEN_CLS", "CAUSAL_LM"

# Keys that change what adapters compute, with the values that ours have; all may be absent.
_REQUIRED: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_rslora": (False,),
    "use_dora": (False,),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
}

_read_json = functools.partial(read_json, remedy="Take the original file")


def save_adapters(
    folder: Path,
    sizes: EncoderConfig,
    params: Params,
    base: Path,
    settings: Mapping[str, Any],
    same_decoder: Params | None = None,
) -> None:
    """Write adapters, and decoder or head, for PEFT and the functions below.

    Args:
      folder: made where it is missing.
      sizes: of a BERT or a decoder-only model, with adapters.
      params: of the whole model, ``{"embedding", "encoder", "decoder"}``.
      base: the checkpoint's folder.
      settings: keys of ``config.json``, which is written last: labels and classes, say.
      same_decoder: the base's; where training left it as it was, it is not written.
    """
    trained, frozen = split(jax.tree.map(np.asarray, params))
    adapters, own = sizes.adapters, {"encoder": trained["encoder"]}
    if adapters is None or (numbers := digest(frozen)) is None:
        raise InputError("model.adapter_rank", 0, "the model has no adapters", "Give 1 or more")
    if isinstance(sizes, BertConfig):
        layout, with_head, own = BERT, name_with_head, own | trained["decoder"]
        task_type, model_type = _TEXTS if "pooler" in own else _TOKENS, "bert"
        whole = ["classifier", *(["pooler"] if "pooler" in own else [])]
    else:
        layout, with_head, whole = CAUSAL, str, []
        task_type, model_type = _CAUSAL, settings["model_type"]
        decoder = trained["decoder"]
        if same_decoder is None or _differ(decoder, same_decoder):
            # "norm" alone would also be the end of the names of the blocks' norms.
            own, whole = own | {"decoder": decoder}, ["model.norm", "lm_head"]
    tensors = {
        _PREFIX + with_head(name): tensor
        for name, tensor in as_tensors(own, layout.tensors).items()
    }
    maps = "|".join(layout.pattern(target) for target in adapters.targets)
    document = {key: allowed[0] for key, allowed in _REQUIRED.items()} | {
        "task_type": task_type,
        _BASE: str(base),
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": 0.0,
        # An expression, since the name of a block's last map ends that of another.
        "target_modules": f".*({maps})",
        "modules_to_save": whole or None,
        "inference_mode": True,
    }
    settings = {**settings, _DIGEST: numbers.tobytes().hex(), "model_type": model_type}
    settings[_BASE_DTYPE] = adapters.base_dtype
    documents = {ADAPTER_CONFIG: document, CONFIG: settings}
    write_checkpoint(folder, tensors, documents, _ADAPTER_WEIGHTS)


def _rounded(leaf: Array) -> Array:
    """Numbers rounded to 16 bits, in 32."""
    return leaf.astype(jnp.bfloat16).astype(jnp.float32)


def _differ(one: Params, other: Params) -> bool:
    """Whether any number differs."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(not np.array_equal(a, b) for a, b in pairs)


def load_adapted_bert(folder: Path) -> LabellingBert:
    """A base with adapters in its weights; results as of ``load_labelling_bert``.

    Raises:
      InputError: on a missing or unreadable file, another kind of adapter, a base that is
        missing or that was changed, or tensors that are missing, unknown or of another shape.
    """
    document, settings, tensors = _read_adapters(folder)
    labels = read_labels(folder / CONFIG, settings)
    tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    sizes, base = _load_base(folder, document, settings, load_bert)
    body = {name: base[name] for name in CLIENT_PARTS}

    def head(key: jax.Array) -> Params:
        return {"head": init_linear(key, sizes.width, len(labels), sizes)}

    expected = jax.eval_shape(head, jax.random.key(0))
    if "pooler.dense.weight" in tensors:
        expected["pooler"] = jax.eval_shape(lambda: base["pooler"])
    whole = _fill_adapted(folder, document, tensors, body, expected, BERT)
    if "pooler" in base and document.get("task_type") != _TOKENS:
        whole.setdefault("pooler", base["pooler"])
    return LabellingBert(sizes, whole, labels, *read_head(folder / CONFIG, settings))


def load_adapted_causal_lm(folder: Path) -> tuple[CausalConfig, Params, dict[str, Any]]:
    """A base with adapters in its weights; results as of ``load_causal_lm``.

    Raises:
      InputError: as :func:`load_adapted_bert`.
    """
    document, settings, tensors = _read_adapters(folder)
    sizes, base, on_file = _load_base(folder, document, settings, load_causal_lm)
    body = {name: base[name] for name in CLIENT_PARTS}
    is_whole = any(name.startswith(CAUSAL.tensors["decoder/word"]) for name in tensors)
    expected = jax.eval_shape(lambda: {"decoder": base["decoder"]}) if is_whole else {}
    whole = _fill_adapted(folder, document, tensors, body, expected, CAUSAL)
    return sizes, {"decoder": base["decoder"]} | whole, on_file


def _read_adapters(
    folder: Path,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, np.ndarray]]:
    """``adapter_config.json`` and ``config.json``, which are checked, and the tensors."""
    path = folder / ADAPTER_CONFIG
    document = _read_json(path)
    # PEFT alone writes no config.json.
    has_settings = (folder / CONFIG).exists()
    settings = _read_json(folder / CONFIG) if has_settings else {}
    refuse_unsupported(path, document, _REQUIRED)
    for key, kinds in (("r", (int,)), ("lora_alpha", (int, float))):
        found: Any = document.get(key)
        if type(found) not in kinds or not 0 < found <= LARGEST:
            problem, remedy = f"no number above 0, up to {LARGEST}", "Take the original file"
            raise InputError(f"{path}: {key}", found, problem, remedy)
    tensors = read_tensors(folder / _ADAPTER_WEIGHTS, lambda name: name.removeprefix(_PREFIX))
    return document, settings, tensors


def _fill_adapted(
    folder: Path,
    document: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    body: Params,
    others: Params,
    layout: Layout,
) -> Params:
    """Embedding and encoder with adapters in their weights, and ``others`` of these shapes."""
    targets = tuple(filter(functools.partial(_is_adapted, tensors, layout), GATED_LAYERS))
    adapters = AdapterConfig(rank=document["r"], alpha=document["lora_alpha"], targets=targets)
    key = jax.random.key(0)
    shapes = jax.eval_shape(lambda: split(add_adapters(key, body, adapters))[0])
    expected = {"encoder": shapes["encoder"]} | others
    own = fill_params(folder / _ADAPTER_WEIGHTS, expected, tensors, layout.tensors)
    encoder = join(own.pop("encoder"), body["encoder"])
    return fuse(body | {"encoder": encoder}, adapters) | own


def _is_adapted(tensors: Mapping[str, np.ndarray], layout: Layout, target: str) -> bool:
    """Whether a map has an adapter in some block."""
    if not (name := layout.pattern(target)):
        return False
    return any(map(re.compile(name + r"\.lora_A\.weight").fullmatch, tensors))


def _load_base(
    folder: Path, document: Mapping[str, Any], settings: Mapping[str, Any], load: Callable
) -> Any:
    """The model that the adapters change; another than in training is refused, where they tell."""
    key, path = f"{folder / ADAPTER_CONFIG}: {_BASE}", document.get(_BASE, "")
    if not isinstance(path, str) or not os.path.isdir(path):
        remedy = "Write there where its base lies on this machine"
        raise InputError(key, path, "is no folder", remedy)
    with rename_error_keys({"directory": key}):
        sizes, base, *more = load(path)
    if settings.get(_BASE_DTYPE) == "bfloat16":  # as in training
        base = {**base, "encoder": jax.tree.map(_rounded, base["encoder"])}
    numbers, stated = digest({name: base[name] for name in CLIENT_PARTS}), settings.get(_DIGEST)
    if stated is not None and (numbers is None or numbers.tobytes().hex() != stated):
        problem = "the adapters were trained on other weights"
        raise InputError(key, path, problem, "Name the folder with those weights")
    return sizes, base, *more
