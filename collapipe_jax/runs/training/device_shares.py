"""Which devices of a host train which runs."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from rich.console import Console

from collapipe_jax.core.compilation import cores
from collapipe_jax.learning.federated.data_parallel_learner import DataParallelLearner
from collapipe_jax.learning.federated.learner import Learner
from collapipe_jax.learning.federated.placement import device_mesh
from collapipe_jax.runs.config.experiment import Experiment
from collapipe_jax.runs.training.ongoing_run import learning_place


def workers() -> list[Any]:
    """Devices of this host; a CPU as often as it has cores, of which a run uses about one."""
    devices = jax.local_devices()
    if len(devices) == 1 and devices[0].platform == "cpu":
        return devices * cores()
    return devices


def share_devices(
    experiments: Sequence[Experiment],
    learners: Sequence[Learner],
    devices: Sequence[Any],
    console: Console,
) -> list[tuple[slice, Sharding]]:
    """Runs in parts of a device each, on a CPU one by one; or several devices for every run.

    Args:
      experiments: runs of one program.
      learners: their ways of learning.
      devices: one may be there several times, for runs at a time.
      console: where to print how several devices share a run, and which are idle.

    Returns:
      Consecutive runs, and where they learn.
    """
    own, count = list(dict.fromkeys(devices)), len(experiments)
    if count <= len(own):
        each = len(own) // count
        places = [
            _place_of_one(experiment, learner, own[each * index : each * (index + 1)])
            for index, (experiment, learner) in enumerate(zip(experiments, learners, strict=True))
        ]
        if note := _note(experiments, learners[0], places[0], len(own)):
            console.print(note)
    else:
        parts, spots = (count, devices) if _takes_turns(devices) else (len(own), own)
        places = [SingleDeviceSharding(spots[index % len(spots)]) for index in range(parts)]
    bounds = itertools.pairwise(count * part // len(places) for part in range(len(places) + 1))
    return [(slice(*pair), place) for pair, place in zip(bounds, places, strict=True)]


def _takes_turns(devices: Sequence[Any]) -> bool:
    """Whether each core trains a run at a time, as on CPUs; they are batches on accelerators."""
    return devices[0].platform == "cpu"


def _place_of_one(experiment: Experiment, learner: Learner, devices: Sequence[Any]) -> Sharding:
    """The devices of a run that has them to itself."""
    if experiment.execution.backend == "sharded":
        return learning_place(experiment)
    mesh = device_mesh(devices, learner.copies, _examples_of_a_copy(experiment, learner))
    return (
        SingleDeviceSharding(devices[0]) if mesh.size == 1 else NamedSharding(mesh, PartitionSpec())
    )


def _examples_of_a_copy(experiment: Experiment, learner: Learner) -> int:
    """Examples that a cluster or client has room for in a step."""
    if isinstance(learner, DataParallelLearner):
        return learner.max_samples
    return experiment.config["training"]["batch"]


def _note(experiments: Sequence[Experiment], learner: Learner, place: Sharding, there: int) -> str:
    """How runs share devices, and how many are idle; empty where each run has one of them."""
    experiment, count = experiments[0], len(experiments)
    if experiment.execution.backend == "sharded":
        return ""  # the run tells of its own mesh
    rows, columns = place.mesh.axis_sizes if isinstance(place, NamedSharding) else (1, 1)
    idle = there - count * rows * columns
    examples, notes = _examples_of_a_copy(experiment, learner), []
    numbers = f"{learner.copies} copies of the model x {examples} examples of each"
    if rows * columns > 1:
        runs = f", in each of {count} runs" if count > 1 else ""
        notes.append(f"{rows} x {columns} devices share {numbers}{runs}")
    if idle:
        notes.append(f"{idle} of {there} are idle, as no larger mesh divides {numbers}")
    return "; ".join(notes)
