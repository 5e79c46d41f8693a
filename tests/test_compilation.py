"""Memory kept between steps: the kernel has no pages to clear."""

import os
import subprocess
import sys

import pytest

# A step whose scratch memory is 64 MiB, more than the library ever keeps by itself; minor page
# faults of one step follow.
PROGRAM = """
import resource, sys
import jax, jax.numpy as jnp
from collapipe_jax.compilation import keep_freed_memory

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
