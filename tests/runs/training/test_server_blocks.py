"""A run whose first round decides the cut learns, is saved, and is exported whole."""

import jax
import numpy as np
import pytest
from support import tiny_run
from support.leaves_close import assert_same

import collapipe_jax as cp
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.report.network import network_of_run
from collapipe_jax.runs.results.checkpoints import Checkpoints
from collapipe_jax.runs.training.network_ahead import decide_mode_and_cut
from collapipe_jax.runs.training.ongoing_run import initial_run_state


def blocks_of(stacks):
    return {leaf.shape[0] for leaf in jax.tree.leaves(stacks)}


def with_cut(kept):
    """Clusters keep at least so many of three blocks, and a server is fast enough for all."""
    config = tiny_run.get_config()
    config.model.update({"encoder_blocks": 3, "min_cluster_blocks": kept})
    config.dynamics.availability = 1.0
    return config


def test_a_run_begins_with_the_cut_of_its_first_round():
    before = build_experiment(with_cut(1))
    decided = decide_mode_and_cut(before)
    assert (before.server_blocks, decided.server_blocks) == (0, 2)
    assert decided.learner.server_blocks == 2
    blocks = [one.system.mean_problem.workload.cluster_blocks for one in (before, decided)]
    assert list(map(int, blocks)) == [3, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1])
def test_a_run_learns_and_leaves_the_whole_model(kept, tmp_path):
    config = with_cut(kept)
    config.training.update({"rounds": 12, "schedule": "constant", "server_average": 0.5})
    run = cp.train(config, tmp_path, quiet=True)
    loss = run.history["train_loss"]
    assert loss[-3:].mean() < loss[:3].mean() - 0.3
    assert np.all(run.history["segments"].sum(-1) == kept)
    assert run.summary["server_blocks"] == 3 - kept
    assert blocks_of(run.params["encoder"]) == {3}
    replayed = network_of_run(run.record)
    np.testing.assert_allclose(replayed.latency_s, run.history["latency_s"], rtol=1e-5)
    np.testing.assert_array_equal(replayed.links.talks_d2e.sum(-1), 1)
    # A checkpoint has the parts, from which a run goes on.
    experiment = decide_mode_and_cut(build_experiment(config))
    with Checkpoints(tmp_path, writable=False) as checkpoints:
        state, _ = checkpoints.load(12, initial_run_state(experiment))
    assert blocks_of(state.learning.client.get("encoder", {})) == ({kept} if kept else set())
    assert blocks_of(state.learning.decoder.encoder) == {3 - kept}
    assert_same(state.learning.scored_params, run.params)
    assert len(cp.load(tmp_path).predict(["ba do ku"])) == 1
