"""Folders of all kinds that a report shows, small ones."""

import shutil

import pytest
from filelock import FileLock
from support import ROOT, SUPPORT, tiny_run
from support.tiny_runs import run

from collapipe_jax.cli import compare, sweep
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.results.checkpoints import Run, load_run, save_race
from collapipe_jax.runs.results.experiment import Results

CONFIG = f"--config={SUPPORT / 'tiny_run.py'}"
SIZES = ("--rounds=3", "--realisations=2", "--policies=static_pipeline,splitfed")
QUICK = {"shares": "equal", "split": "even", "client_micro_batches": "1"}
"""Options with which policies of clients compile in a moment."""
SIZES += tuple(f"--config.policy.{name}={value}" for name, value in QUICK.items())


def trained(workdir, policy, **dynamics):
    config = tiny_run.get_config()
    config.policy.update(QUICK)
    config.policy.name = policy
    config.dynamics.update(dynamics)
    run(build_experiment(config), workdir)
    return workdir


@pytest.fixture(scope="session")
def folders(folder_of_workers):
    """Folders by what they hold, made by the first process that needs them."""
    top = folder_of_workers / "report"
    with FileLock(top.with_suffix(".lock")):
        if not top.exists():
            whole = top.with_suffix(".new")
            make(whole)
            whole.rename(top)
    return {path.name: path for path in top.iterdir()}


def make(top):
    """One folder of each kind; devices of training runs walk."""
    trained(top / "pipeline", "static_pipeline", speed_m_per_s=1.0)
    trained(top / "clients", "splitfed", speed_m_per_s=1.0)
    compare.main([CONFIG, f"--workdir={top / 'compare'}", *SIZES])
    axis = "--sweep=radio.d2e_bandwidth_hz=5e6,10e6"
    sweep.main([CONFIG, f"--workdir={top / 'sweep'}", *SIZES, axis])
    shutil.copytree(ROOT / "docs/examples", top / "plan")
    kinds = ("pipeline", "clients")
    runs = [
        Run(kind, 1.0, 0, f"../{kind}", "test_bleu", {}, load_run(top / kind)) for kind in kinds
    ]
    save_race(runs, Results.create(top / "race", "race", {}))
