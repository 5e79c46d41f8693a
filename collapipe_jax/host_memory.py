"""Memory that a process keeps for its next step instead of giving it back to the kernel."""

import ctypes

import jax

# Options of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let a program of many like steps on a CPU keep what it frees.

    XLA takes a step's scratch memory anew at every call. The GNU C library gets blocks of that
    size from the kernel and gives them back after the call, and the kernel clears all their
    pages each time: up to a quarter of a training step. What is kept is that of the calling
    thread, so programs run there from now on, and calls return when they are done. Call this
    before the first computation: JAX reads that when it starts its backend.

    Returns:
      Whether the C library can do so; if not, nothing is changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library than GNU's
        return False
    if not (mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, _NEVER)):
        return False
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    return True
