"""Both ways of learning behind one signature: one model cut over devices, or whole copies.

Which one it is follows from what the policy decides.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from collapipe_jax.compilation import quick_jit
from collapipe_jax.config.experiment import Experiment
from collapipe_jax.cost.client_decision import ClientDecision
from collapipe_jax.federated.data_parallel import (
    ClientErasures,
    ClientsState,
    init_clients,
    train_clients_round,
)
from collapipe_jax.federated.local_steps import (
    Erasures,
    LearnerState,
    RoundLearning,
    init_learner,
    train_round,
)
from collapipe_jax.models.layers import Params
from collapipe_jax.models.split_model import Batch
from collapipe_jax.simulation.environment import SystemRound

Learner = LearnerState | ClientsState
"""What learning carries from round to round."""


class RoundOutcome(NamedTuple):
    """What a round of the network does to learning.

    Attributes:
      erasures: who takes part and what is lost.
      segments: ``[N, K]``, for a pipeline that runs; None for clients.
    """

    erasures: Erasures | ClientErasures
    segments: Array | None


def initial_learner(key: Array, experiment: Experiment) -> Learner:
    """A fresh model, or the one that the objective starts from, and fresh optimisers.

    Args:
      key: random key; the parameters do not depend on the way of learning.
      experiment: what is to run.
    """
    optimizers, problem = experiment.optimizers, experiment.system.mean_problem
    tx = {
        "client_tx": optimizers.client,
        "decoder_tx": optimizers.decoder,
        "server_tx": optimizers.server,
    }
    model, clusters, devices = experiment.objective.model, problem.clusters, problem.devices
    if experiment.most_client_samples is None:
        learner = _init_learner(key, model=model, clusters=clusters, **tx)
    else:
        learner = _init_clients(key, model=model, clusters=clusters, devices=devices, **tx)
    return _with_params(learner, experiment.objective.starting_params(model_params(learner)))


_STATIC = ("model", "clusters", "client_tx", "decoder_tx", "server_tx")
_init_learner = quick_jit(init_learner, static_argnames=_STATIC)
_init_clients = quick_jit(init_clients, static_argnames=(*_STATIC, "devices"))


def model_params(learner: Learner) -> Params:
    """Parameters of the whole model, ``{"embedding", "encoder", "decoder"}``."""
    if isinstance(learner, ClientsState):
        return learner.params
    return {**learner.client, "decoder": learner.decoder}


def _with_params(learner: Learner, params: Params) -> Learner:
    if isinstance(learner, ClientsState):
        return learner._replace(params=params)
    client = {name: params[name] for name in learner.client}
    return learner._replace(client=client, decoder=params["decoder"])


def outcome_of(happened: SystemRound) -> RoundOutcome:
    """What a round's decision and channel do to learning."""
    decision, cost = happened.decision, happened.cost
    if isinstance(decision, ClientDecision):
        return RoundOutcome(ClientErasures(decision.samples, cost.loss_probability), None)
    erasures = Erasures(
        micro_batches=decision.micro_batches,
        loss_probability=cost.loss_probability,
        present=~cost.absent,
    )
    return RoundOutcome(erasures, decision.segments)


def learn(
    experiment: Experiment, learner: Learner, batches: Batch, outcome: RoundOutcome, key: Array
) -> tuple[Learner, RoundLearning]:
    """Local steps and aggregation of one round.

    Args:
      experiment: what runs.
      learner: before the round.
      batches: leaves ``[H, N, B, ...]``.
      outcome: of the network's round.
      key: random key of the round.
    """
    optimizers = experiment.optimizers
    arguments = {
        "weights": jnp.asarray(experiment.cluster_weight, jnp.float32),
        "key": key,
        "model": experiment.objective.model,
        "client_tx": optimizers.client,
        "decoder_tx": optimizers.decoder,
        "server_tx": optimizers.server,
    }
    if isinstance(learner, ClientsState):
        return train_clients_round(
            learner,
            batches,
            outcome.erasures,
            most_samples=experiment.most_client_samples,
            **arguments,
        )
    return train_round(
        learner,
        batches,
        outcome.erasures,
        segments=outcome.segments,
        execution=experiment.execution,
        erasure_law=experiment.erasure_law,
        **arguments,
    )
