"""Single rounds of a run, without a workdir."""

import jax
import jax.numpy as jnp

from collapipe_jax.runs.training.history import round_metrics
from collapipe_jax.runs.training.learning_rounds import LearningRounds
from collapipe_jax.runs.training.loop import round_inputs
from collapipe_jax.runs.training.network_ahead import NetworkAhead
from collapipe_jax.runs.training.ongoing_run import RunState, learning_place


def run_round(experiment, state, index):
    """State and metrics after a round; the state before it stays as it is."""
    network = NetworkAhead([experiment], [state.system], [index])
    (((system, happened),),) = network.take([1])
    learner, place = experiment.learner, learning_place(experiment)
    start = jax.tree.map(jnp.copy, state.learning)
    learning = LearningRounds([learner], [start], place)
    inputs = round_inputs(experiment, learner, index, [happened])
    ((report,),) = learning.advance([inputs])
    return RunState(learning.state(0), system), round_metrics(index, happened, report)
