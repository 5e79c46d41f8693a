"""Programs kept on disk, and memory kept between steps: the kernel has no pages to clear."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from flax import struct
from support import ROOT

from collapipe_jax.core import compilation
from collapipe_jax.core.compilation import compile_together, cores

# A step whose scratch memory is 64 MiB, more than the library ever keeps by itself; minor page
# faults of one step follow.
PROGRAM = """
import resource, sys
import jax, jax.numpy as jnp
from collapipe_jax.core.compilation import keep_freed_memory

print(keep_freed_memory() if sys.argv[1] == "keep" else None)
step = jax.jit(lambda x: ((x @ x.T) @ x).sum())
x = jnp.ones((4096, 16))
for _ in range(5):
    step(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step(x).block_until_ready()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10)
"""
PAGES = 2**14


def test_cores_are_counted_on_systems_without_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cores() == os.cpu_count()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts page faults of Linux")
def test_steps_fault_no_pages_where_freed_memory_is_kept():
    environment = os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, how],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for how in ("keep", "leave")
    ]
    (kept, faults), (_, faults_without) = (run.communicate()[0].split() for run in runs)
    if kept == "False":
        pytest.skip("the C library has no such settings")
    assert float(faults_without) > 0.5 * PAGES
    assert float(faults) < 0.05 * PAGES


class Pair(NamedTuple):
    first: jax.Array
    second: jax.Array


class Structure(struct.PyTreeNode):
    pair: Pair
    unknown: None = None


class Labelled(struct.PyTreeNode):
    value: jax.Array
    label: str = struct.field(pytree_node=False, default="a")


@pytest.fixture
def cache(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def double_of(traces, pair, name="double"):
    def function(pair):
        traces.append(name)
        return Structure(Pair(2 * pair.first, pair.second))

    (double,) = compile_together((function, pair), kept_as=name, returns=(Structure, Pair))
    return double(pair)


def test_a_kept_program_is_traced_once_for_its_name_and_shapes(cache):
    traces: list[str] = []
    pair, longer = Pair(jnp.ones(3), jnp.arange(2)), Pair(jnp.ones(4), jnp.arange(2))
    first, again = double_of(traces, pair), double_of(traces, pair)
    assert traces == ["double"]
    assert isinstance(again.pair, Pair)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, first, again))
    double_of(traces, longer)
    double_of(traces, pair, "other")
    assert traces == ["double", "double", "other"]


def test_a_damaged_program_is_built_anew(cache):
    traces: list[str] = []
    pair = Pair(jnp.ones(3), jnp.arange(2))
    double_of(traces, pair)
    (kept,) = cache.glob("collapipe_jax-*")
    whole = kept.read_bytes()
    for damaged in (b"", whole[:100], whole[::-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        kept.write_bytes(damaged)
        assert double_of(traces, pair).pair.first.tolist() == [2.0, 2.0, 2.0]
        assert len(kept.read_bytes()) == len(whole)
    assert len(traces) == 5


def test_a_change_anywhere_in_the_package_makes_new_programs(monkeypatch):
    read: list[Path] = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or b"")
    compilation._source_digest.__wrapped__()
    assert set(read) == set((ROOT / "collapipe_jax").rglob("*.py"))


def test_a_kept_program_returns_no_static_fields(cache):
    with pytest.raises(TypeError, match="static fields"):
        compile_together((Labelled, jnp.ones(1)), kept_as="labelled", returns=(Labelled,))


def test_without_a_folder_nothing_is_kept(cache):
    jax.config.update("jax_compilation_cache_dir", None)
    traces: list[str] = []
    pair = Pair(jnp.ones(3), jnp.arange(2))
    assert double_of(traces, pair).pair.first.tolist() == [2.0, 2.0, 2.0]
    assert not list(cache.iterdir())
