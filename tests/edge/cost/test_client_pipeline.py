"""Micro-batches of clients of split models, docs/system-model.md, section 19."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.client_pipeline import last_event_s
from support.compiled import evaluate, splitfed, violations
from support.random_problems import pick, plain_problems, random_problems, with_ends

from collapipe_jax.edge.cost.decision import ClientDecision

EQUAL = {"shares": "equal", "split": "even"}
"""Options with which a policy compiles in a moment."""


def step_s(stages_s, count):
    """(52) of equal micro-batches."""
    forward_s, *_, backward_s = stages_s
    on_device_s = count * (forward_s + backward_s)
    return max(on_device_s, sum(stages_s) + (count - 1) * max(stages_s))


def random_stages(rng):
    """Five stages, each of them the longest at times."""
    stages_s = rng.lognormal(size=5, sigma=2.0)
    stages_s[4] = 2.0 * stages_s[0]
    return stages_s


def test_equal_micro_batches_end_with_the_last_event():
    rng = np.random.default_rng(0)
    for _ in range(500):
        stages_s, count = random_stages(rng), int(rng.integers(1, 12))
        assert last_event_s([stages_s] * count) == pytest.approx(step_s(stages_s, count))


def test_uneven_micro_batches_end_within_the_way_of_a_sample():
    rng = np.random.default_rng(1)
    for _ in range(500):
        sample_s, samples = random_stages(rng), int(rng.integers(1, 33))
        count = int(rng.integers(1, samples + 1))
        ends = np.arange(count + 1) * samples // count
        found_s = last_event_s([size * sample_s for size in np.diff(ends)])
        mean_s = step_s(samples / count * sample_s, count)
        assert abs(found_s - mean_s) < sample_s.sum() * (1.0 + 1e-9)


def decided(problem, micro_batches):
    """Even parts at the same shares, whatever the number of micro-batches."""
    clusters, devices = problem.compute.memory_bytes.shape
    return ClientDecision(
        samples=jnp.full((clusters, devices), 6),
        client_blocks=jnp.int32(2),
        micro_batches=jnp.int32(micro_batches),
        d2e_share=jnp.full((clusters, devices), 1.0 / (clusters * devices)),
        d2e_power_w=jnp.full((clusters, devices), 0.1),
        whole_model=False,
    )


def test_without_overheads_more_micro_batches_are_never_slower_and_lose_less(x64):
    problems = random_problems(6, 2, 3, 4)
    for index in range(6):
        problem = with_ends(pick(problems, index))
        none = np.zeros(())
        compute = problem.compute.replace(block_overhead_s=none, link_overhead_s=none)
        problem = problem.replace(compute=compute)
        costs = [evaluate(problem, decided(problem, count)) for count in (1, 2, 3, 6, 9)]
        for fewer, more in itertools.pairwise(costs):
            assert np.all(more.cluster_latency_s <= fewer.cluster_latency_s * (1 + 1e-12))
            assert np.all(more.loss_probability <= fewer.loss_probability)
            assert more.divergence <= fewer.divergence
            np.testing.assert_allclose(more.energy_j, fewer.energy_j, rtol=1e-12)
        # A micro-batch has a sample at least.
        jax.tree.map(np.testing.assert_array_equal, costs[-1], costs[-2])


def test_a_dead_link_is_one_for_any_number():
    problem = with_ends(pick(random_problems(1, 2, 3, 4), 0))
    for count in (1, 3):
        decision = decided(problem, count)
        decision = decision.replace(d2e_power_w=decision.d2e_power_w.at[0, 0].set(0.0))
        cost = evaluate(problem, decision)
        assert np.isfinite(cost.cluster_latency_s).tolist() == [False, True]
        assert not any(np.any(np.isnan(leaf)) for leaf in jax.tree.leaves(cost))


def with_choices(problem, choices):
    workload = problem.workload.replace(micro_batch_choices=choices)
    return problem.replace(workload=workload)


@pytest.mark.parametrize("options", [EQUAL, pytest.param({}, marks=pytest.mark.slow)])
def test_the_best_pair_is_the_fastest_of_all(options):
    problems = plain_problems(2, 2, 3, 4)
    decide = functools.partial(splitfed, **options)
    for index in range(2):
        problem = jax.device_get(with_ends(pick(problems, index)))
        choices = problem.workload.micro_batch_choices
        latencies_s = [
            # The best of one number many times is this number, whatever it is, by one program.
            evaluate(
                problem, decide(with_choices(problem, 0 * choices + m), cut=str(cut))
            ).latency_s
            for cut in range(5)
            for m in choices
        ]
        best = decide(problem, cut="best", client_micro_batches="best")
        assert evaluate(problem, best).latency_s <= min(latencies_s) * 1.005


def test_a_cut_without_room_at_the_server_is_not_chosen():
    """With room for a cut above the best one, a cut that fits is taken and none is over."""
    problem = with_ends(pick(plain_problems(1, 2, 3, 4), 0))
    problem = problem.replace(
        compute=problem.compute.replace(es_flops_per_s=1e3 * problem.compute.es_flops_per_s)
    )
    free = splitfed(problem, cut="best", client_micro_batches=1, **EQUAL)
    needed = evaluate(problem, free).server_memory_bytes
    tight = problem.replace(compute=problem.compute.replace(es_memory_bytes=0.8 * needed))
    assert int(free.client_blocks) == 0
    assert violations(tight, free)["server_memory"]
    found = splitfed(tight, cut="best", client_micro_batches=1, **EQUAL)
    assert int(found.client_blocks) > 0
    assert not violations(tight, found)["server_memory"]
    assert not violations(problem, free)["server_memory"]  # 0 is no limit
