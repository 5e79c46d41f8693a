"""How often functions are compiled, and how."""

import contextlib

import jax
from jax.experimental.compilation_cache import compilation_cache


@contextlib.contextmanager
def compiles(function, times):
    """Assert that a jitted function is compiled exactly this many times in the block."""
    before = function._cache_size()
    yield
    assert function._cache_size() - before == times, (function._cache_size(), before)


@contextlib.contextmanager
def compiling_with(**settings):
    """Compile in the block without optimising and under further settings of JAX, all of them given.

    What was compiled before or in the block is compiled anew on the other side of its borders.
    """
    settings = {"jax_disable_most_optimizations": True, **settings}
    before = {name: jax.config.values[name] for name in settings}
    _set(settings)
    yield settings
    _set(before)


def _set(settings):
    jax.clear_caches()
    compilation_cache.reset_cache()
    for name, value in settings.items():
        jax.config.update(name, value)
