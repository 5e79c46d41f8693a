"""How often functions are compiled."""

import contextlib


@contextlib.contextmanager
def compiles(function, times):
    """Assert that a jitted function is compiled exactly this many times in the block.

    Where some times are expected, programs of earlier tests are forgotten: tests run in any order.
    """
    if times:
        function.clear_cache()
    before = function._cache_size()
    yield
    assert function._cache_size() - before == times, (function._cache_size(), before)
