"""Linear maps, activations, dropout and losses; stacks of blocks on plain parameters."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.config import PAD_ID, EncoderConfig, Ids

Params = dict[str, Any]

PRODUCT = "product"
"""Name of the outputs of matrix products in policies of ``jax.checkpoint``."""

# Blocks that are written out, one after the other. A loop stacks what the backward pass needs, copy
# by copy, which is 40 % of a step of BERT-base on an H100, and 13 % on a CPU. Deeper stacks keep a
# loop, so compilation stays short. On a CPU it takes one block a turn: several are slower there.
_WRITTEN_OUT = 12


def example_keys(dropout_key: Array | None, example_ids: Array) -> Array | None:
    """One random key per example ``[B]``, a function of its number alone."""
    if dropout_key is None:
        return None
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(dropout_key, example_ids)


def layer_keys(keys: Array | None, layer: Array | int) -> Array | None:
    """The examples' keys ``[B]`` for one layer of the model; None stays None."""
    if keys is None:
        return None
    return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, layer)


def dropout(x: Array, keys: Array | None, site: int, rate: float) -> Array:
    """Inverted dropout whose mask depends on (key of the example, site, entry) only.

    The bits come from a counter put through an avalanche hash (the finaliser of
    MurmurHash3, twice) instead of ``jax.random.bits``: it is elementwise, so it fuses
    with the multiplication and can be recomputed in the backward pass rather than stored.

    Args:
      x: ``[B, ...]``.
      keys: ``[B]``, or None for the identity.
      site: number of the place inside the layer, so that places differ.
      rate: probability that an entry is zeroed, in [0, 1); others are divided by ``1 - rate``.
    """
    if keys is None or rate == 0.0:
        return x
    words = jax.random.key_data(keys)
    first, second = (
        words[:, i].reshape(-1, *[1] * (x.ndim - 1)) ^ jnp.uint32(site * 0x9E3779B9 & 0xFFFFFFFF)
        for i in (0, 1)
    )
    counter = jnp.arange(x[0].size, dtype=jnp.uint32).reshape(1, *x.shape[1:])
    bits = _avalanche(_avalanche(counter + first) + second)
    keep = bits >= jnp.uint32(int(rate * 2**32))
    return jnp.where(keep, x * (1.0 / (1.0 - rate)), 0.0)


def _avalanche(z: Array) -> Array:
    """MurmurHash3's 32-bit finaliser: every input bit reaches every output bit."""
    z = (z ^ (z >> 16)) * jnp.uint32(0x85EBCA6B)
    z = (z ^ (z >> 13)) * jnp.uint32(0xC2B2AE35)
    return z ^ (z >> 16)


LORA_A, LORA_B = "lora_a", "lora_b"
"""Names of an adapter's matrices, beside the weights of their linear map."""


