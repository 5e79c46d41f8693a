"""Training steps by schedule: loss and gradients of all clusters, GPipe beside 1F1B."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from collapipe_jax.models.config import EncoderConfig
from collapipe_jax.models.layers import Params, narrowed
from collapipe_jax.pipeline.execution import Execution, check_pipeline, run_slots
from collapipe_jax.pipeline.mesh import ON_CLUSTER, ON_DEVICE, STAGE, from_stage, hop, shard
from collapipe_jax.pipeline.passes import Kept
from collapipe_jax.pipeline.sharded import own_stage
from collapipe_jax.pipeline.slots import cut

Loss = Callable[[Params, Array, Any], Array]


class Gradients(NamedTuple):
    """Gradients of every cluster's loss."""

    slots: Params  # leaves [N, K, capacity, ...]
    head: Params  # leaves [N, ...]
    x: Array  # by the embedded tokens, [N, B, S, h]


def gpipe(
    slots: Params,
    head_params: Params,
    config: EncoderConfig,
    loss: Loss,
    x: Array,
    mask: Array,
    segments: Array,
    data: Any,
    keys: Array | None = None,
    *,
    micro_batches: int,
) -> tuple[Array, Gradients]:
    """Loss and gradients of all clusters, all forward passes before all backward ones.

    Arguments, results and errors are those of ``one_f_one_b``. A stage keeps the arrays of
    all M micro-batches, and the loss runs once over the whole mini-batch.
    """

    def run(slots: Params, x: Array) -> Array:
        execution = Execution("sharded", micro_batches)
        return run_slots(slots, config, x, mask, segments, keys, execution)

    encoded, pull_back = jax.vjp(run, slots, x)
    by_head = jax.value_and_grad(loss, argnums=(0, 1))
    losses, (head, cotangent) = jax.vmap(by_head, in_axes=(None, 0, 0))(head_params, encoded, data)
    by_slots, by_x = pull_back(cotangent)
    return losses, Gradients(by_slots, head, by_x)


class Tick(NamedTuple):
    """Pass of a stage in a tick of 1F1B, all ``[]``; never both."""

    forward: Array  # whether it runs a forward pass
    forward_number: Array  # of which micro-batch; always a valid index
    backward: Array
    backward_number: Array


def tick_of(time: Array, stage: Array, stages: int, micro_batches: int) -> Tick:
    """Pass of stage ``s`` of ``S`` in tick ``time``, ``0 .. ticks(S, M) - 1``.

    With a pass as the unit of time, it runs forward pass ``m`` in tick ``s + 2 m`` and backward
    pass ``m`` in tick ``2 S - 1 - s + 2 m``. The two have different parities, each arrives one
    tick after its neighbour sent it, and ``min(M, S - s)`` forward passes precede the first
    backward one (Narayanan et al. 1906.05433).
    """

    def micro_batch(since: Array) -> tuple[Array, Array]:
        number = since // 2
        runs = (since % 2 == 0) & (number >= 0) & (number < micro_batches)
        return runs, jnp.clip(number, 0, micro_batches - 1)

    return Tick(*micro_batch(time - stage), *micro_batch(time - (2 * stages - 1 - stage)))


def ticks(stages: int, micro_batches: int) -> int:
    """Ticks of a whole step: the first stage ends backward pass ``M - 1`` in the last."""
    return 2 * (stages + micro_batches - 1)


class _Carry(NamedTuple):
    """State of a device between two ticks of 1F1B."""

    arrived: Array  # [b, S, h], forward
    returned: Array  # [b, S, h], a gradient
    finished: Array  # [b, S, h]: the stage's own last output
    kept: Kept  # [min(M, S), capacity, ...], a ring
    slots: Params  # sums of gradients, [capacity, ...]
    head: Params
    x: Array  # [M, b, S, h], gradients
    loss: Array  # []


