"""Training steps by schedule: loss and gradients of all clusters, GPipe beside 1F1B.

Training runs 1F1B from here and GPipe from ``execution.py``; ``gpipe`` is for comparisons.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from collapipe_jax.core.one_f_one_b import tick_of, ticks
from collapipe_jax.learning.models.adapters import NO_BASE
from collapipe_jax.learning.models.config import EncoderConfig
from collapipe_jax.learning.models.layers import Params, narrowed
from collapipe_jax.learning.pipeline.execution import Execution, check_pipeline, run_slots
from collapipe_jax.learning.pipeline.mesh import (
    EVERYWHERE,
    ON_CLUSTER,
    ON_DEVICE,
    STAGE,
    cut,
    from_stage,
    hop,
    shard,
)
from collapipe_jax.learning.pipeline.sharded import Kept, own_stage

Loss = Callable[[Params, Array, Any], tuple[Array, Any]]


class Step(NamedTuple):
    """A training step of all clusters, by any schedule; for use under ``jax.jit``."""

    slots: Params  # leaves [N, K, capacity, ...]
    head: PyTree[Array]  # one for all clusters, leaves [...]
    config: EncoderConfig
    # ``loss(head, encoded [b, S, h], data of a micro-batch)``, a scalar sum over examples whose
    # weights are part of the data, and a tree of other sums or ``()``
    loss: Loss
    x: Array  # embedded tokens, [N, B, S, h]
    mask: Array  # [N, B, S]
    segments: Array  # [N, K]
    data: Any  # leaves [N, B, ...]
    micro_batches: int  # M, a divisor of B (static)
    keys: Array | None = None  # [N, B]
    base: Params = NO_BASE["encoder"]  # parameters without a gradient, leaves [N, K, capacity, ...]


class Gradients(NamedTuple):
    """Gradients of every cluster's loss."""

    slots: Params  # leaves [N, K, capacity, ...]
    head: Params  # leaves [N, ...]
    x: Array  # by the embedded tokens, [N, B, S, h]


def gpipe(step: Step) -> tuple[tuple[Array, Any], Gradients]:
    """Loss and gradients of all clusters, all forward passes before all backward ones.

    Results and errors are those of ``one_f_one_b``. A stage keeps the arrays of all M
    micro-batches, and the loss runs once over the whole mini-batch.
    """

    def run(slots: Params, x: Array) -> Array:
        rest = step.mask, step.segments, step.keys, Execution("sharded", step.micro_batches)
        return run_slots(slots, step.config, x, *rest, base_slots=step.base)

    encoded, pull_back = jax.vjp(run, step.slots, step.x)
    by_head = jax.value_and_grad(step.loss, argnums=(0, 1), has_aux=True)
    inputs = step.head, encoded, step.data
    losses, (head, cotangent) = jax.vmap(by_head, in_axes=(None, 0, 0))(*inputs)
    by_slots, by_x = pull_back(cotangent)
    return losses, Gradients(by_slots, head, by_x)


class _Carry(NamedTuple):
    """State of a device between two ticks of 1F1B."""

    arrived: Array  # [b, S, h], forward
    returned: Array  # [b, S, h], a gradient
    finished: Array  # [b, S, h]: the stage's own last output
    kept: Kept  # [min(M, K), capacity, ...], a ring
    slots: Params  # sums of gradients, [capacity, ...]
    head: Params
    x: Array  # [M, b, S, h], gradients
    loss: tuple[Array, Any]  # the loss [] and the other sums


def one_f_one_b(step: Step) -> tuple[tuple[Array, Any], Gradients]:
    """Loss and gradients of all clusters, forward and backward passes in turn.

    A stage keeps the arrays of its blocks (``learning/pipeline/sharded.py``) for the micro-batches
    in flight, in a ring of ``min(M, K)`` rows: all devices run one program, so the rows are those
    of the first stage. Every device of a cluster holds all embedded tokens and their gradients.
    The last stage computes the loss as the first part of its backward passes.

    Returns:
      ``((losses [N], other sums), Gradients)``, all summed over the micro-batches; NaN under
      ``jax.jit`` for a cluster whose partition does not fit.

    Raises:
      InputError: on a partition or micro-batches that do not fit, or a mesh of too few columns.
    """
    static, rest = (step.config, step.micro_batches), (step.mask, step.segments, step.keys)
    fits = check_pipeline(step.slots, step.config, step.x, step.segments, step.micro_batches)
    in_specs = ON_DEVICE, ON_DEVICE, EVERYWHERE, *(ON_CLUSTER,) * 4
    out_specs = ON_CLUSTER, Gradients._make((ON_DEVICE, ON_CLUSTER, ON_CLUSTER))
    on_stage = functools.partial(_on_stage, static, step.loss)
    run = shard(on_stage, step.segments.shape, in_specs, out_specs)
    return run(step.slots, step.base, step.head, step.x, rest, step.data, fits)


