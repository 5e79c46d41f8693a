"""A round of training on several devices: the same numbers, a share of the memory each."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from support import tiny_run

from collapipe_jax.learning.federated.learner import device_mesh, state_shardings
from collapipe_jax.learning.pipeline.mesh import make_pipeline_mesh
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.learning_rounds import LearningRounds
from collapipe_jax.runs.training.loop import round_inputs
from collapipe_jax.runs.training.network_ahead import NetworkAhead
from collapipe_jax.runs.training.ongoing_run import initial_run_state, learning_place

CLUSTERS, BLOCKS = 8, 8


def make_experiment(policy, clusters, devices, batch, **pipeline):
    config = tiny_run.get_config()
    config.network.update({"clusters": clusters, "devices": devices})
    config.policy.name, config.training.batch = policy, batch
    config.model.update({"width": 32, "feed_forward_width": 128, "encoder_blocks": BLOCKS})
    config.update_from_flattened_dict(
        {"devices.memory_share": 1.0, "control.device_budget_j": 99.0}
    )
    config.control.control_unit_budget_j = 99.0
    config.pipeline.update(pipeline)
    return build_experiment(config)


def learnt(experiment, place):
    """Reports and parameters after two rounds, and the sizes of the call on a device."""
    state = initial_run_state(experiment)
    learning = LearningRounds([experiment.learner], [state.learning], place)
    (rounds,) = NetworkAhead([experiment], [state.system], [0]).take([2])
    inputs = round_inputs(experiment, experiment.learner, 0, [happened for _, happened in rounds])
    sizes = learning.lower([inputs]).compile().memory_analysis()
    (reports,) = learning.advance([inputs])
    return reports, jax.device_get(learning.state(0).params), sizes


def assert_same(got, expected):
    """The same losses, gradients and parameters up to rounding."""
    for own, one in zip(got[0], expected[0], strict=True):
        np.testing.assert_allclose(own.loss, one.loss, rtol=1e-5)
        np.testing.assert_allclose(own.gradient_norm, one.gradient_norm, rtol=1e-4)
    # Adam magnifies rounding where gradients vanish, as those of the keys' biases.
    pairs = zip(jax.tree.leaves(got[1]), jax.tree.leaves(expected[1]), strict=True)
    moved = np.concatenate([np.abs(a - b).ravel() for a, b in pairs])
    assert np.quantile(moved, 0.98) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static_pipeline", "vanilla_fl"])
def test_eight_devices_share_a_round_of_eight_clusters(policy):
    experiment = make_experiment(policy, CLUSTERS, 2, 4)
    mesh = device_mesh(jax.devices(), experiment.learner.copies, 1)
    one = learnt(experiment, SingleDeviceSharding(jax.devices()[0]))
    eight = learnt(experiment, NamedSharding(mesh, PartitionSpec()))
    assert_same(eight, one)
    assert held_bytes(eight[2]) <= 0.2 * held_bytes(one[2])


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static_pipeline", "vanilla_fl"])
def test_devices_share_the_examples_of_few_clusters(policy):
    """Two clusters of one client each, on eight devices."""
    experiment = make_experiment(policy, 2, 1, 8)
    mesh = device_mesh(jax.devices(), 2, 8)
    assert dict(mesh.shape) == {"device": 2, "data": 4}
    one = learnt(experiment, SingleDeviceSharding(jax.devices()[0]))
    eight = learnt(experiment, NamedSharding(mesh, PartitionSpec()))
    assert_same(eight, one)
    assert held_bytes(eight[2]) <= 0.5 * held_bytes(one[2])


def held_bytes(sizes):
    """Bytes of arguments, temporaries, and outputs that take the place of no argument."""
    kept = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + kept


@pytest.mark.slow
def test_four_stages_share_the_temporaries_of_a_round():
    """Two clusters on eight devices; one stage has the same work on one device a cluster."""

    def on_mesh(stages):
        sharded = {"backend": "sharded", "micro_batches": 4, "capacity": BLOCKS // stages}
        experiment = make_experiment("static_pipeline", 2, stages, 16, **sharded)
        return learnt(experiment, learning_place(experiment))

    one, four = on_mesh(1), on_mesh(4)
    assert four[2].temp_size_in_bytes <= 0.4 * one[2].temp_size_in_bytes
    scan = make_experiment("static_pipeline", 2, 4, 16, capacity=BLOCKS // 4)
    assert_same(four, learnt(scan, learning_place(scan)))


@pytest.mark.slow
def test_one_f_one_b_shares_a_round_in_less_memory_than_gpipe():
    """Two stages keep two micro-batches of eight; the decoder runs by micro-batch, too."""
    shape = {"backend": "sharded", "micro_batches": 8, "capacity": BLOCKS // 2}
    gpipe, interleaved = (
        learnt(experiment, learning_place(experiment))
        for schedule in ("gpipe", "1f1b")
        for experiment in [make_experiment("static_pipeline", 1, 2, 16, **shape, schedule=schedule)]
    )
    assert interleaved[2].temp_size_in_bytes <= 0.6 * gpipe[2].temp_size_in_bytes
    assert_same(interleaved, gpipe)


@pytest.fixture(scope="module")
def state():
    """Shapes of the state of two clusters."""
    experiment = make_experiment("static_pipeline", 2, 4, 4)
    params = jax.eval_shape(experiment.task.model.init, jax.random.key(0))
    return jax.eval_shape(experiment.learner.init, params)


def test_copies_lie_by_cluster_and_their_blocks_by_stage(state):
    places = state_shardings(state, make_pipeline_mesh(2, 4))
    for path, place in jax.tree.leaves_with_path(places):
        name = jax.tree_util.keystr(path)
        axes = ("cluster",) * ("client_optimizer" in name) + ("stage",) * ("'encoder'" in name)
        assert place.spec == PartitionSpec(*axes), name


@pytest.mark.parametrize(
    ("devices", "copies", "examples", "shape"),
    [(8, 8, 4, (8, 1)), (8, 2, 4, (2, 4)), (8, 6, 5, (6, 1)), (4, 6, 2, (2, 2)), (3, 5, 1, (1, 1))],
)
def test_the_largest_mesh_that_divides_copies_and_examples(devices, copies, examples, shape):
    assert device_mesh(jax.devices()[:devices], copies, examples).devices.shape == shape


def test_blocks_lie_on_all_devices_and_those_of_copies_on_the_rest(state):
    places = state_shardings(state, device_mesh(jax.devices(), 2, 4))
    for path, place in jax.tree.leaves_with_path(places):
        name = jax.tree_util.keystr(path)
        own, block = "client_optimizer" in name, "'encoder'" in name
        axes = [["device"]] * own + [["data"] if own else ["device", "data"]] * block
        assert place.spec == PartitionSpec(*map(tuple, axes)), name
