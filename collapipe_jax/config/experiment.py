"""From a configuration to an experiment; errors are found before any work starts."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from collapipe_jax.config.checks import check_config
from collapipe_jax.config.keys import Config
from collapipe_jax.config.system import build_system
from collapipe_jax.errors import InputError, under_keys
from collapipe_jax.federated.data_parallel_learner import DataParallelLearner
from collapipe_jax.federated.erasures import ErasureLaw
from collapipe_jax.federated.learner import Learner
from collapipe_jax.federated.optimizers import Optimizers, make_optimizer, scale_group_rates
from collapipe_jax.federated.pipeline_learner import PipelineLearner
from collapipe_jax.pipeline.execution import Execution
from collapipe_jax.pipeline.mesh import make_pipeline_mesh
from collapipe_jax.policies.registry import Policy, make_policy, policy_entry
from collapipe_jax.simulation.system import EdgeSystem
from collapipe_jax.tasks.registry import TASKS
from collapipe_jax.tasks.sampling import split_samples
from collapipe_jax.tasks.task import Objective, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A configuration ready to run.

    Attributes:
      config: nested plain dictionary, as it is saved.
      objective: model, corpus and scores.
      cluster_indices: training samples of every cluster.
      cluster_weight: share of the samples, ``[N]``.
      optimizers: of clients, decoder and server.
      execution: how the encoder is executed.
      erasure_law: law of the erasures.
      system: the network.
      policy: the policy that decides.
    """

    config: dict[str, Any]
    objective: Objective
    cluster_indices: list[np.ndarray]
    cluster_weight: np.ndarray
    optimizers: Optimizers
    execution: Execution
    erasure_law: ErasureLaw
    system: EdgeSystem
    policy: Policy

    @property
    def task(self) -> Task:
        """The kind of task."""
        return TASKS[self.config["task"]["kind"]]

    @functools.cached_property
    def learner(self) -> Learner:
        """The way of learning for the policy's decisions."""
        shared = {
            "cluster_weight": jnp.asarray(self.cluster_weight, jnp.float32),
            "model": self.objective.model,
            "optimizers": self.optimizers,
        }
        if not policy_entry(self.config["policy"]["name"]).by_clients:
            return PipelineLearner(execution=self.execution, erasure_law=self.erasure_law, **shared)
        devices = self.system.mean_problem.devices
        return DataParallelLearner(devices=devices, max_samples=self._max_samples(), **shared)

    def _max_samples(self) -> int:
        """Most samples of a mini-batch that a client may get."""
        if self.config["dynamics"]["availability"] < 1.0:
            return self.config["training"]["batch"]
        decision: Any = self.policy(jax.random.key(0), self.system.mean_problem)
        return int(decision.samples.max())


def build_experiment(config: Config) -> Experiment:
    """Build the experiment of a configuration.

    Args:
      config: the configuration.

    Raises:
      InputError: naming key, value and remedy.
    """
    config = check_config(config)
    TASKS[config.task.kind].make_sizes(config)  # cheap checks first, the corpus last
    policy = make_policy(**config.policy)
    _check_trainable(config)
    optimizers = build_optimizers(config)
    execution = build_execution(config)
    erasure_law = build_erasure_law(config)
    equal = np.full(config.network.clusters, 1.0 / config.network.clusters)
    build_system(config, equal)
    objective = TASKS[config.task.kind].make_objective(config)
    cluster_indices = split_samples(
        config.seed,
        config.task.split,
        objective.data.split_keys,
        config.network.clusters,
        config.task.concentration,
        minimum=config.training.batch,
    )
    sizes = np.array([len(indices) for indices in cluster_indices])
    weight = sizes / sizes.sum()
    return Experiment(
        config=config.to_dict(),
        objective=objective,
        cluster_indices=cluster_indices,
        cluster_weight=weight,
        optimizers=optimizers,
        execution=execution,
        erasure_law=erasure_law,
        system=build_system(config, weight),
        policy=policy,
    )


def _check_trainable(config: Config) -> None:
    """Refuse what can be priced but not trained."""
    fraction, backend = config.payload.trained_fraction, config.pipeline.backend
    if fraction < 1.0:
        remedy = "Give 1 to train, or compare policies without training"
        problem = "adapters are priced, not trained"
        raise InputError("payload.trained_fraction", fraction, problem, remedy)
    if policy_entry(config.policy.name).by_clients and backend != "sequential":
        problem = f"policy {config.policy.name} has no pipeline to run"
        raise InputError("pipeline.backend", backend, problem, "Give sequential, or another policy")


def build_execution(config: Config) -> Execution:
    """Execution of the encoder; an ``InputError`` with too few devices."""
    execution = Execution(**config.pipeline)
    if execution.backend == "sharded":
        with under_keys({"mesh": "pipeline.backend"}):
            make_pipeline_mesh(config.network.clusters, config.network.devices)
    return execution


_LAW_KEYS = {"erased_together": ("micro_batch", "round"), "survivor_weight": ("survival", "pooled")}


def build_erasure_law(config: Config) -> ErasureLaw:
    """Law of the erasures; an ``InputError`` on one that the policy does not read."""
    for key, known in _LAW_KEYS.items():
        name, value = f"training.{key}", config.training[key]
        if value not in known:
            raise InputError(name, value, "unknown", f"Choose among: {', '.join(known)}")
        if value != known[0] and policy_entry(config.policy.name).by_clients:
            problem = f"clients of policy {config.policy.name} do not read it"
            raise InputError(name, value, problem, f"Give {known[0]}, or another policy")
    return ErasureLaw(
        per_round=config.training.erased_together == "round",
        pooled=config.training.survivor_weight == "pooled",
    )


def _averaged_copies(config: Config) -> int:
    """Copies of the embedding that a round averages: of clusters, or of clients."""
    clusters, devices = config.network.clusters, config.network.devices
    return clusters * devices if policy_entry(config.policy.name).by_clients else clusters


def build_optimizers(config: Config) -> Optimizers:
    """Optimisers of clients, decoder and server, or an ``InputError``."""
    training = config.training

    def make(key: str, learning_rate: float, **options: Any) -> optax.GradientTransformation:
        with under_keys({"optimizer.name": key, "optimizer.schedule": "training.schedule"}):
            return make_optimizer(training[key.removeprefix("training.")], learning_rate, **options)

    local = {
        "schedule": training.schedule,
        "warmup_steps": training.warmup_steps,
        "total_steps": training.rounds * training.local_steps,
        "clip_norm": training.clip_norm,
    }
    client = make("training.client_optimizer", training.client_learning_rate, **local)
    factor = training.embedding_rate_factor or float(_averaged_copies(config))
    return Optimizers(
        client=scale_group_rates(client, {"embedding": factor}),
        decoder=make("training.decoder_optimizer", training.decoder_learning_rate, **local),
        server=make("training.server_optimizer", training.server_learning_rate),
    )
