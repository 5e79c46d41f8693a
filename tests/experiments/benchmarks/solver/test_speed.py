"""The benchmark of speed: wrong options, and devices that are chosen after all imports."""

import subprocess
import sys

import pytest

from collapipe_jax.core.errors import InputError
from experiments.benchmarks.solver.speed import main

_CHOOSE = """
import jax
import experiments.benchmarks.solver.speed
jax.config.update("jax_num_cpu_devices", 3)
assert len(jax.devices("cpu")) == 3
"""


@pytest.mark.slow
def test_imports_use_no_device():
    subprocess.run([sys.executable, "-c", _CHOOSE], check=True)


@pytest.mark.parametrize(
    ("option", "match"),
    [("--networks=7", "--networks"), ("--batch=0", "--batch"), ("--candidates=1", "--candidates")],
)
def test_wrong_options_are_refused(option, match):
    with pytest.raises(InputError, match=match):
        main([option])
