"""Eight virtual devices, quick compilation, strict ranks: set before jax is imported anywhere."""

import gc
import os
import warnings
from importlib.metadata import version

# Tests compile much and run little: unoptimised programs take less than half the time in all.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        # Further threads save no processor time: both cores are at work.
        "--xla_cpu_parallel_codegen_split_count=1",
        # Devices that run collectives in different orders wait for ever; see the same file.
        "--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
        # Newer versions refuse the flag; see collapipe_jax/core/compilation.py.
        "--xla_cpu_use_fusion_emitters=false" if version("jax") < "0.11.1" else "",
    ]
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# As the command sets it: tests read what a program prints.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Programs need no lines of source: a twentieth of the time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax
import jaxtyping
import pytest
from hypothesis import settings
from support import ROOT
from support.local_server import serving

# Traces make many objects that stay; by default the collector looks through all of them often.
gc.set_threshold(200_000, 50, 1000)

# Shapes and types of these packages' public functions are checked in every call.
OF_ALLOCATION = ("allocate", "derivative", "energy_caps", "limits", "partition_bound")
OF_ALLOCATION += ("smooth_maximum", "smooth_objective")
jaxtyping.install_import_hook(
    [
        *(f"collapipe_jax.edge.{room}" for room in ("cost", "network", "queues")),
        *(f"collapipe_jax.edge.solver.{name}" for name in OF_ALLOCATION),
        "collapipe_jax.learning.federated",
    ],
    "beartype.beartype",
)

jax.config.update("jax_numpy_rank_promotion", "raise")
settings.register_profile("repo", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("repo")


@pytest.fixture(scope="session")
def folder_of_workers(tmp_path_factory, worker_id):
    """A folder that all processes of these tests share."""
    folder = tmp_path_factory.getbasetemp()
    return folder if worker_id == "master" else folder.parent


@pytest.fixture(scope="session", autouse=True)
def kept_programs(folder_of_workers):
    """Compile once what several files and processes compile."""
    settings = {
        "jax_compilation_cache_dir": str(folder_of_workers / "programs"),
        # With a limit JAX locks the folder, and nobody reads half a file.
        "jax_compilation_cache_max_size": 2**34,
        "jax_persistent_cache_min_compile_time_secs": 0.2,
    }
    with pytest.MonkeyPatch.context() as changed:
        for name, value in settings.items():
            jax.config.update(name, value)
            changed.setenv(name.upper(), str(value))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks():
    """Programs are killed in tests, but no machine loses its power."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_device():
    """Simulate on one device: each of them compiles a program of its own."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(jax, "local_devices", lambda **_: jax.devices()[:1])
        yield


@pytest.fixture
def no_data(monkeypatch):
    """Run one test without corpora."""
    monkeypatch.delenv("COLLAPIPE_DATA", raising=False)


@pytest.fixture
def in_root(monkeypatch, no_data):
    """Run one test from the repository's root, without corpora."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def server(monkeypatch):
    """A server of files on this machine."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        yield server


@pytest.fixture
def peers():
    """`torch` and `transformers`, whose imports and calls may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reason = 'pip install -e ".[bench]"'
        yield tuple(pytest.importorskip(name, reason=reason) for name in ("torch", "transformers"))


@pytest.fixture
def x64():
    """Run one test in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def batch_axis_last():
    """Numbers of a problem with a trailing batch axis meet arrays with more axes before it."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def double(batch_axis_last):
    """Run a module with a trailing batch axis in double precision, fixtures included."""
    with jax.enable_x64(True):
        yield
