"""Share of a measured rate of matrix products that BERT's training step reaches in 16 bits."""

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.cost.model_counts import block_flops
from collapipe_jax.models.bert import init_bert
from collapipe_jax.models.config import BertConfig
from experiments.benchmarks.bert_step import CLASSES, draw_texts, in_turns, make_step

_MATRIX_PRODUCTS = 20  # in a row, so that one call lasts


def measure_mfu(
    cases: Iterable[tuple[BertConfig, int]], sequence: int, matrix: int, repeats: int
) -> list[dict]:
    """Model FLOPs of 16-bit training steps over the measured rate of a matrix product.

    Model FLOPs are those of the blocks' matrix products, forward and twice that backward
    (`cost.model_counts.block_flops`): what embedding, head, Adam or recomputation cost counts
    as time alone.

    Args:
      cases: Sizes, and texts at a time.
      sequence: Tokens of a text.
      matrix: Rows of the large matrices.
      repeats: Timed calls of each step.
    """
    rate = matrix_flops_per_s(matrix, repeats)
    return [
        _row(dataclasses.replace(config, compute_dtype="bfloat16"), batch, sequence, repeats, rate)
        for config, batch in cases
    ]


def matrix_flops_per_s(size: int, repeats: int) -> float:
    """FLOPs a second of products of square matrices of 16-bit numbers.

    Args:
      size: Rows of a matrix.
      repeats: Timed calls, of which the median counts.
    """

    @jax.jit
    def products(x: jax.Array, weights: jax.Array) -> jax.Array:
        def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            # Scaled so that numbers keep their size.
            y = jnp.matmul(x, weights, preferred_element_type=jnp.float32) * size**-0.5
            return y.astype(x.dtype), None

        return jax.lax.scan(body, x, length=_MATRIX_PRODUCTS)[0]

    keys = jax.random.split(jax.random.key(0))
    x, weights = (jax.random.normal(key, (size, size), jnp.bfloat16) for key in keys)
    run = {"products": lambda: jax.block_until_ready(products(x, weights))}
    seconds = float(np.median(in_turns(run, repeats)["products"]))
    return 2.0 * size**3 * _MATRIX_PRODUCTS / seconds


def _row(config: BertConfig, batch: int, sequence: int, repeats: int, matrix_rate: float) -> dict:
    key, head_key = jax.random.split(jax.random.key(0))
    head = {
        "kernel": 0.02 * jax.random.normal(head_key, (config.width, CLASSES)),
        "bias": jnp.zeros(CLASSES),
    }
    params = jax.jit(lambda key: init_bert(key, config))(key) | {"head": head}
    step = make_step(config, params, draw_texts(config, batch, sequence))
    seconds = float(np.median(in_turns({"ours": step}, repeats)["ours"]))
    per_block = block_flops(sequence, config.width, config.feed_forward_width)
    flops = 3.0 * batch * config.encoder_blocks * per_block
    return {
        "width": config.width,
        "blocks": config.encoder_blocks,
        "batch": batch,
        "dropout": config.dropout_rate,
        "step_s": seconds,
        "tokens_per_s": batch * sequence / seconds,
        "model_flops_per_s": flops / seconds,
        "matrix_flops_per_s": matrix_rate,
        "mfu": flops / seconds / matrix_rate,
    }
