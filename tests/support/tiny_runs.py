"""Training runs of the tiny configuration, interrupted or not."""

import io
import itertools
import signal

import numpy as np
from rich.console import Console

from collapipe_jax.runs.results.checkpoints import Checkpoints, load_run
from collapipe_jax.runs.training import loop as train
from collapipe_jax.runs.training.ongoing_run import initial_run_state
from support.leaves_close import assert_same

ROUNDS = 6


def run(experiment, workdir, resume=False):
    console = Console(file=io.StringIO())
    return train.train(experiment, workdir, resume=resume, console=console).record


def results(workdir):
    """What must not depend on interruptions."""
    return {name: (workdir / name).read_bytes() for name in ("metrics.jsonl", "summary.json")}


def assert_same_run(experiment, workdir, undisturbed):
    assert results(workdir) == results(undisturbed)
    found, expected = load_run(workdir).history, load_run(undisturbed).history
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(found[name], expected[name])
    like = initial_run_state(experiment)
    states = []
    for path in (workdir, undisturbed):
        with Checkpoints(path) as checkpoints:
            states.append(checkpoints.load(ROUNDS, like)[0])
    assert_same(*states)


def interrupt_in(monkeypatch, owner, name, count, number=signal.SIGINT):
    """Interrupt the call of that number of a function."""
    whole, calls = getattr(owner, name), itertools.count(1)

    def interrupted(*arguments):
        if next(calls) == count:
            signal.raise_signal(number)
        return whole(*arguments)

    monkeypatch.setattr(owner, name, interrupted)


class Killed(BaseException):
    """Stands for the end of the process."""


def killed(*_, **__):
    raise Killed
