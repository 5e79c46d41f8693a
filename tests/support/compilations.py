"""How often functions are compiled."""

import contextlib


@contextlib.contextmanager
def compiles(function, times):
    """Assert that a jitted function is compiled exactly this many times in the block."""
    before = function._cache_size()
    yield
    assert function._cache_size() - before == times, (function._cache_size(), before)
