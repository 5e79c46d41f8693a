"""The same model trained in one place: the reference for what collaboration costs.

Every mini-batch is what all clusters together would have taken in that local step, no
message is lost, and nothing is aggregated. Samples, their order, steps and initial
parameters are those of the collaborative run of the same seed. The decoder's optimiser
steps the whole model, since the mini-batches are the merged ones that the decoder sees.
"""

import jax
import jax.numpy as jnp
import optax

from collapipe_jax.config.experiment import Experiment
from collapipe_jax.federated.local_steps import (
    Erasures,
    LearnerState,
    RoundLearning,
    init_learner,
    train_round,
)
from collapipe_jax.training.learner import model_params
from collapipe_jax.training.loop import initial_run_state, round_batches

# One object, since it is a static argument of the compiled round.
_TAKE_OVER = optax.sgd(1.0)


def initial_central_state(experiment: Experiment) -> LearnerState:
    """One learner with the initial parameters of the collaborative run."""
    params = model_params(initial_run_state(experiment).learner)
    optimizers = experiment.optimizers
    alone = init_learner(
        jax.random.key(0),
        experiment.objective.model,
        1,
        optimizers.decoder,
        optimizers.decoder,
        _TAKE_OVER,
    )
    client = {name: params[name] for name in alone.client}
    return alone._replace(client=client, decoder=params["decoder"])


def central_round(
    experiment: Experiment, state: LearnerState, index: int
) -> tuple[LearnerState, RoundLearning]:
    """``H`` steps on merged mini-batches of ``N B`` samples.

    Args:
      experiment: what the collaborative run would use.
      state: before.
      index: number of the round, which fixes samples and keys.
    """
    batches = round_batches(experiment, index)
    merged = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], 1, -1, *leaf.shape[3:]), batches)
    nothing_lost = Erasures(
        micro_batches=jnp.ones(1, jnp.int32),
        loss_probability=jnp.zeros(1),
        present=jnp.ones(1, bool),
    )
    key = jax.random.fold_in(jax.random.key(experiment.config["seed"]), 3)
    return train_round(
        state,
        merged,
        nothing_lost,
        jnp.ones(1),
        jax.random.fold_in(key, index),
        model=experiment.objective.model,
        client_tx=experiment.optimizers.decoder,
        decoder_tx=experiment.optimizers.decoder,
        server_tx=_TAKE_OVER,
    )
