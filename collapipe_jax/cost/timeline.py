"""Time of a pipelined iteration: closed form, and an event timeline of GPipe and 1F1B."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


def flow_time_s(sum_s: Array, longest_s: Array, micro_batches: Array) -> Array:
    """Time for identical jobs to flow through stages that hold one job at a time.

    Exact for a permutation flow shop.

    Source: docs/system-model.md (11). Shapes broadcast.

    Args:
      sum_s: of the times of all stages.
      longest_s: the longest stage.
      micro_batches: ``M``, number of jobs.
    """
    return sum_s + (micro_batches - 1) * longest_s


class Events(NamedTuple):
    """When each micro-batch enters and leaves each stage.

    Attributes:
      start_s: ``[M_max, P]``.
      finish_s: ``[M_max, P]``; rows from the number of micro-batches on mean nothing.
    """

    start_s: Array
    finish_s: Array


def flow_events(stage_s: Array, max_micro_batches: int, start_s: Array | float = 0.0) -> Events:
    """Events of jobs that flow through stages in order, all ready at ``start_s``.

    A stage serves one job at a time and passes it on when done, so ``finish[m, p] =
    max(finish[m, p - 1], finish[m - 1, p]) + stage[p]``; unrolled over the stages this
    is a running maximum, and one scan over the jobs remains.

    Args:
      stage_s: ``[P]``.
      max_micro_batches: number of rows (fixes shapes).
      start_s: when the first job is ready.
    """
    through = jnp.cumsum(stage_s)
    before = through - stage_s

    def next_job(free, _):
        finish = through + jax.lax.cummax(free - before)
        return finish, Events(finish - stage_s, finish)

    ready = jnp.full_like(stage_s, start_s)
    _, events = jax.lax.scan(next_job, ready, length=max_micro_batches)
    return events


def gpipe_makespan_s(
    forward_s: Array, backward_s: Array, micro_batches: Array, limit: int
) -> Array:
    """Time of a GPipe iteration with a flush between its two flows, by events.

    Equal to docs/system-model.md (12).

    Args:
      forward_s: stages of the forward flow, links included, ``[P]``.
      backward_s: stages of the backward flow in their order, ``[P']``.
      micro_batches: ``M <= limit``.
      limit: most micro-batches (fixes shapes).
    """
    forward = flow_events(forward_s, limit)
    turned_s = forward.finish_s[micro_batches - 1, -1]
    backward = flow_events(backward_s, limit, turned_s)
    return backward.finish_s[micro_batches - 1, -1]


class PipelineStages(NamedTuple):
    """Times of a chain of computing stages with links between them.

    The active stages stand first; link ``p`` joins stages ``p`` and ``p + 1``. Behind the
    last active stage comes the turn: uplink, decoder (forward and backward as one) and
    downlink.

    Attributes:
      forward_s, backward_s: compute per micro-batch, ``[P]``.
      forward_link_s, backward_link_s: messages per micro-batch, ``[P]``; entries from the
        last active stage on are not used.
      uplink_s, decoder_s, downlink_s: the turn, scalars.
      active: number of active stages.
    """

    forward_s: Array
    backward_s: Array
    forward_link_s: Array
    backward_link_s: Array
    uplink_s: Array
    decoder_s: Array
    downlink_s: Array
    active: Array


class _Busy(NamedTuple):
    """When each resource is free again, and when the next micro-batch arrives."""

    stage_s: Array  # [P]
    forward_link_s: Array  # [P]
    backward_link_s: Array  # [P]
    arrival_s: Array  # [P]: forward message on its way into each stage
    uplink_s: Array
    decoder_s: Array
    downlink_s: Array


def one_f_one_b_makespan_s(stages: PipelineStages, micro_batches: Array, limit: int) -> Array:
    """Time of an iteration under the one-forward-one-backward schedule, by events.

    Stage ``s`` of ``S`` starts with ``min(M, S - s)`` forward passes and then alternates
    one backward and one forward pass, so that it never keeps more micro-batches than
    that (Narayanan et al., 2019). Links carry both directions at once, each one message
    at a time.

    In step ``k`` of the scan stage ``s`` runs forward pass ``k - s``; then the backward
    chain of micro-batch ``k - S + 1`` runs. That visits every operation after those it
    depends on, and the operations of a stage in the order of the schedule.

    Args:
      stages: times.
      micro_batches: ``M <= limit``.
      limit: most micro-batches (fixes shapes).
    """
    count = stages.forward_s.shape[0]
    index = jnp.arange(count)
    is_active = index < stages.active

    def step(busy: _Busy, k: Array):
        micro = k - index
        runs = is_active & (micro >= 0) & (micro < micro_batches)
        done_s = jnp.maximum(busy.arrival_s, busy.stage_s) + stages.forward_s
        sent_s = jnp.maximum(done_s, busy.forward_link_s) + stages.forward_link_s
        busy = busy._replace(
            stage_s=jnp.where(runs, done_s, busy.stage_s),
            forward_link_s=jnp.where(runs, sent_s, busy.forward_link_s),
            arrival_s=jnp.concatenate([jnp.zeros(1, sent_s.dtype), sent_s[:-1]]),
        )
        turns = k - stages.active + 1
        turned = _turn_and_return(stages, busy, done_s[stages.active - 1], is_active)
        happens = (turns >= 0) & (turns < micro_batches)
        busy = jax.tree.map(lambda new, old: jnp.where(happens, new, old), turned, busy)
        return busy, None

    zeros, zero = jnp.zeros_like(stages.forward_s), jnp.zeros_like(stages.decoder_s)
    idle = _Busy(zeros, zeros, zeros, zeros, zero, zero, zero)
    busy, _ = jax.lax.scan(step, idle, jnp.arange(limit + count - 1))
    return jnp.max(busy.stage_s)


def _turn_and_return(stages: PipelineStages, busy: _Busy, ready_s, is_active) -> _Busy:
    """Send one micro-batch over the decoder and back through all active stages."""
    uplink_s = jnp.maximum(ready_s, busy.uplink_s) + stages.uplink_s
    decoder_s = jnp.maximum(uplink_s, busy.decoder_s) + stages.decoder_s
    downlink_s = jnp.maximum(decoder_s, busy.downlink_s) + stages.downlink_s
    # The link by which a gradient leaves stage s is the one between s - 1 and s.
    leaving_s = jnp.roll(stages.backward_link_s, 1)
    leaving_free_s = jnp.roll(busy.backward_link_s, 1)

    def one_stage(arrival_s, stage):
        active, free_s, pass_s, link_free_s, link_s = stage
        done_s = jnp.maximum(arrival_s, free_s) + pass_s
        sent_s = jnp.maximum(done_s, link_free_s) + link_s
        return jnp.where(active, sent_s, arrival_s), (
            jnp.where(active, done_s, free_s),
            jnp.where(active, sent_s, link_free_s),
        )

    _, (stage_s, link_s) = jax.lax.scan(
        one_stage,
        downlink_s,
        (is_active, busy.stage_s, stages.backward_s, leaving_free_s, leaving_s),
        reverse=True,
    )
    return busy._replace(
        stage_s=stage_s,
        backward_link_s=jnp.roll(link_s, -1),
        uplink_s=uplink_s,
        decoder_s=decoder_s,
        downlink_s=downlink_s,
    )