class Linear(nnx.Linear):
    """A linear map in the configuration's precision, summed in 32 bits at least.

    With an adapter it is ``x W + b + s (x A) B`` (Hu et al. 2106.09685).
    """

    bias: nnx.Param | None
    adapter: tuple[Array, Array] | None = None  # ``A [inputs, r]`` and ``B [r, outputs]``

    def __init__(
        self,
        inputs: int,
        outputs: int,
        config: EncoderConfig,
        *,
        bias: bool = True,
        rngs: nnx.Rngs,
    ):
        self.config, law = config, _initial_weights(config)
        super().__init__(inputs, outputs, use_bias=bias, kernel_init=law, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        """Map ``[..., inputs]`` to ``[..., outputs]``."""
        x, kernel = (narrowed(part, self.config) for part in (x, self.kernel[...]))
        product = _matrix_product(x, kernel)
        if self.bias is not None:
            product = add_bias(product, narrowed(self.bias[...], self.config))
        if self.adapter is not None and self.config.adapters is not None:
            a, b = (narrowed(part, self.config) for part in self.adapter)
            low = checkpoint_name(narrowed(_matrix_product(x, a), self.config), PRODUCT)
            product = product + self.config.adapters.scale * _matrix_product(low, b)
        return checkpoint_name(narrowed(product, self.config), PRODUCT)


@jax.custom_vjp
def _matrix_product(x: Array, kernel: Array) -> Array:
    """``x [..., i]`` times ``kernel [i, o]``, summed in 32 bits at least; in reverse mode only.

    The automatic gradient would multiply by 32-bit cotangents, twice as slowly on a GPU, where
    the operands have 16. On CPUs XLA compiles the kernel's to a product of two transposed
    matrices, which is slower than the one below.
    """
    return _product(x, kernel, ((x.ndim - 1,), (0,)))


def _matrix_product_forward(x: Any, kernel: Any) -> tuple[Array, tuple]:
    """Product and what the backward pass reads: of a frozen kernel not even ``x``."""
    kept = x.value if kernel.perturbed else None
    return _matrix_product(x.value, kernel.value), (kept, kernel.value)


def _matrix_product_backward(
    kept: tuple[Array | None, Array], gradient: Any
) -> tuple[Any, Array | None]:
    x, kernel = kept
    # Exact where the product left with as many bits.
    gradient = gradient.astype(kernel.dtype)
    to_x = _product(gradient, kernel, ((gradient.ndim - 1,), (1,))).astype(kernel.dtype)
    if x is None:
        return to_x, None
    if x.shape[-1] > gradient.shape[-1]:
        # With one axis to sum over, XLA reads `x` as it lies; with more it first writes a
        # transposed copy, of a wide input at a higher price than the faster product saves.
        x, gradient = (each.reshape(-1, each.shape[-1]) for each in (x, gradient))
    outer = range(x.ndim - 1)
    return to_x, _product(x, gradient, (outer, outer)).astype(kernel.dtype)


def _product(a: Array, b: Array, summed: tuple) -> Array:
    """Product over these axes, summed in 32 bits at least."""
    wide = jnp.promote_types(a.dtype, jnp.float32)
    return jax.lax.dot_general(a, b, (summed, ((), ())), preferred_element_type=wide)


_matrix_product.defvjp(_matrix_product_forward, _matrix_product_backward, symbolic_zeros=True)


def add_bias(x: Array, bias: Array) -> Array:
    """``x [..., h]`` plus ``bias [h]``."""
    return x + bias.reshape((1,) * (x.ndim - 1) + (-1,))


def _initial_weights(config: EncoderConfig) -> nnx.Initializer:
    """Law of fresh weights."""
    if config.initial_deviation == 0.0:
        return nnx.initializers.lecun_normal()
    return nnx.initializers.truncated_normal(config.initial_deviation)


def init_linear(key: Array, inputs: int, outputs: int, config: EncoderConfig) -> Params:
    """Fresh parameters of a linear map, ``{"kernel": [inputs, outputs], "bias": [outputs]}``."""
    kernel = _initial_weights(config)(key, (inputs, outputs))
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}


def apply_linear(params: Params, x: Array) -> Array:
    """The map of ``init_linear`` from ``[..., inputs]`` to ``[..., outputs]``, not narrowed."""
    return add_bias(x @ params["kernel"], params["bias"])


def vocabulary_scores(kernel: Array, x: Array, config: EncoderConfig) -> Array:
    """Scores ``[..., V]`` of all tokens by ``kernel [h, V]``; in the layers' precision, 32 bits."""
    return _matrix_product(narrowed(x, config), narrowed(kernel, config))


def init_norm(config: EncoderConfig) -> Params:
    """Fresh parameters of a ``Norm``."""
    return {"scale": jnp.ones(config.width), "bias": jnp.zeros(config.width)}


def narrowed(x: Array, config: EncoderConfig) -> Array:
    """``x`` in the precision in which the layers compute; 64 bits stay."""
    is_exact = config.compute_dtype == "float32" and x.dtype != jnp.bfloat16
    return x if is_exact else x.astype(config.compute_dtype)


def _gelu(x: Array) -> Array:
    """``x`` times the normal distribution function at ``x``, by the error function.

    Its complement, as in ``jax.nn``, is exact in tails below 1e-7 too, but slower on a CPU.
    """
    half = jnp.asarray(0.5, x.dtype)
    return half * x * (1.0 + jax.lax.erf(x * half**0.5))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


def init_stack(module: Callable[..., Any], key: Array, config: EncoderConfig, depth: int) -> Params:
    """Parameters of ``depth`` independent blocks, every leaf ``[depth, ...]``."""

    def one(block_key: Array) -> Params:
        block = module(config, rngs=nnx.Rngs(block_key))
        return nnx.to_pure_dict(nnx.state(block, nnx.Param))

    return jax.vmap(one)(jax.random.split(key, depth))


