"""How programs that run once are compiled."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

# Newer versions of XLA always emit fusions that way, and refuse the option.
WITHOUT_FUSION_EMITTERS = (
    {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ <= (0, 11, 0) else {}
)

QUICK_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    **WITHOUT_FUSION_EMITTERS,
}
"""Of XLA on a CPU: a program is built in a third of the time, and several times slower."""

quick_jit = functools.partial(jax.jit, compiler_options=QUICK_OPTIONS)
"""As `jax.jit`, for what takes longer to compile than to run."""


def compile_for_now(function: Callable, *examples) -> Callable:
    """Compile a function that will not be called often enough to be worth optimising.

    Args:
      function: pure, as for ``jax.jit``.
      *examples: arguments of the shapes to come.

    Returns:
      The function for arguments of these shapes.
    """
    return _compile(jax.jit(function).lower(*examples))


def compile_together(*programs: tuple[Any, ...]) -> list[Callable]:
    """Compile several functions as :func:`compile_for_now`, one traced while another compiles.

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
