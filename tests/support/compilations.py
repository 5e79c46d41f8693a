"""How often functions are compiled.

JAX tells a listener about each program. Its caches do not tell: in a long session they forget.
"""

import collections
import contextlib

import jax

_PROGRAMS = collections.Counter()


def _count(event, seconds, fun_name="", **others):
    if event == "/jax/core/compile/backend_compile_duration":
        _PROGRAMS[fun_name] += 1


jax.monitoring.register_event_duration_secs_listener(_count)


def compilations(function):
    """How often this process has compiled jitted functions of this name."""
    return _PROGRAMS[f"jit({function.__name__})"]


@contextlib.contextmanager
def compiles(function, times):
    """Assert that a jitted function is compiled exactly this many times in the block.

    Where some times are expected, programs of earlier tests are forgotten: tests run in any order.
    """
    if times:
        function.clear_cache()
    before = compilations(function)
    yield
    assert compilations(function) - before == times, (compilations(function), before)
