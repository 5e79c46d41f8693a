"""Segments by candidates against every composition there is."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from random_problems import plain_problems, random_problems

from collapipe_jax.cost.round import price
from collapipe_jax.scheduling.baselines import static_pipeline
from collapipe_jax.scheduling.feasibility import can_run, is_feasible, violations
from collapipe_jax.scheduling.segments import (
    LatencyPrice,
    candidate_sets,
    fill_segments,
    propose_segments,
)

BLOCKS, DEVICES = 5, 4
COMPOSITIONS = np.array(
    [c for c in itertools.product(range(BLOCKS + 1), repeat=DEVICES) if sum(c) == BLOCKS]
)
fill = jax.jit(lambda *arguments: fill_segments(*arguments, BLOCKS))


@given(
    st.lists(st.integers(0, 6), min_size=DEVICES, max_size=DEVICES),
    st.lists(st.integers(0, 5), min_size=DEVICES, max_size=DEVICES),
    st.lists(st.booleans(), min_size=DEVICES, max_size=DEVICES),
)
def test_fill_is_the_cheapest_composition_of_its_set(unit_price, capacity, active):
    unit_price, capacity, active = np.array(unit_price), np.array(capacity), np.array(active)
    row = np.asarray(fill(unit_price.astype(np.float32), capacity, active))
    same_set = np.all((COMPOSITIONS > 0) == active, axis=1)
    allowed = COMPOSITIONS[same_set & np.all(capacity >= COMPOSITIONS, axis=1)]
    if not len(allowed):
        assert not row.any()
        return
    assert row.tolist() in allowed.tolist()
    assert row @ unit_price == (allowed @ unit_price).min()


def test_all_subsets_of_few_devices():
    sets = np.asarray(candidate_sets(jnp.zeros((2, 3, 4))))
    assert sets.shape == (15, 3, 4)
    for n in range(3):
        assert len({tuple(row) for row in sets[:, n]}) == 15
    assert sets.any(axis=2).all()


def test_the_best_devices_first_of_many():
    preference = np.random.default_rng(0).uniform(size=(2, 3, 8))
    sets = np.asarray(candidate_sets(jnp.asarray(preference)))
    assert sets.shape == (16, 3, 8)
    for order, size, n in itertools.product(range(2), range(1, 9), range(3)):
        best = np.argsort(preference[order, n])[:size]
        assert set(np.flatnonzero(sets[order * 8 + size - 1, n])) == set(best)


@jax.jit
@jax.vmap
def proposed(problem):
    """Proposal at the static pipeline's resources, and what it costs."""
    static = static_pipeline(problem, 3)
    everybody = static.replace(
        d2d_share=jnp.where(static.d2d_share > 0, static.d2d_share, 0.2),
        d2d_power_w=problem.radio.d2d_power_max_w,
    )
    per_s = problem.control.v / problem.control.reference_latency_s
    worth = LatencyPrice(jnp.full(problem.clusters, per_s), jnp.zeros(problem.clusters))
    decision = propose_segments(problem, everybody, worth)
    return decision, price(problem, decision), static, price(problem, static)


@jax.jit
@jax.vmap
def every_objective(problem):
    """Objective of every composition x micro-batches at equal shares, ``[C, M]``."""

    def of(segments, count):
        active = jnp.concatenate([jnp.ones(1, bool), segments > 0])[None]
        decision = static_pipeline(problem, 3).replace(
            segments=segments[None],
            micro_batches=count[None],
            d2d_share=active / jnp.sum(active),
        )
        fits = ~violations(problem, decision)["memory"]
        return jnp.where(fits, price(problem, decision).objective, jnp.inf)

    choices = problem.workload.micro_batch_choices
    return jax.vmap(lambda s: jax.vmap(lambda m: of(s, m))(choices))(jnp.asarray(COMPOSITIONS))


def test_proposals_are_near_the_best_composition():
    """One cluster at equal shares: its own cost is the objective, so brute force judges it."""
    problem = plain_problems(64, 1, DEVICES, BLOCKS)
    decision, cost, _, static_cost = proposed(problem)
    best = np.asarray(every_objective(problem)).min(axis=(1, 2))
    found = np.asarray(cost.objective)
    assert np.all(jax.jit(jax.vmap(is_feasible))(problem, decision))
    assert np.all(found >= best * (1 - 1e-5))
    gap = found / best - 1
    assert np.median(gap) < 1e-5
    assert gap.max() < 0.02
    assert np.all(found <= np.asarray(static_cost.objective) * (1 + 1e-5))


def test_memory_is_kept_and_nobody_sits_out_who_can_run():
    def scarce(index, rng, network):
        memory = network["compute"]["memory_bytes"]
        memory *= rng.uniform(0.05, 0.4, memory.shape)
        memory[rng.uniform(size=memory.shape) < 0.2] = 0

    problem = random_problems(64, 3, DEVICES, BLOCKS, scarce)
    decision, _, static, _ = proposed(problem)
    broken = jax.jit(jax.vmap(violations))(problem, decision)
    assert not np.any(broken["memory"])
    assert not np.any(broken["segments"])
    assert not np.any(broken["micro_batches"])
    runs = np.asarray(jax.vmap(can_run)(problem))
    assert 0.05 < runs.mean() < 1
    np.testing.assert_array_equal(np.asarray(decision.segments).sum(2) > 0, runs)
    np.testing.assert_array_equal(np.asarray(static.segments).sum(2) > 0, runs)


def test_a_device_behind_a_dead_link_spoils_only_sets_that_use_it():
    def dead(index, rng, network):
        network["compute"]["memory_bytes"] *= 1e3
        network["radio"]["d2d_gain"][:, 2, :] = 0
        network["radio"]["d2d_gain"][:, :, 2] = 0

    decision, cost, _, static_cost = proposed(random_problems(8, 1, DEVICES, BLOCKS, dead))
    assert np.all(np.asarray(decision.segments)[:, :, 1] == 0)
    assert np.all(np.isfinite(cost.objective))
    assert not np.any(np.isfinite(static_cost.objective))
