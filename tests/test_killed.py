"""Programs that are killed at random moments go on to the same bytes."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support import ROOT, SUPPORT
from support.killed import states_on_disk

from collapipe_jax.cli import compare, sweep, train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_compilation", "no_data")]

KILLS = 6
"""Moments of every program, drawn with a fixed seed."""

_CONFIG = f"--config={SUPPORT / 'tiny_run.py'}"
_SMALL = ("--rounds=2", "--realisations=4", "--chunk=2", "--policies=static_pipeline,vanilla_fl")
PROGRAMS = {
    "compare": (compare, [_CONFIG, *_SMALL]),
    "sweep": (sweep, [_CONFIG, *_SMALL, "--sweep=control.v=1,10"]),
    "train": (train, [_CONFIG, "--seeds=2", "--config.training.rounds=4"]),
}
_TIMES = ("speed.jsonl",)  # how fast a machine was; all else is equal


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in _TIMES]
    # The files of Orbax have random names; what is in them is compared by what is trained on.
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if not {"checkpoints", "checksums.json"} & set(path.relative_to(folder).parts)
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_killed_program_goes_on_to_the_same_bytes(name, tmp_path, shared_compilation):
    program, arguments = PROGRAMS[name]
    whole, running, copies = (tmp_path / each for each in ("whole", "running", "copies"))
    program.main([*arguments, f"--workdir={whole}"])
    copies.mkdir()
    # On one device, as here: several round otherwise.
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    with subprocess.Popen(
        [sys.executable, "-m", "collapipe_jax", name, *arguments, f"--workdir={running}"],
        cwd=ROOT,
        env=os.environ | shared_compilation | {"XLA_FLAGS": flags},
        stdout=subprocess.DEVNULL,
    ) as process:
        taken = states_on_disk(process, running, copies, lambda _: False)
    assert len(taken) > KILLS
    chosen = np.random.default_rng(0).permutation(len(taken))[:KILLS]
    print(f"{name}: {len(taken)} states on disk, resumed from {sorted(chosen.tolist())}")
    for path in [running, *(taken[index] for index in chosen)]:
        program.main([*arguments, f"--workdir={path}"])
        found, expected = contents(path), contents(whole)
        assert found.keys() == expected.keys()
        assert [name for name in found if found[name] != expected[name]] == []
        shutil.rmtree(path)
