"""Run the encoder, as one stack or segment by segment: same values, same gradients.

The gradient of a synchronous pipeline does not depend on the partition, so training
uses `sequential`; `segmented` follows the devices one after another and is what a
partition really computes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from collapipe_jax.errors import InputError
from collapipe_jax.models.config import TransformerConfig
from collapipe_jax.models.encoder import encode, encoder_block
from collapipe_jax.models.layers import Params, example_keys, layer_keys
from collapipe_jax.pipeline.segments import segment_layout


def forward(
    encoder_params: Params,
    config: TransformerConfig,
    x: jax.Array,
    mask: jax.Array,
    segments: jax.Array | None = None,
    dropout_key: jax.Array | None = None,
    example_ids: jax.Array | None = None,
    *,
    backend: str = "sequential",
) -> jax.Array:
    """The encoder's output, whatever executes it.

    Args:
      encoder_params: Every leaf `[L, ...]`.
      config: Sizes.
      x: Embedded tokens `[B, S, h]`.
      mask: `[B, S]`, True on real tokens.
      segments: Blocks per device `[K]`, sum L: array values, so that a new partition
        costs no compilation. `sequential` does not read them.
      dropout_key: Scalar key, or None for a deterministic pass.
      example_ids: `[B]` numbers of the examples in the mini-batch; `0 .. B - 1` when None.
      backend: A key of `BACKENDS` (static).

    Returns:
      Activations `[B, S, h]`.

    Raises:
      InputError: On an unknown backend, or `segmented` without segments.
    """
    if backend not in BACKENDS:
        raise InputError(
            "pipeline.backend", backend, "is unknown", f"Choose one of {sorted(BACKENDS)}"
        )
    return BACKENDS[backend](encoder_params, config, x, mask, segments, dropout_key, example_ids)


def _sequential(
    encoder_params: Params,
    config: TransformerConfig,
    x: jax.Array,
    mask: jax.Array,
    segments: jax.Array | None,
    dropout_key: jax.Array | None,
    example_ids: jax.Array | None,
) -> jax.Array:
    """One scan over the whole stack."""
    del segments
    return encode(encoder_params, config, x, mask, dropout_key, example_ids)


def _segmented(
    encoder_params: Params,
    config: TransformerConfig,
    x: jax.Array,
    mask: jax.Array,
    segments: jax.Array | None,
    dropout_key: jax.Array | None,
    example_ids: jax.Array | None,
) -> jax.Array:
    """Device after device, each over its slots; an empty slot passes activations on."""
    if segments is None:
        raise InputError("segments", None, "is missing", "Give the blocks of every device")
    keys = example_keys(dropout_key, jnp.arange(x.shape[0]) if example_ids is None else example_ids)

    def run_block(x: jax.Array, block_id: jax.Array) -> jax.Array:
        params = jax.tree.map(lambda leaf: leaf[block_id], encoder_params)
        return encoder_block(params, config, x, mask, layer_keys(keys, block_id))

    def slot(x: jax.Array, place: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        block_id, filled = place
        return jax.lax.cond(filled, run_block, lambda x, _: x, x, block_id), None

    def device(x: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return jax.lax.scan(slot, x, row)[0], None

    body = jax.checkpoint(device, prevent_cse=False) if config.rematerialise else device
    return jax.lax.scan(body, x, segment_layout(segments, config.encoder_blocks))[0]


BACKENDS: dict[str, Callable[..., jax.Array]] = {
    "sequential": _sequential,
    "segmented": _segmented,
}
