"""Compile for one call: quick to build rather than quick to run."""

from collections.abc import Callable

import jax

_QUICK = {"cpu": {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}}
"""Less than half the time to compile a decision, at three times the few milliseconds it runs."""


def compile_for_now(function: Callable, *examples) -> Callable:
    """A compiled function that will not be called often enough to be worth optimising.

    Args:
      function: pure, as for ``jax.jit``.
      *examples: arguments of the shapes to come.

    Returns:
      The function for arguments of these shapes.
    """
    lowered = jax.jit(function).lower(*examples)
    try:
        return lowered.compile(compiler_options=_QUICK.get(jax.default_backend()))
    except jax.errors.JaxRuntimeError:  # a compiler that does not know these options
        return lowered.compile()
