"""The encoder-decoder in a layout of its own: ``config.json`` and ``model.safetensors``.

``config.json`` has ``model_type``, ``format_version`` and the fields of ``TransformerConfig`` but
for the adapters, which are in the weights. A tensor is named by its path in the parameters, as
``decoder/blocks/attention/query/kernel``.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save

from collapipe_jax.core.errors import InputError, under_keys
from collapipe_jax.core.io.atomic import write_bytes, write_json
from collapipe_jax.learning.models.config import TransformerConfig
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.tensor_files import (
    CONFIG,
    WEIGHTS,
    check_same,
    leaves,
    read_json,
    read_tensors,
    shapes_and_types,
)
from collapipe_jax.learning.models.transformer import init_params

MODEL_TYPE, FORMAT_VERSION = "collapipe_translation", 1
_FIELDS = [
    field.name for field in dataclasses.fields(TransformerConfig) if field.name != "adapters"
]


def save_translator(
    folder: Path, config: TransformerConfig, params: Params, settings: Mapping[str, Any]
) -> None:
    """Write sizes, parameters and further keys of ``config.json``, that file the last."""
    tensors = {path: np.ascontiguousarray(leaf) for path, leaf in leaves(params).items()}
    write_bytes(folder / WEIGHTS, save(tensors))
    head = {"model_type": MODEL_TYPE, "format_version": FORMAT_VERSION}
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
    for key, known in (("model_type", MODEL_TYPE), ("format_version", FORMAT_VERSION)):
        if (found := document.pop(key, None)) != known:
            remedy = "Name a folder that this version wrote"
            raise InputError(f"{path}: {key}", found, f"not {known!r}", remedy)
    missing = [name for name in _FIELDS if name not in document]
    if missing:
        raise InputError(str(path), ", ".join(missing), "missing", "Take the original file")
    with under_keys({f"model.{name}": f"{path}: {name}" for name in _FIELDS}):
        config = TransformerConfig(**{name: document.pop(name) for name in _FIELDS})
    expected = jax.eval_shape(lambda key: init_params(key, config), jax.random.key(0))
    tensors = read_tensors(folder / WEIGHTS, lambda name: name)
    check_same(folder / WEIGHTS, shapes_and_types(expected), shapes_and_types(tensors))
    params = [jnp.asarray(tensors[name]) for name in leaves(expected)]
    return config, jax.tree.unflatten(jax.tree.structure(expected), params), document
