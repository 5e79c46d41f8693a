"""One forward, one backward: interleaved passes, so that few micro-batches are kept.

With a pass as the unit of time, stage ``s`` of ``S`` runs forward pass ``m`` in tick ``s + 2 m``
and backward pass ``m`` in tick ``2 S - 1 - s + 2 m``. The two have different parities, each
arrives one tick after its neighbour sent it, and ``min(M, S - s)`` forward passes precede
the first backward one (Narayanan et al. 1906.05433). The last stage computes the loss as the
first part of its backward passes, hence the loss is an argument here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.models.layers import Params, narrow_dtype, narrowed
from collapipe_jax.pipeline.mesh import STAGE, check_mesh
from collapipe_jax.pipeline.micro_batches import MicroBatches, check_micro_batches, cut
from collapipe_jax.pipeline.passes import Kept, Segment, empty_kept, run_backward, run_forward
from collapipe_jax.pipeline.sharded import (
    ON_CLUSTER,
    ON_DEVICE,
    REST,
    from_stage,
    hop,
    own_part,
    shard,
)
from collapipe_jax.pipeline.slots import check_partition, holds

Loss = Callable[[Params, Array, Any], Array]


class Gradients(NamedTuple):
    """Gradients of every cluster's loss.

    Attributes:
      slots: by the slots, leaves ``[N, K, capacity, ...]``.
      head: by the head's parameters, leaves ``[N, ...]``.
      x: by the embedded tokens, ``[N, B, S, h]``.
    """

    slots: Params
    head: Params
    x: Array


class Tick(NamedTuple):
    """Pass of a stage in a tick, all ``[]``; never both.

    Attributes:
      forward, backward: whether it runs that pass.
      forward_number, backward_number: of which micro-batch; always a valid index.
    """

    forward: Array
    forward_number: Array
    backward: Array
    backward_number: Array


class _Carry(NamedTuple):
    """State of a device between two ticks."""

    arrived: Array  # [b, S, h], forward
    returned: Array  # [b, S, h], a gradient
    finished: Array  # [b, S, h]: the stage's own last output
    kept: Kept  # [min(M, S), capacity, ...], a ring
    slots: Params  # sums of gradients, [capacity, ...]
    head: Params
    x: Array  # [M, b, S, h], gradients
    loss: Array  # []


def tick_of(time: Array, stage: Array, stages: int, micro_batches: int) -> Tick:
    """Pass of stage ``s`` of ``S`` in tick ``time``, ``0 .. ticks(S, M) - 1``."""

    def micro_batch(since: Array) -> tuple[Array, Array]:
        number = since // 2
        runs = (since % 2 == 0) & (number >= 0) & (number < micro_batches)
        return runs, jnp.clip(number, 0, micro_batches - 1)

    return Tick(*micro_batch(time - stage), *micro_batch(time - (2 * stages - 1 - stage)))


def ticks(stages: int, micro_batches: int) -> int:
    """Ticks of a whole step: the first stage ends backward pass ``M - 1`` in the last."""
    return 2 * (stages + micro_batches - 1)


def one_f_one_b(
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
    """Loss and gradients of all clusters under the executed 1F1B schedule.

    A stage keeps the arrays of its blocks (``pipeline/passes.py``) for the micro-batches in
    flight, in a ring of ``min(M, K)`` rows: all devices run one program, so the rows are those
    of the first stage. Every device of a cluster holds all embedded tokens and their gradients.

    Args:
      slots, config, x, mask, segments: as in ``forward_clusters``, and so are the rest.
      head_params: parameters of the head, every leaf ``[...]``, one for all clusters.
      loss: ``loss(head_params, encoded [b, S, h], data of a micro-batch)`` as a scalar sum
        over examples; weights of examples are part of the data.
      data: data of the loss, every leaf ``[N, B, ...]``.

    Returns:
      ``(losses [N], Gradients)``, sums over the micro-batches; NaN under ``jax.jit`` for a cluster
      whose partition does not fit.

    Raises:
      InputError: on a partition, micro-batches or a mesh that do not fit.
    """
    capacity = jax.tree.leaves(slots)[0].shape[2]
    check_partition(segments, config.encoder_blocks, capacity)
    check_micro_batches(x.shape[1], micro_batches)
    check_mesh(mesh, *segments.shape)
    ids = jnp.arange(x.shape[1]) if example_ids is None else example_ids
    rest = mask, jnp.broadcast_to(ids, x.shape[:2]), segments, dropout_key

    def on_device(
        slots: Params, head_params: Params, x: Array, rest: tuple, data: Any
    ) -> tuple[Array, Gradients]:
        stages = jax.lax.axis_size(STAGE)
        segment, micro = own_part(slots, rest, micro_batches)
        inputs, own_data = cut((x[0], jax.tree.map(lambda leaf: leaf[0], data)), micro_batches)
        rows = min(micro_batches, stages)
        step = _Step(config, loss, segment, micro, head_params, inputs, own_data, bubble, rows)
        times = jnp.arange(ticks(stages, micro_batches))
        end, _ = jax.lax.scan(lambda carry, t: (step.tick(carry, t), None), step.start(), times)
        total, head = from_stage(stages - 1, (end.loss, end.head))
        x_gradient = from_stage(0, end.x).reshape(x.shape[1:])
        found = total, Gradients(end.slots, head, x_gradient)
        fits = holds(rest[2][0], config.encoder_blocks, capacity)
        total, gradients = jax.tree.map(lambda leaf: jnp.where(fits, leaf, jnp.nan)[None], found)
        return total, gradients._replace(slots=jax.tree.map(lambda g: g[None], gradients.slots))

    in_specs = ON_DEVICE, PartitionSpec(), ON_CLUSTER, REST, ON_CLUSTER
    out_specs = ON_CLUSTER, Gradients._make((ON_DEVICE, ON_CLUSTER, ON_CLUSTER))
    return shard(on_device, mesh, in_specs, out_specs)(slots, head_params, x, rest, data)


class _Step(NamedTuple):
    """One training step on a device of the mesh."""

    config: EncoderConfig
    loss: Loss
    segment: Segment
    micro: MicroBatches
    head_params: Params
    x: Array  # [M, b, S, h]
    data: Any  # [M, b, ...]
    bubble: float
    rows: int  # micro-batches kept at a time

    def start(self) -> _Carry:
        """Carry before the first tick."""
        blank, slots = self._blank(), self.segment.slots
        kept = empty_kept(slots, self.config, blank, self.micro.at(0), self.rows, self.bubble)
        sums = jax.tree.map(jnp.zeros_like, (slots, self.head_params, self.x))
        return _Carry._make((blank, blank, blank, kept, *sums, jnp.zeros(())))

    def tick(self, carry: _Carry, time: Array) -> _Carry:
        """One pass or none, then both hops."""
        stage, stages = jax.lax.axis_index(STAGE), jax.lax.axis_size(STAGE)
        does = tick_of(time, stage, stages, self.x.shape[0])
        encoded = carry.finished
        # Forward first: the backward pass then reads the buffers that this one returns, and
        # the compiler, which could not tell the order of the two otherwise, copies none.
        carry = self._forward(carry, does, stage == 0)
        carry, gradient = self._backward(carry, encoded, does, stage == stages - 1, stage == 0)
        return carry._replace(arrived=hop(carry.finished, 1), returned=hop(gradient, -1))

    def _forward(self, carry: _Carry, does: Tick, is_first: Array) -> _Carry:
        """The forward pass of the tick, if any."""
        number = does.forward_number
        own = narrowed(self.x[number], narrow_dtype(self.config))
        y, kept = run_forward(
            self.segment,
            self.config,
            jnp.where(is_first, own, carry.arrived),
            self.micro.at(number),
            carry.kept,
            number % self.rows,
            does.forward,
        )
        return carry._replace(finished=jnp.where(does.forward, y, self._blank()), kept=kept)

    def _backward(
        self, carry: _Carry, encoded: Array, does: Tick, is_last: Array, is_first: Array
    ) -> tuple[_Carry, Array]:
        """The backward pass of the tick, if any, and the gradient for the stage before."""
        number = does.backward_number

        def turn(total: Array, head: Params) -> tuple[Array, Params, Array]:
            def micro_loss(head_params: Params, encoded: Array) -> Array:
                data = jax.tree.map(lambda leaf: leaf[number], self.data)
                return self.loss(head_params, encoded.astype(self.x.dtype), data)

            value, by = jax.value_and_grad(micro_loss, argnums=(0, 1))(self.head_params, encoded)
            return total + value, jax.tree.map(jnp.add, head, by[0]), by[1]

        total, head, start = jax.lax.cond(
            does.backward & is_last,
            turn,
            lambda total, head: (total, head, carry.returned),
            carry.loss,
            carry.head,
        )
        back, slots = run_backward(
            self.segment,
            self.config,
            start,
            self.micro.at(number),
            carry.kept,
            number % self.rows,
            does.backward,
            carry.slots,
        )
        ends = does.backward & is_first
        x = carry.x.at[number].set(jnp.where(ends, back.astype(carry.x.dtype), carry.x[number]))
        carry = carry._replace(slots=slots, head=head, x=x, loss=total)
        return carry, jnp.where(does.backward, back, self._blank())

    def _blank(self) -> Array:
        """Content of a hop without a micro-batch, ``[b, S, h]``."""
        dtype = narrow_dtype(self.config) or self.x.dtype
        return jnp.full(self.x.shape[1:], self.bubble, dtype)
