"""Low-rank adapters: their parameters beside those of a base, which stays as it is.

LoRA (Hu et al. 2106.09685) adds ``s (x A) B`` to a linear map ``x W + b``. Embedding and
encoder of the model are the base; adapters and decoder are trained. The parts are trees of one
nesting with disjoint leaves, so each has a place of its own in a program's memory.
"""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

from collapipe_jax.learning.models.config import AdapterConfig
from collapipe_jax.learning.models.layers import LORA_A, LORA_B, Params

CLIENT_PARTS = ("embedding", "encoder")
"""Parts of a model that adapters leave as they are."""
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


def split(params: Params) -> tuple[Params, Params]:
    """Parameters that are trained, and those of the base, by parts.

    Without adapters all are trained, and the base has no leaves.
    """
    encoder = flatten_dict(params["encoder"])
    adapters = {path: leaf for path, leaf in encoder.items() if path[-1] in (LORA_A, LORA_B)}
    if not adapters:
        return params, NO_BASE
    base = {path: leaf for path, leaf in encoder.items() if path not in adapters}
    trained = {**params, **NO_BASE, "encoder": unflatten_dict(adapters)}
    return trained, {"embedding": params["embedding"], "encoder": unflatten_dict(base)}


def join(trained: Params, base: Params) -> Params:
    """One tree of what is trained and of the base, with any leading axes of either."""
    return unflatten_dict(flatten_dict(base) | flatten_dict(trained))


def fuse(params: Params, adapters: AdapterConfig | None) -> Params:
    """The plain model that computes the same, with kernels ``W + s A B``."""
    if adapters is None:
        return params
    leaves: dict[tuple, Any] = dict(flatten_dict(params["encoder"]))
    for path in [path[:-1] for path in leaves if path[-1] == LORA_A]:
        a, b = leaves.pop((*path, LORA_A)), leaves.pop((*path, LORA_B))
        leaves[*path, "kernel"] = leaves[*path, "kernel"] + adapters.scale * (a @ b)
    return {**params, "encoder": unflatten_dict(leaves)}


def digest(base: Params) -> np.ndarray | None:
    """SHA-256 of the numbers of a base, ``[32]`` bytes; None where there is no base."""
    if not (leaves := jax.tree.leaves(base)):
        return None
    whole = hashlib.sha256()
    for leaf in leaves:
        whole.update(np.asarray(leaf).tobytes())
    return np.frombuffer(whole.digest(), np.uint8)