def one_f_one_b(
    slots: Params,
    head_params: Params,
    config: EncoderConfig,
    loss: Loss,
    x: Array,
    mask: Array,
    segments: Array,
    data: Any,
    keys: Array | None = None,
    *,
    micro_batches: int,
) -> tuple[Array, Gradients]:
    """Loss and gradients of all clusters, forward and backward passes in turn.

    A stage keeps the arrays of its blocks (``pipeline/passes.py``) for the micro-batches in
    flight, in a ring of ``min(M, K)`` rows: all devices run one program, so the rows are those
    of the first stage. Every device of a cluster holds all embedded tokens and their gradients.
    The last stage computes the loss as the first part of its backward passes.

    Args:
      slots, config, x, mask, segments, keys: as in ``execution.run_slots``.
      head_params: parameters of the head, every leaf ``[...]``, one for all clusters.
      loss: ``loss(head_params, encoded [b, S, h], data of a micro-batch)`` as a scalar sum
        over examples; weights of examples are part of the data.
      data: data of the loss, every leaf ``[N, B, ...]``.
      micro_batches: ``M``, a divisor of B (static).

    Returns:
      ``(losses [N], Gradients)``, sums over the micro-batches; NaN under ``jax.jit`` for a cluster
      whose partition does not fit.

    Raises:
      InputError: on a partition or micro-batches that do not fit, or too few devices.
    """
    fits = check_pipeline(slots, config, x, segments, micro_batches)

    def on_device(
        slots: Params, head_params: Params, x: Array, rest: tuple, data: Any, fits: Array
    ) -> tuple[Array, Gradients]:
        stage = own_stage((config, micro_batches), slots, rest)
        inputs, data = cut(jax.tree.map(lambda leaf: leaf[0], (x, data)), micro_batches)
        index, stages = jax.lax.axis_index(STAGE), jax.lax.axis_size(STAGE)
        is_first, is_last = index == 0, index == stages - 1
        blank = jnp.full_like(narrowed(inputs[0], config), jnp.nan)

        def turn(number: Array, encoded: Array, total: Array, head: Params) -> tuple:
            """Loss of a micro-batch and its gradients, added to the sums."""

            def micro_loss(head_params: Params, encoded: Array) -> Array:
                own_data = jax.tree.map(lambda leaf: leaf[number], data)
                return loss(head_params, encoded.astype(x.dtype), own_data)

            value, by = jax.value_and_grad(micro_loss, argnums=(0, 1))(head_params, encoded)
            return total + value, jax.tree.map(jnp.add, head, by[0]), by[1]

        def tick(carry: _Carry, time: Array) -> tuple[_Carry, None]:
            """One pass or none, then both hops."""
            does = tick_of(time, index, stages, micro_batches)
            # Forward first: the backward pass then reads the buffers that this one returns, and
            # the compiler, which could not tell the order of the two otherwise, copies none.
            number = does.forward_number
            own = narrowed(inputs[number], config)
            start = jnp.where(is_first, own, carry.arrived)
            y, kept = stage.forward(start, number, does.forward, carry.kept)
            finished = jnp.where(does.forward, y, blank)
            number = does.backward_number
            total, head, start = jax.lax.cond(
                does.backward & is_last,
                turn,
                lambda number, encoded, total, head: (total, head, carry.returned),
                *(number, carry.finished, carry.loss, carry.head),
            )
            back, sums = stage.backward(start, number, does.backward, kept, carry.slots)
            ends = does.backward & is_first
            by_x = jnp.where(ends, back.astype(x.dtype), carry.x[number])
            end = _Carry(
                arrived=hop(finished, 1),
                returned=hop(jnp.where(does.backward, back, blank), -1),
                finished=finished,
                kept=kept,
                slots=sums,
                head=head,
                x=carry.x.at[number].set(by_x),
                loss=total,
            )
            return end, None

        kept = stage.empty_kept(blank, min(micro_batches, stages))
        sums = jax.tree.map(jnp.zeros_like, (stage.slots, head_params, inputs))
        start = _Carry._make((blank, blank, blank, kept, *sums, jnp.zeros(())))
        end, _ = jax.lax.scan(tick, start, jnp.arange(ticks(stages, micro_batches)))
        total, head = from_stage(stages - 1, (end.loss, end.head))
        by_x = from_stage(0, end.x).reshape(x.shape[1:])
        found = total, Gradients(jax.tree.map(lambda g: g[None], end.slots), head, by_x)
        return jax.tree.map(lambda leaf: jnp.where(fits[0], leaf, jnp.nan)[None], found)

    in_specs = ON_DEVICE, PartitionSpec(), ON_CLUSTER, ON_CLUSTER, ON_CLUSTER, ON_CLUSTER
    out_specs = ON_CLUSTER, Gradients._make((ON_DEVICE, ON_CLUSTER, ON_CLUSTER))
    run = shard(on_device, segments.shape, in_specs, out_specs)
    return run(slots, head_params, x, (mask, segments, keys), data, fits)


SCHEDULES: dict[str, Callable[..., tuple[Array, Gradients]]] = {"gpipe": gpipe, "1f1b": one_f_one_b}
