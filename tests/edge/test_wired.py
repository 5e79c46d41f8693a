"""Pipelines over wired links against all of them, one by one."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collapipe_jax.edge.wired import (
    Machines,
    PipelineWork,
    best_placement,
    data_parallel_step_s,
    placement_of,
)


def drawn(seed, count=3, blocks=4, batch=4, trains=True):
    """Random machines, some of them without a link, and work that not all have room for."""
    rng = np.random.default_rng(seed)

    def both_ways(upper):
        return np.triu(upper, 1) + np.triu(upper, 1).T

    machines = Machines(
        names=tuple("abcdefgh"[:count]),
        memory_bytes=rng.uniform(2, 12, count),
        flops_per_s=rng.uniform(1, 10, count),
        read_bytes_per_s=rng.choice([np.inf, 3.0], count),
        rate_bps=both_ways(rng.choice([0.0, 0.3, 1.0, 5.0], (count, count))),
        delay_s=both_ways(rng.uniform(0, 0.3, (count, count))),
    )
    work = PipelineWork(
        blocks=blocks,
        batch=batch,
        block_flops=1.0,
        first_flops=0.2,
        last_flops=0.7,
        message_bits=0.3,
        block_static_bytes=1.0,
        block_kept_bytes=0.2,
        first_static_bytes=0.6,
        last_static_bytes=0.9,
        trained_bits=5.0,
        trains=trains,
    )
    return machines, work


def all_placements(machines, work):
    for count in range(1, len(machines.names) + 1):
        for order in itertools.permutations(range(len(machines.names)), count):
            for cuts in itertools.combinations(range(1, work.blocks), count - 1):
                blocks = np.diff([0, *cuts, work.blocks])
                for micro_batches in range(1, work.batch + 1):
                    if work.batch % micro_batches == 0:
                        stages = list(zip(order, map(int, blocks), strict=True))
                        yield placement_of(machines, work, stages, micro_batches)


@pytest.mark.parametrize("trains", [True, False])
def test_none_of_all_pipelines_is_faster(trains):
    with_any = 0
    for seed in range(40):
        machines, work = drawn(seed, trains=trains)
        steps = [one.step_s for one in all_placements(machines, work) if one]
        found = best_placement(machines, work)
        assert (found is None) == (not steps)
        if found:
            with_any += len(found.machines) > 1
            np.testing.assert_allclose(found.step_s, min(steps), rtol=1e-12)
            again = placement_of(
                machines,
                work,
                list(zip(found.machines, found.blocks, strict=True)),
                found.micro_batches,
            )
            assert again == found
            fits = np.array(found.stage_bytes) <= machines.memory_bytes[list(found.machines)]
            assert fits.all()
    assert with_any > 5


def test_a_step_by_hand():
    """Two machines, two micro-batches of two samples: 1F1B by the clock."""
    machines, work = drawn(0, count=2)
    machines = machines._replace(
        memory_bytes=np.array([50.0, 50.0]),
        flops_per_s=np.array([2.0, 1.0]),
        rate_bps=np.array([[0.0, 0.5], [0.5, 0.0]]),
        delay_s=np.array([[0.0, 0.1], [0.1, 0.0]]),
    )
    one = placement_of(machines, work, [(0, 3), (1, 1)], 2)
    first, last, link = 2 * (3 + 0.2) / 2, 2 * (1 + 0.7), 2 * 0.3 / 0.5
    np.testing.assert_allclose(one.stage_s, [first, last])
    np.testing.assert_allclose(one.step_s, first + last + 2 * (link + 0.1) + max(first, last, link))
    # The first stage has both micro-batches at once, the last one of them.
    kept = [3 * 4 * 0.2, 1 * 2 * 0.2]
    np.testing.assert_allclose(one.stage_bytes, [3 + 0.6 + kept[0], 1 + 0.9 + kept[1]])
    assert (
        placement_of(machines._replace(rate_bps=np.zeros((2, 2))), work, [(0, 3), (1, 1)], 2)
        is None
    )


@given(seed=st.integers(0, 10**6), factor=st.floats(1.0, 4.0), place=st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_more_memory_speed_or_rate_never_hurts(seed, factor, place):
    machines, work = drawn(seed, count=4)
    name = ("memory_bytes", "flops_per_s", "rate_bps", "read_bytes_per_s")[place]
    better = machines._replace(**{name: factor * getattr(machines, name)})
    before, after = best_placement(machines, work), best_placement(better, work)
    if before is not None:
        assert after is not None
        assert after.step_s <= before.step_s * (1 + 1e-12)


def test_the_best_of_a_network_of_any_size_beats_random_ones():
    rng = np.random.default_rng(0)
    machines, work = drawn(5, count=5, blocks=24, batch=16)
    machines = machines._replace(memory_bytes=np.full(5, 40.0))
    found = best_placement(machines, work)
    for _ in range(2_000):
        count = rng.integers(1, 6)
        cuts = np.sort(rng.choice(np.arange(1, 24), count - 1, replace=False))
        blocks = np.diff([0, *cuts, 24])
        stages = list(zip(map(int, rng.permutation(5)[:count]), map(int, blocks), strict=True))
        one = placement_of(machines, work, stages, int(rng.choice([1, 2, 4, 8, 16])))
        assert one is None or found.step_s <= one.step_s


def test_data_parallelism_needs_room_for_all_and_a_ring():
    machines, work = drawn(0)
    rich = machines._replace(
        memory_bytes=np.full(3, 100.0),
        flops_per_s=np.array([4.0, 2.0, 2.0]),
        rate_bps=np.full((3, 3), 1e9),
        delay_s=np.zeros((3, 3)),
    )
    sample = 4 * 1.0 + 0.2 + 0.7
    np.testing.assert_allclose(data_parallel_step_s(rich, work), 4 * sample / 8, rtol=1e-6)
    slow = rich._replace(rate_bps=np.full((3, 3), 1e-6))  # then the fastest works alone
    np.testing.assert_allclose(data_parallel_step_s(slow, work), 4 * sample / 4)
    assert data_parallel_step_s(rich._replace(memory_bytes=np.full(3, 5.0)), work) is None
