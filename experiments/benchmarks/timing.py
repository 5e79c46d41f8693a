"""Times of calls."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Wall-clock seconds of a call until its arrays are there, and its result."""
    start_s = time.perf_counter()
    result = jax.block_until_ready(work())
    return time.perf_counter() - start_s, result


def in_turns(
    works: Mapping[str, Callable[[], Any]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of so many calls of each that take turns, after one more to warm up."""
    times_s: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            start_s = clock()
            work()
            if repeat:
                times_s[name].append(clock() - start_s)
    return times_s
