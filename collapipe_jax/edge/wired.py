"""Machines without a radio: a pipeline over wired links, each with a rate and a delay.

Machines are few, so the best pipeline is found exactly: which machines take part, in which order,
how many blocks each of them runs, and in how many micro-batches. A step in 1F1B order (Narayanan
et al. 2006.09503) takes as long as a micro-batch on its way through all stages and links, and for
each further micro-batch the time of the slowest of them:

    T = sum of all times + (M - 1) * largest time.

Both directions of a link are at work at once. The first machine also embeds, the last has the
head. The stage that is k-th from the end keeps the activations of ``min(M, k)`` micro-batches.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST_MACHINES = 8
"""The search visits all sets of machines."""


class Machines(NamedTuple):
    """Machines and their links, arrays over ``n`` machines."""

    names: tuple[str, ...]
    memory_bytes: np.ndarray  # [n]
    flops_per_s: np.ndarray  # [n], that training or inference reaches
    read_bytes_per_s: np.ndarray  # [n], of memory, by which inference reads weights; inf: unknown
    rate_bps: np.ndarray  # [n, n], of each direction; 0 where there is no link
    delay_s: np.ndarray  # [n, n], of a message


class PipelineWork(NamedTuple):
    """What a model asks of a pipeline; FLOPs, bits and kept bytes are of one sample.

    In inference a sample is a token of one request: nothing goes backward, and ``kept_bytes`` are
    the keys and values of a whole request, which stay while it lasts.
    """

    blocks: int
    batch: int  # samples of a step, or requests at a time
    block_flops: float  # of both passes
    first_flops: float  # embedding
    last_flops: float  # head
    message_bits: float  # between two stages, in each direction
    block_static_bytes: float  # weights, gradients and optimiser states
    block_kept_bytes: float
    first_static_bytes: float
    last_static_bytes: float
    trained_bits: float  # gradients of the whole model, which data parallelism exchanges
    trains: bool


class Placement(NamedTuple):
    """A pipeline."""

    machines: tuple[int, ...]  # in the order of the stages
    blocks: tuple[int, ...]  # of each stage
    micro_batches: int
    step_s: float  # of a whole batch; in inference of a token of every request
    stage_s: tuple[float, ...]  # of a micro-batch
    link_s: tuple[float, ...]  # of a micro-batch in one direction, between a stage and the next
    stage_bytes: tuple[float, ...]


class _Times(NamedTuple):
    """Times of a micro-batch by machine and number of blocks, ``[n, L + 1]``; and of links."""

    stage_s: np.ndarray
    first_s: np.ndarray  # more on the first machine, [n]
    last_s: np.ndarray  # more on the last one, [n]
    busy_s: np.ndarray  # of a link in one direction, [n, n]; inf without one
    way_s: np.ndarray  # of a message there and back, with its delays


def best_placement(machines: Machines, work: PipelineWork) -> Placement | None:
    """The pipeline with the shortest step; None where no machines together hold the model.

    Numbers of micro-batches are the divisors of the batch.
    """
    found: Placement | None = None
    for micro_batches in range(1, work.batch + 1):
        if work.batch % micro_batches:
            continue
        times, limit_s = _times(machines, work, micro_batches), np.inf
        # A tighter limit of the slowest resource is worth its price in the sum, or not.
        while (chain := _shortest_chain(machines, work, times, micro_batches, limit_s)) is not None:
            one = _placed(machines, work, times, micro_batches, chain)
            if found is None or one.step_s < found.step_s:
                found = one
            slowest_s = _slowest_s(one)
            assert slowest_s <= limit_s, "the limit falls in every turn"
            if _pass_s(one, times) >= found.step_s:
                break
            limit_s = np.nextafter(slowest_s, 0.0)
    return found


def placement_of(
    machines: Machines, work: PipelineWork, stages: Sequence[tuple[int, int]], micro_batches: int
) -> Placement | None:
    """A pipeline of these machines with these numbers of blocks; None where it cannot be."""
    times, count = _times(machines, work, micro_batches), len(stages)
    for place, (machine, blocks) in enumerate(stages):
        need = _needs(work, micro_batches, count - place)[blocks]
        need += work.first_static_bytes * (place == 0)
        need += work.last_static_bytes * (place == count - 1)
        if need > machines.memory_bytes[machine]:
            return None
    ways = itertools.pairwise(machine for machine, _ in stages)
    if any(not np.isfinite(times.busy_s[way]) for way in ways):
        return None
    return _placed(machines, work, times, micro_batches, stages)


def _times(machines: Machines, work: PipelineWork, micro_batches: int) -> _Times:
    size, speed = work.batch / micro_batches, machines.flops_per_s
    counts = np.arange(work.blocks + 1)
    with np.errstate(divide="ignore"):
        busy_s = np.where(
            machines.rate_bps > 0, size * work.message_bits / machines.rate_bps, np.inf
        )
    way_s = busy_s + machines.delay_s
    block_s, last_s = size * work.block_flops / speed, size * work.last_flops / speed
    if not work.trains:  # a token is little work for the weights that it reads
        read = work.block_static_bytes + size * work.block_kept_bytes
        block_s = np.maximum(block_s, read / machines.read_bytes_per_s)
        last_s = np.maximum(last_s, work.last_static_bytes / machines.read_bytes_per_s)
    return _Times(
        stage_s=block_s[:, None] * counts[None],
        first_s=size * work.first_flops / speed,
        last_s=last_s,
        busy_s=busy_s,
        way_s=2.0 * way_s if work.trains else way_s,
    )


def _needs(work: PipelineWork, micro_batches: int, from_end: int) -> np.ndarray:
    """Bytes of a stage by its number of blocks, ``[L + 1]``, without the model's ends."""
    in_flight = min(micro_batches, from_end) / micro_batches if work.trains else 1.0
    block = work.block_static_bytes + in_flight * work.batch * work.block_kept_bytes
    return block * np.arange(work.blocks + 1)