def _on_stage(
    static: tuple[EncoderConfig, int],
    loss: Loss,
    slots: Params,
    base: Params,
    head: Params,
    x: Array,
    rest: tuple,
    data: Any,
    fits: Array,
) -> tuple[tuple[Array, Any], Gradients]:
    """Inside ``shard``: all ticks of a stage; static, slots, base, rest as in ``own_stage``."""
    (config, micro_batches), stage = static, own_stage(static, slots, base, rest)
    inputs, data = cut((x, data), micro_batches)
    index, stages = jax.lax.axis_index(STAGE), jax.lax.axis_size(STAGE)
    is_first, is_last = index == 0, index == stages - 1
    blank = jnp.full_like(narrowed(inputs[0], config), jnp.nan)

    def loss_of(head: Params, encoded: Array, number: Array) -> tuple[Array, Any]:
        own_data = jax.tree.map(lambda leaf: leaf[number], data)
        return loss(head, encoded.astype(inputs.dtype), own_data)

    def tick(carry: _Carry, time: Array) -> tuple[_Carry, None]:
        """One pass or none, then both hops."""
        does = tick_of(time, index, stages, micro_batches)
        # Forward first: the backward pass then reads the buffers that this one returns, and
        # the compiler, which could not tell the order of the two otherwise, copies none.
        own = narrowed(inputs[does.forward_number], config)
        x = jnp.where(is_first, own, carry.arrived)
        y, kept = stage.forward(x, does.forward_number, does.forward, carry.kept)
        finished = jnp.where(does.forward, y, blank)
        number = does.backward_number
        total, by_head, cotangent = jax.lax.cond(
            does.backward & is_last,
            functools.partial(_add_loss, loss_of, head),
            lambda number, encoded, total, by_head: (total, by_head, carry.returned),
            *(number, carry.finished, carry.loss, carry.head),
        )
        cotangent, by_slots = stage.backward(cotangent, number, does.backward, kept, carry.slots)
        ends = does.backward & is_first
        by_x = jnp.where(ends, cotangent.astype(inputs.dtype), carry.x[number])
        after = _Carry(
            arrived=hop(finished, 1),
            returned=hop(jnp.where(does.backward, cotangent, blank), -1),
            finished=finished,
            kept=kept,
            slots=by_slots,
            head=by_head,
            x=carry.x.at[number].set(by_x),
            loss=total,
        )
        return after, None

    kept = stage.empty_kept(blank, min(micro_batches, stages))
    sums = jax.tree.map(jnp.zeros_like, (stage.slots, head, inputs))
    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(loss_of, head, blank, 0))
    before = _Carry._make((blank, blank, blank, kept, *sums, nothing))
    after, _ = jax.lax.scan(tick, before, jnp.arange(ticks(stages, micro_batches)))
    total, by_head = from_stage(stages - 1, (after.loss, after.head))
    by_x = from_stage(0, after.x).reshape(x.shape)
    found = total, Gradients(after.slots, by_head, by_x)
    return jax.tree.map(lambda leaf: jnp.where(fits, leaf, jnp.nan), found)


def _add_loss(
    loss_of: Callable[[Params, Array, Array], tuple[Array, Any]],
    head: Params,
    number: Array,
    encoded: Array,
    total: tuple[Array, Any],
    sums: Params,
) -> tuple[tuple[Array, Any], Params, Array]:
    """Loss of a micro-batch and gradient by the head, added to sums; gradient by ``encoded``."""
    by_both = jax.value_and_grad(loss_of, argnums=(0, 1), has_aux=True)
    value, (by_head, cotangent) = by_both(head, encoded, number)
    add = functools.partial(jax.tree.map, jnp.add)
    return add(total, value), add(sums, by_head), cotangent


SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b}
