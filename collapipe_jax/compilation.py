"""How programs that run once are compiled."""

import functools

import jax

quick_jit = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_use_fusion_emitters": False,
    },
)
"""As `jax.jit`, for what takes longer to compile than to run: a third of the time to compile."""
