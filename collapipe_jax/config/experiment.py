"""From a configuration to an experiment; errors are found before any work starts."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from collapipe_jax.config.checks import check_config
from collapipe_jax.config.default import Config
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

    Clusters have the training samples of ``cluster_indices``, and the shares ``cluster_weight
    [N]`` of all.
    """

    config: dict[str, Any]  # nested, as it is saved
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

    Raises:
      InputError: naming key, value and remedy.
    """
    config = check_config(config)
    task, training = TASKS[config.task.kind], config.training
    task.make_sizes(config)  # cheap checks first, the corpus last
    _check_trainable(config)
    optimizers = build_optimizers(config)
    build_system(config)
    objective = task.make_objective(config)
    cluster_indices = split_samples(
        config.seed,
        config.task.split,
        objective.data.split_keys,
        config.network.clusters,
        config.task.concentration,
        minimum=training.batch,
    )
    sizes = np.array([len(indices) for indices in cluster_indices])
    weight = sizes / sizes.sum()
    return Experiment(
        config=config.to_dict(),
        objective=objective,
        cluster_indices=cluster_indices,
        cluster_weight=weight,
        optimizers=optimizers,
        execution=Execution(**config.pipeline),
        erasure_law=ErasureLaw(
            per_round=training.erased_together == "round",
            pooled=training.survivor_weight == "pooled",
        ),
        system=build_system(config, weight),
        policy=make_policy(**config.policy),
    )


def _check_trainable(config: Config) -> None:
    """Refuse what can be evaluated but not trained."""
    if config.payload.trained_fraction < 1.0:
        problem = "the cost of adapters is evaluated, but they are not trained"
        remedy = "Give 1 to train, or compare policies without training"
        fraction = config.payload.trained_fraction
        raise InputError("payload.trained_fraction", fraction, problem, remedy)
    only = {"pipeline.backend": "sequential"}
    only |= {"training.erased_together": "micro_batch", "training.survivor_weight": "survival"}
    for key, known in only.items():
        section, _, name = key.partition(".")
        value = config[section][name]
        if value != known and policy_entry(config.policy.name).by_clients:
            problem = f"clients of policy {config.policy.name} have no pipeline that reads it"
            raise InputError(key, value, problem, f"Give {known}, or another policy")
    if config.pipeline.backend == "sharded":
        with under_keys({"mesh": "pipeline.backend"}):
            make_pipeline_mesh(config.network.clusters, config.network.devices)


def build_optimizers(config: Config) -> Optimizers:
    """Optimisers of clients, decoder and server."""
    training, network = config.training, config.network
    local = {
        "schedule": training.schedule,
        "warmup_steps": training.warmup_steps,
        "total_steps": training.rounds * training.local_steps,
        "clip_norm": training.clip_norm,
    }

    def make(owner: str, **options: Any) -> optax.GradientTransformation:
        name, rate = training[f"{owner}_optimizer"], training[f"{owner}_learning_rate"]
        return make_optimizer(name, rate, **options)

    # A round averages the embeddings of all clusters, or of all clients.
    is_by_clients = policy_entry(config.policy.name).by_clients
    copies = network.clusters * (network.devices if is_by_clients else 1)
    factor = training.embedding_rate_factor or float(copies)
    return Optimizers(
        client=scale_group_rates(make("client", **local), {"embedding": factor}),
        decoder=make("decoder", **local),
        server=make("server"),
    )