def run_stack(
    run_block: Callable[[Array, Params, Array], Array],
    config: EncoderConfig,
    stack: Params,
    layers: Array,
    x: Array,
) -> Array:
    """Blocks one after the other as one scan, ``[B, S, h]`` to ``[B, S, h]`` of x's type.

    Args:
      run_block: function of activations, one block's parameters and its layer's number.
      config: sizes.
      stack: every leaf ``[depth, ...]``.
      layers: numbers ``[depth]`` that tell the blocks' random keys apart.
      x: activations.
    """

    def body(x: Array, block: tuple[Params, Array]) -> tuple[Array, None]:
        return run_block(x, *block), None

    # Written out, blocks would keep at once what rematerialisation lets go.
    is_deep = len(layers) > _WRITTEN_OUT and jax.default_backend() == "cpu"
    unroll = 1 if config.rematerialise or is_deep else min(len(layers), _WRITTEN_OUT)
    start, step = narrowed(x, config), rematerialised(body, config)
    return jax.lax.scan(step, start, (stack, layers), unroll=unroll)[0].astype(x.dtype)


def rematerialised(body: Callable, config: EncoderConfig) -> Callable:
    """The body of a scan over blocks, computed again backwards where the sizes say so."""
    return jax.checkpoint(body, prevent_cse=False) if config.rematerialise else body


def bind(module: Callable[..., Any], config: EncoderConfig, params: Params) -> Any:
    """A callable block within one traced call, with one block's parameters, unstacked."""
    leaves = flatten_dict(params)
    adapted = {path[:-1] for path in leaves if path[-1] == LORA_A}
    adapters = {
        path: (leaves.pop((*path, LORA_A)), leaves.pop((*path, LORA_B))) for path in adapted
    }
    if adapters and config.adapters is None:
        problem, remedy = "the parameters have some, the sizes none", "Give sizes with adapters"
        raise InputError("adapters", None, problem, remedy)
    block = nnx.merge(_definition(module, config), unflatten_dict(leaves))
    for path, adapter in adapters.items():
        # Past the setter, which would make it a part of the block's structure.
        vars(functools.reduce(getattr, path, block))["adapter"] = adapter
    return block


@functools.lru_cache(maxsize=32)
def _definition(module: Callable[..., Any], config: EncoderConfig) -> Any:
    """The structure of a block."""
    return nnx.split(nnx.eval_shape(lambda: module(config, rngs=nnx.Rngs(0))))[0]


def filled_share(ids: Ids) -> np.ndarray:
    """Share of each row of ``[..., S]`` up to its last token, ``[...]``."""
    length = ids.shape[-1]
    return np.max(np.where(ids != PAD_ID, np.arange(1, length + 1), 0), axis=-1) / length


def shortened(rows: Ids, share: float) -> Ids:
    """The first part of rows ``[..., S]``, rounded up and at least one token."""
    length = rows.shape[-1]
    return rows[..., : max(1, math.ceil(share * length - 1e-9))]


_Residual = tuple[Array, Array, Array]


def _cross_entropy(scores: Array, targets: Array, smoothing: float) -> Array:
    """Cross entropy against ``(1 - smoothing) one_hot + smoothing / V``, in nats.

    Scores are ``[..., V]``, targets and results ``[...]``.

    Scores over a vocabulary are the largest array of a training step. The explicit gradient
    ``softmax - target`` reads and writes it once; automatic differentiation passes through
    several arrays of that size and a scatter.
    """
    return _forward(scores, targets, smoothing)[0]


def _forward(scores: Array, targets: Array, smoothing: float) -> tuple[Array, _Residual]:
    log_total = jax.nn.logsumexp(scores, axis=-1)
    right = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    loss = log_total - (1.0 - smoothing) * right
    if smoothing > 0.0:
        loss -= smoothing * scores.mean(-1)
    return loss, (scores, targets, log_total)


def _backward(smoothing: float, residual: _Residual, cotangent: Array) -> tuple:
    scores, targets, log_total = residual
    vocabulary_size = scores.shape[-1]
    token = jax.lax.broadcasted_iota(targets.dtype, scores.shape, scores.ndim - 1)
    right = jnp.where(token == targets[..., None], 1.0 - smoothing, 0.0)
    softmax = jnp.exp(scores - log_total[..., None])
    return (softmax - right - smoothing / vocabulary_size) * cotangent[..., None], None


cross_entropy = jax.custom_vjp(_cross_entropy, nondiff_argnums=(2,))
cross_entropy.defvjp(_forward, _backward)


def summed_cross_entropy(
    scores: Array, targets: Array, scored: Array, smoothing: float
) -> tuple[Array, Array]:
    """``cross_entropy`` of an example summed over what is scored, and its number, both ``[B]``."""
    losses, axes = cross_entropy(scores, targets, smoothing), tuple(range(1, scored.ndim))
    return jnp.where(scored, losses, 0.0).sum(axes), scored.sum(axes).astype(losses.dtype)
