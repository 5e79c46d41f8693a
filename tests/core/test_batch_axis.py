"""A function of a batch behaves as the plain function that it stands for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.random_problems import pick

from collapipe_jax.core import batch_axis
from collapipe_jax.core.batch_axis import (
    batch_last,
    fusion_barrier,
    improve_in_chunks,
    in_chunks,
    max_nodes,
    sum_nodes,
)

ROWS, COLUMNS = 3, 2


def by_batch(tables, scale):
    matrix, shift = tables["matrix"], tables["shift"]
    image = jnp.stack([jnp.sum(row * matrix[0], axis=0) for row in matrix])
    order = jnp.argsort(image, axis=0)
    return {"image": image * scale[None] + shift, "order": (order, jnp.sum(matrix, axis=(0, 1)))}


def plain(tables, scale):
    matrix, shift = np.asarray(tables["matrix"]), np.asarray(tables["shift"])
    image = matrix @ matrix[0]
    order = np.argsort(image)
    return {"image": image * np.asarray(scale) + shift, "order": (order, matrix.sum())}


wrapped = batch_last(by_batch)


def random_arguments(*batch):
    rng = np.random.default_rng(batch)
    tables = {
        "matrix": rng.normal(size=(*batch, ROWS, COLUMNS)).astype(np.float32),
        "shift": rng.normal(size=(*batch, ROWS)).astype(np.float32),
    }
    return tables, rng.normal(size=batch).astype(np.float32)


def one_by_one(tables, scale, batch):
    """The plain function in a loop over everything."""
    results = [plain(pick(tables, index), scale[index]) for index in np.ndindex(batch)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *results)
    return jax.tree.map(lambda leaf: leaf.reshape(*batch, *leaf.shape[1:]), stacked)


def assert_equal(got, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, wanted)
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(np.shape, wanted)


def test_one_call():
    arguments = random_arguments()
    assert_equal(wrapped(*arguments), plain(*arguments))
    assert_equal(jax.jit(wrapped)(*arguments), plain(*arguments))


def test_many_side_by_side():
    arguments = random_arguments(5)
    assert_equal(jax.jit(jax.vmap(wrapped))(*arguments), one_by_one(*arguments, (5,)))


def test_many_of_many():
    arguments = random_arguments(2, 3)
    twice = jax.jit(jax.vmap(jax.vmap(wrapped)))
    assert_equal(twice(*arguments), one_by_one(*arguments, (2, 3)))


def test_along_another_axis_than_the_first():
    tables, scale = random_arguments(5)
    turned = {"matrix": np.moveaxis(tables["matrix"], 0, 1), "shift": tables["shift"].T}
    got = jax.jit(jax.vmap(wrapped, in_axes=({"matrix": 1, "shift": 1}, 0)))(turned, scale)
    assert_equal(got, one_by_one(tables, scale, (5,)))


def test_what_all_share_is_repeated():
    tables, _ = random_arguments()
    scale = random_arguments(2, 3)[1]
    twice = jax.jit(jax.vmap(jax.vmap(wrapped, in_axes=(None, 0)), in_axes=(None, 0)))
    shared = twice(tables, scale)
    repeated = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (2, 3, *leaf.shape)), tables)
    assert_equal(shared, one_by_one(repeated, scale, (2, 3)))


def test_an_inner_axis_and_an_outer_one_of_different_arguments():
    tables, scale = random_arguments(3)[0], random_arguments(2)[1]
    twice = jax.jit(jax.vmap(jax.vmap(wrapped, in_axes=(0, None)), in_axes=(None, 0)))
    crossed = twice(tables, scale)
    repeated = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (2, *leaf.shape)), tables)
    wide = np.broadcast_to(scale[:, None], (2, 3))
    assert_equal(crossed, one_by_one(repeated, wide, (2, 3)))


def test_what_has_a_light_likeness_is_traced_once_in_all_axes_and_loops():
    traced = []

    def solve(values):
        traced.append(values.shape)
        return 2.0 * values

    double = batch_last(solve, like=jnp.zeros_like)

    def run(values):
        return jax.lax.scan(lambda total, _: (total + double(values), None), values, length=3)[0]

    values = random_arguments(2, 3)[1]
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.vmap(run)))(values), 7.0 * values, rtol=1e-6)
    assert traced == [(6,)]


def test_a_false_likeness_is_refused():
    halves = batch_last(lambda values: values / 2, like=lambda values: jnp.stack([values] * 2))
    with pytest.raises(AssertionError, match=r"\(1,\).*\(2,\)"):
        jax.jit(halves)(jnp.ones(()))


@pytest.mark.parametrize(
    "count", [3, 11, *(pytest.param(count, marks=pytest.mark.slow) for count in (4, 8))]
)
def test_a_batch_larger_than_a_chunk(monkeypatch, count):
    seen = []

    def watched(*arguments):
        seen.append(arguments[1].shape)
        return by_batch(*arguments)

    monkeypatch.setattr(batch_axis, "_CHUNK", {"cpu": 4})
    monkeypatch.setattr(batch_axis, "_CHUNK_ELSEWHERE", 4)
    arguments = random_arguments(count)
    assert_equal(
        jax.jit(jax.vmap(batch_last(watched)))(*arguments), one_by_one(*arguments, (count,))
    )
    assert seen[-1] == (min(count, 4),)


def test_chunks_may_be_larger_for_a_lighter_function(monkeypatch):
    monkeypatch.setattr(batch_axis, "_CHUNK", {"cpu": 4})
    monkeypatch.setattr(batch_axis, "_CHUNK_ELSEWHERE", 4)
    values = np.arange(11.0)
    sizes = jax.jit(in_chunks(lambda one: jnp.full_like(one, len(one)), times=2))(values)
    np.testing.assert_array_equal(sizes, 8.0)


@pytest.mark.parametrize("needed", [[], [2], [0, 3, 4, 9], [1, 2, 5, 7, 10], range(11)])
def test_only_problems_that_need_it_are_improved(monkeypatch, needed):
    monkeypatch.setattr(batch_axis, "_CHUNK", {"cpu": 4})
    monkeypatch.setattr(batch_axis, "_CHUNK_ELSEWHERE", 4)
    calls = []

    def improve(problem, answer):
        jax.debug.callback(lambda: calls.append(1))
        return {"sum": answer["sum"] + problem, "rows": 2.0 * answer["rows"]}

    problem = np.arange(11.0, dtype=np.float32)
    before = {"sum": 10.0 * problem, "rows": np.stack([problem, -problem])}
    is_needed = np.isin(np.arange(11), list(needed))
    after = jax.jit(functools.partial(improve_in_chunks, improve))(is_needed, problem, before)
    np.testing.assert_array_equal(after["sum"], np.where(is_needed, 11.0, 10.0) * problem)
    doubled = np.where(is_needed, 2.0, 1.0) * np.asarray(before["rows"])
    np.testing.assert_array_equal(after["rows"], doubled)
    jax.effects_barrier()
    assert len(calls) == -(-len(needed) // 4)


@pytest.mark.parametrize("batch", [1, 64])
def test_numbers_behind_a_barrier_are_the_same_to_the_bit(batch):
    values = np.array([0.0, -0.0, 1e-37, 1 / 3, -7e37, np.inf, -np.inf, np.nan], np.float32)
    tree = {"some": np.repeat(values[:, None], batch, axis=1), "more": (np.ones((1, batch)),)}
    kept = jax.jit(fusion_barrier)(tree)
    jax.tree.map(np.testing.assert_array_equal, kept, tree)
    np.testing.assert_array_equal(np.signbit(kept["some"][1]), True)


@pytest.mark.parametrize("batch", [1, 40])
def test_sums_and_maxima_are_the_same_over_small_and_large_batches(batch):
    values = np.random.default_rng(8).uniform(size=(6, 3, batch)).astype(np.float32)
    np.testing.assert_allclose(sum_nodes(values), values.sum(0), rtol=1e-6)
    np.testing.assert_array_equal(max_nodes(values), values.max(0))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="how XLA fuses for CPUs")
def test_a_sum_that_is_read_at_every_row_is_taken_once():
    """As XLA fuses now. Where both counts are 0 one day, `fusion_barrier` may go."""
    values = np.ones((16, 64), np.float32)

    def additions_beside_the_choice(keep):
        def spread(values):
            total = keep(sum(values[i] for i in range(16)))
            return jnp.where(total[None] > 0, values, -values)

        compiled = jax.jit(spread).lower(values).compile().as_text()
        (loop,) = (part for part in compiled.split("\n\n") if " select(" in part)
        return loop.count(" add(")

    assert additions_beside_the_choice(lambda total: total) >= 15
    assert additions_beside_the_choice(fusion_barrier) == 0
