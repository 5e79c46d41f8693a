"""Several runs in one program are the runs alone."""

import io
import itertools
import threading

import jax
import numpy as np
import pytest
from flax import serialization
from rich.console import Console
from support import tiny_run
from support.compilations import compiles
from support.metrics import read_metrics

from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training import loop
from collapipe_jax.runs.training import loop as device_shares
from collapipe_jax.runs.training.learning_rounds import LearningRounds, learn
from collapipe_jax.runs.training.loop import round_inputs, train, train_together
from collapipe_jax.runs.training.network_ahead import NetworkAhead, _decide_window, initial_network
from collapipe_jax.runs.training.ongoing_run import OngoingRun, initial_run_state, learning_place

VARIED = [
    {"seed": 0, "training.client_learning_rate": 1e-3},
    {"seed": 1, "training.client_learning_rate": 4e-3, "policy.name": "static_pipeline"},
    {"seed": 2, "radio.d2e_bandwidth_hz": 1e6, "training.rounds": 4, "training.warmup_steps": 2},
]
CLIENTS = [
    {"policy.name": name, "seed": seed} for name in ("splitfed", "vanilla_fl") for seed in (0, 1)
]


def built(changes):
    config = tiny_run.get_config()
    config.update_from_flattened_dict(changes)
    return build_experiment(config)


def quiet():
    return Console(file=io.StringIO())


def together(experiments, root, **options):
    folders = [root / str(index) for index in range(len(experiments))]
    options = {"devices": jax.devices()[:1]} | options
    return train_together(experiments, folders, console=quiet(), **options)


@pytest.fixture(scope="module")
def experiments():
    return [built(changes) for changes in VARIED]


@pytest.fixture(scope="module")
def alone(experiments, tmp_path_factory):
    root = tmp_path_factory.mktemp("alone")
    for index, experiment in enumerate(experiments):
        train_together(
            [experiment], [root / str(index)], devices=jax.devices()[:1], console=quiet()
        )
    return root


def files_of(root, index):
    return {
        name: (root / str(index) / name).read_bytes() for name in ("metrics.jsonl", "summary.json")
    }


@pytest.fixture(scope="module")
def batch(experiments, tmp_path_factory):
    root = tmp_path_factory.mktemp("batch")
    with compiles(learn, 1):
        together(experiments, root)
    return root


def assert_alike(root, alone, rtol):
    """Same networks to the bit, same losses up to rounding."""
    for index in range(len(VARIED)):
        found, expected = (read_metrics(path / str(index)) for path in (root, alone))
        assert len(found) == len(expected)
        for ours, single in zip(found, expected, strict=True):
            assert ours["segments"] == single["segments"]
            np.testing.assert_allclose(ours["latency_s"], single["latency_s"], rtol=1e-6)
            np.testing.assert_allclose(ours["train_loss"], single["train_loss"], rtol=rtol)


def test_seeds_rates_policies_and_channels_share_one_program(batch, alone):
    for index in range(3):
        assert files_of(batch, index) == files_of(alone, index)
    assert [len(read_metrics(batch / str(index))) for index in range(3)] == [6, 6, 4]


@pytest.mark.parametrize("call", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_killed_batch_resumes_to_the_same_bytes(call, experiments, batch, tmp_path, monkeypatch):
    whole, calls = LearningRounds.advance, itertools.count(1)

    def killed(learning, rounds):
        if next(calls) == call:
            raise SystemExit
        return whole(learning, rounds)

    with monkeypatch.context() as patch:
        patch.setattr(LearningRounds, "advance", killed)
        with pytest.raises(SystemExit):
            together(experiments, tmp_path)
    together(experiments, tmp_path, resume=True)
    for index in range(len(experiments)):
        assert files_of(tmp_path, index) == files_of(batch, index)


@pytest.mark.slow
def test_data_parallel_policies_share_a_program_by_their_clients(tmp_path):
    """SplitFed and VanillaFL both train a whole model on every device."""
    experiments = [built(changes) for changes in CLIENTS]
    with compiles(learn, 1):
        runs = together(experiments, tmp_path)
    for experiment, run in zip(experiments, runs, strict=True):
        name = f"{experiment.config['policy']['name']}{experiment.config['seed']}"
        single = train(experiment, tmp_path / name, console=quiet())
        np.testing.assert_allclose(
            run.history["train_loss"], single.history["train_loss"], rtol=1e-5
        )


@pytest.mark.slow
def test_one_batch_of_an_accelerator_learns_the_same(experiments, alone, tmp_path, monkeypatch):
    """``jax.vmap`` over runs, as on a GPU, up to rounding."""
    monkeypatch.setattr(device_shares, "_takes_turns", lambda devices: False)
    together(experiments, tmp_path)
    assert_alike(tmp_path, alone, 1e-4)


def test_a_state_is_not_kept_twice(experiments):
    """What a call takes in is given up for what it returns."""
    experiment = experiments[0]
    state = initial_run_state(experiment).learning
    learning = LearningRounds([experiment.learner], [state], learning_place(experiment))
    held = jax.tree.leaves(learning.state(0))
    ((one,),) = NetworkAhead([experiment], [initial_network(experiment)], [0]).take([1])
    learning.advance([round_inputs(experiment, experiment.learner, 0, [one[1]])])
    assert all(leaf.is_deleted() for leaf in held)


def test_rounds_reach_another_host_whole(experiments):
    network = NetworkAhead([experiments[0]], [initial_network(experiments[0])], [0])
    rounds = network.take([2])
    message = serialization.msgpack_serialize(serialization.to_state_dict(rounds))
    received = network.restore(serialization.msgpack_restore(message))
    assert jax.tree.structure(received) == jax.tree.structure(rounds)
    for one, other in zip(jax.tree.leaves(received), jax.tree.leaves(rounds), strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


@pytest.mark.slow
def test_runs_on_two_devices_are_the_runs_on_one(experiments, alone, tmp_path):
    with compiles(learn, 2):  # one a device
        together(experiments[:2], tmp_path, devices=jax.devices()[2:4])
    for index in range(2):
        assert files_of(tmp_path, index) == files_of(alone, index)


@pytest.mark.slow
def test_threads_of_one_device_share_a_program(experiments, alone, tmp_path):
    with compiles(learn, 0):  # the one of the runs alone
        together(experiments, tmp_path, devices=jax.devices()[:1] * 3)
    for index in range(3):
        assert files_of(tmp_path, index) == files_of(alone, index)


@pytest.mark.slow
def test_what_is_compiled_ahead_is_not_compiled_again(experiments, tmp_path):
    experiment, place = experiments[0], learning_place(experiments[0])
    with OngoingRun(experiment, tmp_path, False, quiet()) as run:
        part = loop._Part([run], [experiment.learner], place, 0)
        with compiles(learn, 1):
            part.compile()
        with compiles(learn, 0), compiles(_decide_window, 0):
            assert next(part.train(threading.Event())) == 1