def _shortest_chain(
    machines: Machines, work: PipelineWork, times: _Times, micro_batches: int, limit_s: float
) -> list[tuple[int, int]] | None:
    """Stages ``(machine, blocks)`` with the least sum of times, no single one above the limit.

    A dynamic programme over suffixes of the pipeline: sets of machines, the first of the suffix,
    and its number of blocks.
    """
    count, blocks = len(machines.names), work.blocks
    way_s = np.where(times.busy_s <= limit_s, times.way_s, np.inf)
    counts = np.arange(blocks + 1)
    more = counts[:, None] - counts[None]  # blocks of a new stage, by those behind it and then
    best: dict[tuple[int, int], np.ndarray] = {}  # by set and first machine, [L + 1]
    chosen: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
    end, end_s = None, np.inf

    def stage(machine: int, from_end: int, *, is_last: bool, is_first: bool) -> np.ndarray:
        """Time of a stage by its number of blocks; inf where it does not fit, or takes too long."""
        time_s = times.stage_s[machine] + times.last_s[machine] * is_last
        need = _needs(work, micro_batches, from_end) + work.last_static_bytes * is_last
        if is_first:
            time_s, need = time_s + times.first_s[machine], need + work.first_static_bytes
        fits = (need <= machines.memory_bytes[machine]) & (time_s <= limit_s) & (counts > 0)
        return np.where(fits, time_s, np.inf)

    for members in range(1, 2**count):
        size = members.bit_count()
        for machine in range(count):
            if not members >> machine & 1:
                continue
            rest = members ^ (1 << machine)
            if not rest:
                behind = np.where(counts == 0, 0.0, np.inf)
                following = np.full(blocks + 1, -1)
            else:
                others = [m for m in range(count) if rest >> m & 1]
                after = np.array([way_s[machine, m] + best[rest, m] for m in others])
                following = np.array(others)[after.argmin(axis=0)]
                behind = after.min(axis=0)
            inner = stage(machine, size, is_last=not rest, is_first=False)
            outer = stage(machine, size, is_last=not rest, is_first=True)
            step_s = np.where(more > 0, inner[np.maximum(more, 0)], np.inf)
            step_s[blocks] = np.where(more[blocks] > 0, outer[np.maximum(more[blocks], 0)], np.inf)
            total = behind[None] + step_s
            before = total.argmin(axis=1)
            now = total[counts, before]
            chosen[members, machine] = before, following
            if now[blocks] < end_s:
                end, end_s = (members, machine), now[blocks]
            best[members, machine] = np.where(counts < blocks, now, np.inf)
    if end is None:
        return None
    chain, (members, machine), have = [], end, blocks
    while have:
        before, following = chosen[members, machine]
        left = int(before[have])
        chain.append((machine, have - left))
        members, machine, have = members ^ (1 << machine), int(following[left]), left
    return chain


