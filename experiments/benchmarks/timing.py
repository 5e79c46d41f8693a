"""How long one call takes."""

import time
from collections.abc import Callable
from typing import Any

import jax


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Wall-clock seconds of a call until its arrays are there, and its result."""
    start_s = time.perf_counter()
    result = jax.block_until_ready(work())
    return time.perf_counter() - start_s, result
