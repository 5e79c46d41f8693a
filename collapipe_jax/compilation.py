"""How programs are compiled, and keep memory, on a CPU."""

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

CACHE_VARIABLE = "COLLAPIPE_CACHE"
"""Environment variable with the folder of compiled programs, or ``off``."""

# Newer versions of XLA always emit fusions that way, and refuse the option.
WITHOUT_FUSION_EMITTERS = (
    {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ <= (0, 11, 0) else {}
)

QUICK_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    **WITHOUT_FUSION_EMITTERS,
}
"""Of XLA on a CPU: a program is built sooner, and runs slower."""

quick_jit = functools.partial(jax.jit, compiler_options=QUICK_OPTIONS)
"""As `jax.jit`, for what takes longer to compile than to run."""


def compile_for_now(function: Callable, *examples) -> Callable:
    """Compile for the shapes of examples a function that is not worth optimising."""
    return compile_together((function, *examples))[0]


def compile_together(*programs: tuple[Any, ...]) -> list[Callable]:
    """Compile functions, each with its examples, as :func:`compile_for_now`.

    One is traced while another compiles. Pass the longest first.
    """
    options = QUICK_OPTIONS if jax.default_backend() == "cpu" else None
    with ThreadPoolExecutor() as pool:
        compiling = [
            pool.submit(jax.jit(function).lower(*examples).compile, options)
            for function, *examples in programs
        ]
        return [one.result() for one in compiling]


def keep_freed_memory() -> bool:
    """Let a program of many like steps on a CPU keep what it frees.

    XLA takes a step's scratch memory anew at every call. The GNU C library gets blocks of that
    size from the kernel and gives them back after the call, and the kernel clears all their
    pages each time, in every training step. What is kept is that of the calling
    thread, so programs run there from now on, and calls return when they are done. Call this
    before the first computation: JAX reads that when it starts its backend.

    Returns:
      Whether the C library can do so; if not, nothing is changed.
    """
    trim_threshold, mmap_max, never = -1, -4, 2**31 - 1  # options of glibc's mallopt(3)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library than GNU's
        return False
    if not (mallopt(mmap_max, 0) and mallopt(trim_threshold, never)):
        return False
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    return True


def keep_compiled_programs() -> None:
    """Keep compiled programs on disk, so that the next process need not compile them again.

    The folder is that of ``JAX_COMPILATION_CACHE_DIR`` or ``COLLAPIPE_CACHE``, or
    ``collapipe_jax`` in the user's folder for caches.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "collapipe_jax"
    folder = os.environ.get(CACHE_VARIABLE) or str(default)
    if folder == "off" or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
