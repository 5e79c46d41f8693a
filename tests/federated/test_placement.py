"""A round of training on several devices: the same numbers, a share of the memory each."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from support import tiny_run

from collapipe_jax.config.experiment import build_experiment
from collapipe_jax.federated.placement import device_mesh
from collapipe_jax.training import learning_rounds
from collapipe_jax.training.learning_rounds import LearningRounds
from collapipe_jax.training.loop import round_inputs
from collapipe_jax.training.network_ahead import NetworkAhead
from collapipe_jax.training.ongoing_run import initial_run_state

CLUSTERS = 8


def learnt(policy, devices, monkeypatch):
    """Reports and parameters after two rounds of 8 clusters, and bytes on a device of the call."""
    config = tiny_run.get_config()
    config.network.clusters, config.policy.name = CLUSTERS, policy
    config.model.update({"width": 32, "feed_forward_width": 128, "encoder_blocks": 8})
    config.update_from_flattened_dict({"devices.memory_share": 1.0, "control.device_budget_j": 9.0})
    config.control.control_unit_budget_j = 9.0
    experiment = build_experiment(config)
    mesh = device_mesh(jax.devices()[:devices], experiment.learner.copies)
    place = SingleDeviceSharding(jax.devices()[0])
    if devices > 1:
        place = NamedSharding(mesh, PartitionSpec())
    state = initial_run_state(experiment)
    learning = LearningRounds([experiment.learner], [state.learning], place)
    found, learn = [], learning_rounds.learn

    def measured(*given, **options):
        sizes = learn.lower(*given, **options).compile().memory_analysis()
        kept = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        found.append(sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + kept)
        return learn(*given, **options)

    monkeypatch.setattr(learning_rounds, "learn", measured)
    (rounds,) = NetworkAhead([experiment], [state.system], [0]).take([2])
    inputs = round_inputs(experiment, experiment.learner, 0, [happened for _, happened in rounds])
    (reports,) = learning.advance([inputs])
    monkeypatch.setattr(learning_rounds, "learn", learn)
    return reports, jax.device_get(learning.state(0).params), found[0]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["static_pipeline", "vanilla_fl"])
def test_eight_devices_share_a_round_of_eight_clusters(policy, monkeypatch):
    one, params, whole = learnt(policy, 1, monkeypatch)
    eight, spread, share = learnt(policy, 8, monkeypatch)
    for single, own in zip(one, eight, strict=True):
        np.testing.assert_allclose(own.loss, single.loss, rtol=1e-5)
        np.testing.assert_allclose(own.gradient_norm, single.gradient_norm, rtol=1e-4)
    # Adam magnifies rounding where gradients vanish, as those of the keys' biases.
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(spread), strict=True)
    moved = np.concatenate([np.abs(a - b).ravel() for a, b in pairs])
    assert np.quantile(moved, 0.98) < 1e-5
    assert share <= 0.2 * whole


@pytest.mark.parametrize(
    ("devices", "copies", "used"), [(8, 8, 8), (8, 6, 6), (4, 6, 3), (3, 4, 2), (2, 3, 1)]
)
def test_as_many_devices_as_divide_the_copies(devices, copies, used):
    assert device_mesh(jax.devices()[:devices], copies).size == used
