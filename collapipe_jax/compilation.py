"""How programs that run once are compiled."""

import functools

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
