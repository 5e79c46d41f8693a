"""How programs that run once are compiled."""

import functools

import jax

QUICK_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""Of XLA on a CPU: a program is built in a third of the time, and several times slower."""

quick_jit = functools.partial(jax.jit, compiler_options=QUICK_OPTIONS)
"""As `jax.jit`, for what takes longer to compile than to run."""