def _placed(
    machines: Machines,
    work: PipelineWork,
    times: _Times,
    micro_batches: int,
    stages: Sequence[tuple[int, int]],
) -> Placement:
    order, blocks = tuple(m for m, _ in stages), tuple(b for _, b in stages)
    stage_s = np.array([times.stage_s[stage] for stage in stages])
    # In the order of the search, whose limits these numbers become.
    stage_s[-1] += times.last_s[order[-1]]
    stage_s[0] += times.first_s[order[0]]
    needs = [_needs(work, micro_batches, len(order) - i)[b] for i, b in enumerate(blocks)]
    needs[0] += work.first_static_bytes
    needs[-1] += work.last_static_bytes
    link_s = tuple(float(times.busy_s[way]) for way in itertools.pairwise(order))
    one = Placement(
        order, blocks, micro_batches, 0.0, tuple(map(float, stage_s)), link_s, tuple(needs)
    )
    pass_s, slowest_s = _pass_s(one, times), _slowest_s(one)
    if work.trains:
        step_s = pass_s + (micro_batches - 1) * slowest_s
    else:  # the next token of a request needs the last one
        step_s = max(pass_s, micro_batches * slowest_s)
    return one._replace(step_s=float(step_s))


def _pass_s(placement: Placement, times: _Times) -> float:
    """Time of one micro-batch through everything."""
    ways = itertools.pairwise(placement.machines)
    return sum(placement.stage_s) + sum(float(times.way_s[way]) for way in ways)


def _slowest_s(placement: Placement) -> float:
    return max((*placement.stage_s, *placement.link_s))


def data_parallel_step_s(machines: Machines, work: PipelineWork) -> float | None:
    """Step in which each machine has the whole model and a part of the batch, by its speed.

    Gradients go round a ring, twice as many bits as they have but for the share of one machine.
    The fastest machines take part, as many as are best. None where no machine holds the model, or
    no ring of links joins them.
    """
    static = work.first_static_bytes + work.last_static_bytes
    static += work.blocks * work.block_static_bytes
    kept, found = work.blocks * work.block_kept_bytes, None
    sample_flops = work.blocks * work.block_flops + work.first_flops + work.last_flops
    able = [m for m in range(len(machines.names)) if static + kept <= machines.memory_bytes[m]]
    able.sort(key=lambda m: -machines.flops_per_s[m])
    for count in range(1, len(able) + 1):
        members = able[:count]
        speed = machines.flops_per_s[members]
        share = work.batch * speed / speed.sum()
        # A machine computes sample by sample where more have no room.
        time_s = work.batch * sample_flops / speed.sum()
        if count > 1:
            ring = _ring(machines, members)
            if ring is None:
                continue
            slowest_bps, delay_s = ring
            bits = 2.0 * (count - 1) / count * work.trained_bits
            time_s += bits / slowest_bps + 2 * (count - 1) * delay_s
        if share.min() >= 1 and (found is None or time_s < found):
            found = float(time_s)
    return found


def _ring(machines: Machines, members: Sequence[int]) -> tuple[float, float] | None:
    """Rate of the slowest link, and the largest delay, of the ring with the highest such rate."""
    first, *others = members
    best = None
    for order in itertools.permutations(others):
        ways = list(itertools.pairwise((first, *order, first)))
        slowest = min(machines.rate_bps[way] for way in ways)
        if slowest > 0 and (best is None or slowest > best[0]):
            best = float(slowest), float(max(machines.delay_s[way] for way in ways))
    return best
