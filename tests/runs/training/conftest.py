"""A run of the tiny configuration that nothing disturbs."""

import pytest
from support import tiny_run
from support.compilations import compilations
from support.tiny_runs import run

from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training import network_ahead
from collapipe_jax.runs.training.learning_rounds import learn


@pytest.fixture(scope="session")
def experiment():
    return build_experiment(tiny_run.get_config())


@pytest.fixture(scope="session")
def undisturbed(experiment, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    programs = learn, network_ahead._decide_window
    for program in programs:
        program.clear_cache()
    before = [compilations(program) for program in programs]
    record = run(experiment, workdir)
    after = [compilations(program) for program in programs]
    return workdir, record, [now - then for now, then in zip(after, before, strict=True)]
