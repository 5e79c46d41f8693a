"""Execution of the encoder: one scan, or a pipeline with the same values and gradients.

The gradient of a synchronous pipeline does not depend on the partition, so training
may use ``sequential``; ``vmapped`` and ``sharded`` run the partition as a pipeline, on one
device and on one device per stage.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from collapipe_jax.errors import InputError
from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.models.encoder import encode
from collapipe_jax.models.layers import Params
from collapipe_jax.pipeline.mesh import make_pipeline_mesh
from collapipe_jax.pipeline.micro_batches import check_micro_batches
from collapipe_jax.pipeline.sharded import forward_clusters
from collapipe_jax.pipeline.slots import check_partition, gather_slots, holds
from collapipe_jax.pipeline.vmapped import forward_vmapped

BACKENDS = ("sequential", "vmapped", "sharded")


class Execution(NamedTuple):
    """How the encoder is executed; it changes neither values nor gradients. Static.

    Attributes:
      backend: one of ``BACKENDS``.
      micro_batches: number of micro-batches of a pipeline, a divisor of ``B``.
    """

    backend: str = "sequential"
    micro_batches: int = 1


SEQUENTIAL = Execution()
"""One scan over the whole encoder: the fast way to the gradient of every partition."""


def forward(
    encoder_params: Params,
    config: EncoderConfig,
    x: Array,
    mask: Array,
    segments: Array | None = None,
    dropout_key: Array | None = None,
    example_ids: Array | None = None,
    *,
    backend: str = "sequential",
    micro_batches: int = 1,
    capacity: int | None = None,
    mesh: Mesh | None = None,
    bubble: float = 0.0,
) -> Array:
    """The encoder's output for one cluster.

    For several clusters take ``jax.vmap`` of this for ``sequential`` and ``vmapped``, and
    ``forward_clusters`` for ``sharded``.

    Args:
      encoder_params: every leaf ``[L, ...]``.
      config, x, mask, dropout_key, example_ids: as in ``models``.
      segments: ``[K]``; ``sequential`` does not read them.
      backend: ``sequential``, one scan over the stack; ``vmapped``, all stages at once under
        ``jax.vmap``; or ``sharded``, a device per stage (static).
      micro_batches: ``sequential`` does not read them.
      capacity: L when None. A pipeline's device has room for so many blocks. Under ``jax.jit`` a
        partition beyond it gives NaN.
      mesh: for ``sharded``, of 1 cluster by K stages.
      bubble: as in ``pipeline``.

    Returns:
      Activations ``[B, S, h]`` of x's type.

    Raises:
      InputError: on an unknown backend; for a pipeline, on a partition that is missing or
        does not fit, micro-batches that do not divide B, or a wrong mesh.
    """
    check_backend(backend)
    if backend == "sequential":
        return encode(encoder_params, config, x, mask, dropout_key, example_ids)
    segments, capacity = _checked_partition(config, segments, capacity)
    if backend == "sharded":
        own: Any = encoder_params, x, mask, segments, example_ids
        params, x, mask, sizes, ids = jax.tree.map(lambda leaf: leaf[None], own)
        slots = gather_clusters(params, config, sizes, capacity)
        rest = mask, sizes, dropout_key, ids
        options = {"micro_batches": micro_batches, "mesh": mesh, "bubble": bubble}
        return forward_clusters(slots, config, x, *rest, **options)[0]
    check_micro_batches(x.shape[0], micro_batches)
    y = forward_vmapped(
        gather_slots(encoder_params, segments, capacity),
        config,
        x,
        mask,
        segments,
        dropout_key,
        example_ids,
        micro_batches=micro_batches,
        bubble=bubble,
    )
    return jnp.where(holds(segments, config.encoder_blocks, capacity), y, jnp.nan)


def encode_clusters(
    encoder_params: Params,
    config: EncoderConfig,
    x: Array,
    mask: Array,
    segments: Array | None,
    dropout_key: Array | None,
    example_ids: Array,
    execution: Execution,
) -> Array:
    """The outputs of all clusters' encoders.

    Args:
      encoder_params: every leaf ``[N, L, ...]``.
      config: sizes.
      x: embedded tokens ``[N, B, S, h]``.
      mask: ``[N, B, S]``.
      segments: ``[N, K]``; ``sequential`` does not read them.
      dropout_key: shared by the clusters.
      example_ids: ``[N, B]``.
      execution: ``sharded`` needs ``N K`` devices.

    Returns:
      Activations ``[N, B, S, h]`` of x's type.

    Raises:
      InputError: as ``forward``.
    """
    backend, count = execution
    if backend == "sharded":
        segments, capacity = _checked_partition(config, segments, None)
        slots = gather_clusters(encoder_params, config, segments, capacity)
        mesh = make_pipeline_mesh(*segments.shape)
        rest = mask, segments, dropout_key, example_ids
        return forward_clusters(slots, config, x, *rest, micro_batches=count, mesh=mesh)

    def one(params: Params, x: Array, mask: Array, segments, ids) -> Array:
        rest = mask, segments, dropout_key, ids
        return forward(params, config, x, *rest, backend=backend, micro_batches=count)

    # One batched product for all clusters: neither a loop nor unrolling is faster on a CPU.
    return jax.vmap(one)(encoder_params, x, mask, segments, example_ids)


def gather_clusters(
    encoder_params: Params,
    config: EncoderConfig,
    segments: Array | None,
    capacity: int | None = None,
) -> Params:
    """Slots ``[N, K, capacity, ...]`` of all clusters, from stacks ``[N, L, ...]``.

    Its transpose is a scatter, so gradients by the slots flow back into the stack.

    Raises:
      InputError: on a partition that is missing or does not fit.
    """
    segments, capacity = _checked_partition(config, segments, capacity)
    gather = jax.vmap(lambda params, sizes: gather_slots(params, sizes, capacity))
    return gather(encoder_params, segments)


def check_backend(backend: str) -> None:
    """Refuse an unknown backend by an ``InputError``."""
    if backend not in BACKENDS:
        remedy = f"Choose one of {', '.join(BACKENDS)}"
        raise InputError("pipeline.backend", backend, "is unknown", remedy)


def _checked_partition(
    config: EncoderConfig, segments: Array | None, capacity: int | None
) -> tuple[Array, int]:
    """A partition that fits the capacity, and the capacity, L by default."""
    capacity = config.encoder_blocks if capacity is None else capacity
    return check_partition(segments, config.encoder_blocks, capacity), capacity
