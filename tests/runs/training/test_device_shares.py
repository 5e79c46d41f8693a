"""How runs share the devices of a host."""

import io

import jax
import pytest
from rich.console import Console
from support import tiny_run

from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training import loop as device_shares
from collapipe_jax.runs.training.loop import share_devices


@pytest.fixture(scope="module")
def experiment():
    """Two clusters, four examples of each."""
    return build_experiment(tiny_run.get_config())


def shared(experiment, runs, devices):
    """Numbers of runs, sets of devices, and the message."""
    told = io.StringIO()
    found = share_devices(
        [experiment] * runs, [experiment.learner] * runs, devices, Console(file=told, width=200)
    )
    sizes = [own.stop - own.start for own, _ in found]
    assert found[0][0].start == 0
    assert found[-1][0].stop == runs
    return (
        sizes,
        [{device.id for device in place.device_set} for _, place in found],
        told.getvalue(),
    )


@pytest.mark.parametrize(
    ("runs", "devices", "parts", "told"),
    [
        (1, 1, [1], ""),
        (1, 8, [8], "2 x 4 devices share 2 copies of the model x 4 examples of each\n"),
        (
            1,
            7,
            [4],
            "2 x 2 devices share 2 copies of the model x 4 examples of each; 3 of 7 are idle",
        ),
        (
            2,
            4,
            [2, 2],
            "2 x 1 devices share 2 copies of the model x 4 examples of each, in each of 2",
        ),
        (3, 3, [1, 1, 1], ""),
        (3, 4, [1, 1, 1], "1 of 4 are idle, as no larger mesh divides 2 copies"),
    ],
)
def test_devices_of_a_run_share_copies_and_examples(runs, devices, parts, told, experiment):
    sizes, places, said = shared(experiment, runs, jax.devices()[:devices])
    assert sizes == [1] * runs
    assert [len(place) for place in places] == parts
    assert len(set().union(*places)) == sum(parts)  # no device has two runs
    assert said.startswith(told)
    assert bool(said) == bool(told)
    idle = devices - sum(parts)
    assert (f"{idle} of {devices} are idle" in said) == bool(idle)


def test_more_runs_than_devices_take_turns_on_a_cpu(experiment):
    sizes, places, said = shared(experiment, 5, jax.devices()[:1] * 2)
    assert (sizes, places, said) == ([1] * 5, [{jax.devices()[0].id}] * 5, "")


def test_more_runs_than_accelerators_are_batches_of_almost_one_size(experiment, monkeypatch):
    monkeypatch.setattr(device_shares, "_takes_turns", lambda devices: False)
    sizes, places, said = shared(experiment, 7, jax.devices()[:4])
    assert sorted(sizes) == [1, 2, 2, 2]
    assert places == [{device.id} for device in jax.devices()[:4]]
    assert not said
    twice = [device for device in jax.devices()[:2] for _ in range(2)]
    assert shared(experiment, 5, twice)[:2] == ([2, 3], [{d.id} for d in jax.devices()[:2]])
