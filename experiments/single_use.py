"""Compile for one call: quick to build rather than quick to run."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from collapipe_jax.compilation import QUICK_OPTIONS


def compile_for_now(function: Callable, *examples) -> Callable:
    """A compiled function that will not be called often enough to be worth optimising.

    Args:
      function: pure, as for ``jax.jit``.
      *examples: arguments of the shapes to come.

    Returns:
      The function for arguments of these shapes.
    """
    return _compile(jax.jit(function).lower(*examples))


def compile_together(*programs: tuple[Any, ...]) -> list[Callable]:
    """Several functions as by :func:`compile_for_now`, the next one traced while one compiles.

    Args:
      *programs: functions, each with the arguments that are its examples; the longest first.
    """
    with ThreadPoolExecutor() as pool:
        compiling = [
            pool.submit(_compile, jax.jit(function).lower(*examples))
            for function, *examples in programs
        ]
        return [one.result() for one in compiling]


def _compile(lowered: jax.stages.Lowered) -> Callable:
    quick = jax.default_backend() == "cpu"
    return lowered.compile(compiler_options=QUICK_OPTIONS if quick else None)
