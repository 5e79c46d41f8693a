"""Programs that are killed at random moments go on to the same bytes.

``COLLAPIPE_KILLS=12`` sets the kills of each program. A quarter of them, at least one, are real:
SIGKILL ends a process, the next one goes on in the same workdir and is killed in its turn. For the
others a process is stopped wherever its workdir changes, and the workdir is copied. The program
goes on in the copy, which is what SIGKILL would have left at that moment. Moments are drawn with
a fixed seed. A machine that fails also loses what is not yet on its disk, which is not tried here.
"""

import itertools
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from support import ROOT, SUPPORT, tiny_corpora
from support.killed import states_on_disk

from collapipe_jax.cli import compare, sweep, train
from experiments.studies import closed_loop, race

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_data")]

KILLS = int(os.environ.get("COLLAPIPE_KILLS", "2"))
REAL = max(1, KILLS // 4)

_CONFIG = f"--config={SUPPORT / 'tiny_run.py'}"
_COMPARE = ("--rounds=2", "--realisations=4", "--chunk=2", "--policies=static_pipeline,vanilla_fl")
_TRAIN = ("--config.training.rounds=4", "--config.evaluation.every_rounds=2")
# Shards leave half-written files of others alone; the whole finds nothing else to do.
_SHARDS = (["--shard=0/2"], ["--shard=1/2"], [])
_TEXTS = ("--config.task.vocabulary_size=80", "--config.task.source_length=12")
_LABELS = {"classification": 2, "tagging": 5}
# By name: the module, its options, and further ones of each of its processes, one after another
PROGRAMS = {
    "train, translation": (train, (*_TRAIN, "--resume"), [[]]),
    "train, classification": (train, (*_TRAIN, *_TEXTS, "--resume"), [[]]),
    "train, tagging": (train, (*_TRAIN, *_TEXTS, "--resume"), [[]]),
    "train, two seeds": (train, (*_TRAIN, "--seeds=2"), [[]]),
    "train, a sweep": (train, (*_TRAIN, "--sweep=training.client_learning_rate=1e-3,4e-3"), [[]]),
    "train, shards": (train, (*_TRAIN, "--seeds=2"), _SHARDS),
    "compare": (compare, _COMPARE, [[]]),
    "compare, shards": (compare, _COMPARE, _SHARDS),
    "sweep": (sweep, (*_COMPARE, "--sweep=control.v=1,10"), [[]]),
    "race": (race, (*_TRAIN, "--policies=static_pipeline,vanilla_fl", "--rates=1,2"), [[]]),
    "closed loop": (closed_loop, (*_COMPARE, "--v=1,10"), [[]]),
}
# How fast a machine was; and files that a process locked, which do not matter once it is gone
_NO_RESULTS = (".lock", "speed.jsonl")


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    # The files of Orbax have random names; what is in them is compared by what is trained on.
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if not path.name.endswith(_NO_RESULTS)
        and not {"checkpoints", "checksums.json"} & set(path.relative_to(folder).parts)
    }


def task_options(name, folder):
    """Of the task that a program's name ends in."""
    kind = name.rpartition(" ")[2]
    if kind not in _LABELS:
        return []
    given = tiny_corpora.write_sets(folder, kind) | {"kind": kind, "labels": _LABELS[kind]}
    return [f"--config.task.{key}={value}" for key, value in given.items()]


# Of eight devices it uses one, as programs do here. With one device alone XLA rounds otherwise.
_ON_ONE_DEVICE = """
import runpy, sys
import jax
jax.local_devices = lambda **_: jax.devices()[:1]
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def start():
    """Start a program as a process."""

    def start(program, arguments):
        package, _, name = program.__name__.rpartition(".")
        place = ["collapipe_jax", name] if package == "collapipe_jax.cli" else [program.__name__]
        return subprocess.Popen(
            [sys.executable, "-c", _ON_ONE_DEVICE, *place, *arguments],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )

    return start


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_killed_program_goes_on_to_the_same_bytes(name, tmp_path, start):
    program, options, processes = PROGRAMS[name]
    options = [_CONFIG, *options, *task_options(name, tmp_path)]
    whole, running, killed = (tmp_path / each for each in ("whole", "running", "killed"))

    def finish(workdir):
        for more in processes:
            program.main([*options, f"--workdir={workdir}", *more])
        return contents(workdir)

    expected, taken, rng = finish(whole), [], np.random.default_rng(0)
    for number, more in enumerate(processes):
        (copies := tmp_path / f"copies{number}").mkdir()
        with start(program, [*options, f"--workdir={running}", *more]) as process:
            taken += states_on_disk(process, running, copies, lambda _: False)
        assert process.returncode == 0
    (copies := tmp_path / "copies").mkdir()
    for _ in range(REAL):  # so early that no process ends before
        early = itertools.count(-rng.integers(1, len(taken) // (2 * REAL)))
        with start(program, [*options, f"--workdir={killed}", *processes[0]]) as process:
            states_on_disk(process, killed, copies, lambda _, early=early: next(early) >= 0)
        assert process.returncode == -signal.SIGKILL
        shutil.rmtree(copies)
        copies.mkdir()
    chosen = rng.permutation(len(taken))[: KILLS - REAL]
    print(f"{name}: {REAL} killed; {len(taken)} states, resumed from {sorted(chosen.tolist())}")
    for path in [running, killed, *(taken[index] for index in chosen)]:
        found = finish(path)
        assert found.keys() == expected.keys()
        assert [name for name in found if found[name] != expected[name]] == []
        shutil.rmtree(path)
