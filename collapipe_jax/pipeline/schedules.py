"""Training steps by schedule: loss and gradients of all clusters, GPipe beside 1F1B."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.sharding import Mesh

from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.models.layers import Params
from collapipe_jax.pipeline.one_f_one_b import Gradients, Loss, one_f_one_b
from collapipe_jax.pipeline.sharded import forward_clusters


def gpipe(
    slots: Params,
    head_params: Params,
    config: EncoderConfig,
    loss: Loss,
    x: Array,
    mask: Array,
    segments: Array,
    data: Any,
    dropout_key: Array | None = None,
    example_ids: Array | None = None,
    *,
    micro_batches: int,
    mesh: Mesh,
    bubble: float = 0.0,
) -> tuple[Array, Gradients]:
    """Loss and gradients of all clusters, all forward passes before all backward ones.

    Arguments, results and errors are those of ``one_f_one_b``. A stage keeps the arrays of
    all M micro-batches, and the loss runs once over the whole mini-batch.
    """

    def run(slots: Params, x: Array) -> Array:
        rest = mask, segments, dropout_key, example_ids
        options = {"micro_batches": micro_batches, "mesh": mesh, "bubble": bubble}
        return forward_clusters(slots, config, x, *rest, **options)

    encoded, pull_back = jax.vjp(run, slots, x)
    by_head = jax.value_and_grad(loss, argnums=(0, 1))
    losses, (head, cotangent) = jax.vmap(by_head, in_axes=(None, 0, 0))(head_params, encoded, data)
    by_slots, by_x = pull_back(cotangent)
    return losses, Gradients(by_slots, head, by_x)


SCHEDULES: dict[str, Callable[..., tuple[Array, Gradients]]] = {"gpipe": gpipe, "1f1b": one_f_one_b}
