"""How programs are compiled, and keep memory, on a CPU."""

import contextlib
import ctypes
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from collapipe_jax.core.files import write_bytes

CACHE_VARIABLE = "COLLAPIPE_CACHE"
"""Environment variable with the folder of compiled programs, or ``off``."""

# Newer versions of XLA always emit fusions that way, and refuse the option.
WITHOUT_FUSION_EMITTERS = (
    {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ <= (0, 11, 0) else {}
)

QUICK_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    **WITHOUT_FUSION_EMITTERS,
}
"""Of XLA on a CPU: a program is built sooner, and runs slower."""

CPU_MESH_OPTIONS = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
"""Of XLA for a program on several devices of one CPU: all devices run collectives in one order.

By default an all-reduce and a permutation that do not depend on each other run in either order, and
devices that begin with different ones wait for each other for ever.
"""

quick_jit = functools.partial(jax.jit, compiler_options=QUICK_OPTIONS)
"""As `jax.jit`, for what takes longer to compile than to run."""


def compile_for_now(function: Callable, *examples) -> Callable:
    """Compile for the shapes of examples a function that is not worth optimising."""
    return compile_together((function, *examples))[0]


def compile_together(
    *programs: tuple[Any, ...], kept_as: str = "", returns: Sequence[type] = ()
) -> list[Callable]:
    """Compile functions, each with its examples, as :func:`compile_for_now`.

    One is traced while another compiles. Pass the longest first.

    Args:
      programs: functions, each followed by its examples.
      kept_as: name of the programs and of all that they depend on besides their examples. With
        a name the traced programs are kept beside the compiled ones.
      returns: all types of this package within the results; kept programs need them.
    """
    options = QUICK_OPTIONS if jax.default_backend() == "cpu" else None
    folder = jax.config.values["jax_compilation_cache_dir"]
    with ThreadPoolExecutor() as pool:
        compiling = []
        for place, (function, *examples) in enumerate(programs):
            program = jax.jit(function)
            if kept_as and folder:
                name = f"{kept_as}.{place}"
                program = _kept_program(program, examples, Path(folder), name, returns)
            compiling.append(pool.submit(program.lower(*examples).compile, options))
        return [one.result() for one in compiling]


def _kept_program(function, examples, folder: Path, name: str, returns: Sequence[type]) -> Any:
    """A jitted function that is traced only where no earlier process has kept its trace."""
    leaves, structure = jax.tree.flatten(examples)
    shapes = [(jnp.shape(leaf), jax.dtypes.result_type(leaf).name) for leaf in leaves]
    identity = jax.__version__, jax.default_backend(), _source_digest(), name, structure, shapes
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()
    path = folder / f"collapipe_jax-{name}-{digest}.stablehlo"
    for kind in returns:
        _register(kind)
    content = _read_checked(path)
    if content is None:
        flat = jax.jit(lambda *leaves: function(*jax.tree.unflatten(structure, leaves)))
        content = bytes(export.export(flat)(*leaves).serialize())
        with contextlib.suppress(OSError):  # JAX warns if it cannot write to the folder
            write_bytes(path, hashlib.sha256(content).digest() + content)
    call = export.deserialize(bytearray(content)).call
    return jax.jit(lambda *arguments: call(*jax.tree.leaves(arguments)))


def _read_checked(path: Path) -> bytes | None:
    """Content of a file behind its digest; None if it is missing or damaged."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    digest, content = found[:size], found[size:]
    return content if hashlib.sha256(content).digest() == digest else None


@functools.cache
def _register(kind: type) -> None:
    """Let a named tuple, or a structure without static fields, be part of a kept program."""
    if issubclass(kind, tuple):
        export.register_namedtuple_serialization(kind, serialized_name=kind.__qualname__)
        return
    export.register_pytree_node_serialization(
        kind,
        serialized_name=kind.__qualname__,
        serialize_auxdata=_without_static_fields,
        deserialize_auxdata=lambda _: (),
    )


def _without_static_fields(static: tuple) -> bytes:
    if static:
        raise TypeError(f"a kept program cannot return static fields: {static}")
    return b""


@functools.cache
def _source_digest() -> str:
    """Digest of this package's source: any change of it makes new programs."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def cores() -> int:
    """Cores of the CPU that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Let a program of many like steps on a CPU keep what it frees.

    XLA takes a step's scratch memory anew at every call. The GNU C library gets blocks of that
    size from the kernel and gives them back after the call, and the kernel clears all their
    pages each time, in every training step. Threads share as many heaps as there are cores:
    with one they wait for each other, with more a step of long rows takes more time and memory
    (docs/pipeline.md has figures of two cores). Programs run in the calling threads: calls return
    when they are done. Call this before the first computation: JAX reads that when it starts its
    backend.

    Returns:
      Whether the C library can do so; if not, nothing is changed.
    """
    trim_threshold, mmap_max, arena_max = -1, -4, -8  # options of glibc's mallopt(3)
    never = -1  # the largest positive number would give back blocks of 2 GiB
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library than GNU's
        return False
    options = {mmap_max: 0, trim_threshold: never, arena_max: cores()}
    if not all(mallopt(name, value) for name, value in options.items()):
        return False
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    return True


def keep_compiled_programs() -> None:
    """Keep programs on disk, so that the next process need not build them again.

    The folder is that of ``JAX_COMPILATION_CACHE_DIR`` or ``COLLAPIPE_CACHE``, or
    ``collapipe_jax`` in the user's folder for caches.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "collapipe_jax"
    folder = os.environ.get(CACHE_VARIABLE) or str(default)
    if folder == "off" or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    jax.config.update("jax_compilation_cache_dir", folder)
    # The many small programs of a start take a second together.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
