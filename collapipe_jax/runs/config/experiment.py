"""From a configuration to an experiment; errors are found before any work starts."""

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from collapipe_jax.core.errors import InputError, Step, ValidValues, collect
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.edge.policies.registry import Policy, make_policy, policy_entry
from collapipe_jax.edge.system import EdgeSystem, NetworksOnFile
from collapipe_jax.learning.federated.aggregation import ErasureLaw
from collapipe_jax.learning.federated.data_parallel_learner import DataParallelLearner
from collapipe_jax.learning.federated.learner import Learner
from collapipe_jax.learning.federated.optimizers import Optimizer, Optimizers, Rules, make_optimizer
from collapipe_jax.learning.federated.pipeline_learner import PipelineLearner
from collapipe_jax.learning.federated.privacy import (
    Account,
    ClusterPrivacy,
    ExamplePrivacy,
    cluster_releases,
    example_releases,
    noise_multiplier_of,
    seed_words,
)
from collapipe_jax.learning.federated.quantisation import quantiser_of
from collapipe_jax.learning.federated.secure_aggregation import SecureAggregation
from collapipe_jax.learning.pipeline.execution import SEQUENTIAL, Execution
from collapipe_jax.learning.tasks.registry import find_task
from collapipe_jax.learning.tasks.sampling import split_samples
from collapipe_jax.learning.tasks.task import Task
from collapipe_jax.runs.config.checks import CheckedConfig, check_values, sections_of
from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.embedding_rows import build_embedding_rows, count_rows
from collapipe_jax.runs.config.rules import check_rules, training_rules
from collapipe_jax.runs.config.system import make_system, make_system_params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A configuration ready to run.

    Clusters have the training samples of ``cluster_indices``, or with ``task.packing`` the rows.
    ``cluster_weight [N]`` are their shares of all samples.
    """

    config: dict[str, Any]  # nested, as it is saved
    corpus: Any  # what the task read; None where it reads no files
    task: Task
    cluster_indices: list[np.ndarray]
    cluster_weight: np.ndarray
    optimizers: Optimizers
    rules: Rules
    execution: Execution
    erasure_law: ErasureLaw
    system: EdgeSystem
    policy: Policy

    @functools.cached_property
    def account(self) -> Account | None:
        """What the run spends of privacy, if it has any."""
        return _account_of(self.config, self.cluster_indices)

    @functools.cached_property
    def learner(self) -> Learner:
        """The way of learning for the policy's decisions."""
        privacy = _privacy_rules(self.config, self.account, self.cluster_weight)
        shared = {
            "cluster_weight": jnp.asarray(self.cluster_weight, jnp.float32),
            "model": self.task.model,
            "optimizers": self.optimizers,
            "rules": dataclasses.replace(self.rules, **privacy),
        }
        if not policy_entry(self.config["policy"]["name"]).by_clients:
            return PipelineLearner(
                execution=self.execution,
                erasure_law=self.erasure_law,
                server_blocks=self.server_blocks,
                **shared,
            )
        clients = _clients(self.config["policy"]["name"], self.system.mean_problem.devices)
        return DataParallelLearner(devices=clients, **shared)

    @property
    def server_blocks(self) -> int:
        """Last blocks of a pipeline's encoder that the edge server holds."""
        return int(self.system.mean_problem.workload.server_blocks)


def _clients(policy: str, devices: int) -> int:
    """Copies of the model that train in a cluster."""
    entry = policy_entry(policy)
    return devices if entry.by_clients and not entry.by_control_units else 1


def build_experiment(
    config: Config,
    unknown: Mapping[str, Any] | None = None,
    like: Iterable[Experiment] = (),
) -> Experiment:
    """Build the experiment of a configuration.

    Args:
      config: the configuration. The labels of a corpus are counted where it has none of them.
      unknown: keys that it has no place for, reported with what else is wrong.
      like: other experiments. Corpus, samples and model of the first one that has the same are
        taken over; nothing is then read anew.

    Raises:
      InputError: naming key, value and remedy. All wrong keys and files are reported at once, then
        what the network or the sizes of the corpus do not allow.
    """
    same = next((one for one in like if _has_same_samples(one.config, config)), None)
    checked, kind, corpus = _check(config, unknown, same)
    config, training = checked.config, checked.config.training
    params = make_system_params(checked)
    make_system(config, params)  # refuses a network before the long work on the corpus
    task = kind.from_config(config, corpus) if same is None else same.task
    seed = seed_of(config, "task")
    cluster_indices = split_samples(
        seed,
        config.task.split,
        task.data.split_keys,
        config.network.clusters,
        config.task.concentration,
        minimum=training.batch,
    )
    sizes = np.array([len(indices) for indices in cluster_indices])
    weight = sizes / sizes.sum()
    if config.task.packing:
        task, cluster_indices = task.pack(cluster_indices)
        if (least := min(map(len, cluster_indices))) < training.batch:
            problem = f"leaves a cluster {least} rows, fewer than the batch of {training.batch}"
            remedy = "Give False, use fewer clusters, or lower training.batch"
            raise InputError("task.packing", True, problem, remedy)
    learning = params.learning.replace(cluster_weight=jnp.asarray(weight, jnp.float32))
    params = params.replace(learning=learning)
    if config.payload.embedding_rows == "touched":
        row_counts = count_rows(task, cluster_indices, config.task.vocabulary_size, seed)
        rows = build_embedding_rows(config, kind.count_work(config), row_counts)
        params = params.replace(embedding_rows=rows)
    return Experiment(
        config=config.to_dict(),
        corpus=corpus,
        task=task,
        cluster_indices=cluster_indices,
        cluster_weight=weight,
        optimizers=build_optimizers(config),
        rules=build_rules(config),
        execution=_build_execution(config),
        erasure_law=ErasureLaw(
            per_round=training.erased_together == "round",
            pooled=training.survivor_weight == "pooled",
        ),
        system=make_system(config, params),
        policy=make_policy(**config.policy),
    )


def _build_execution(config: Config) -> Execution:
    """How the encoder is executed; keys that a scan does not read do not compile it anew.

    Of decided micro-batches, the least common multiple of the choices is the finest cut.
    """
    pipeline = config.pipeline
    if pipeline.backend == SEQUENTIAL.backend:
        return SEQUENTIAL
    most = pipeline.micro_batches or math.lcm(*config.training.micro_batch_choices)
    decided = not pipeline.micro_batches
    return Execution(pipeline.backend, most, pipeline.capacity, pipeline.schedule, decided)


def _has_same_samples(found: Mapping[str, Any], config: Config) -> bool:
    """Whether a configuration makes the corpus, samples and model of one that was built."""

    def relevant(values: Mapping[str, Any]) -> Any:
        task = {**values["task"], "labels": None}  # which building counts
        return json.dumps([seed_of(values, "task"), task, values["model"], values["evaluation"]])

    return relevant(found) == relevant(config.to_dict())


def _check(
    config: Config, unknown: Mapping[str, Any] | None, same: Experiment | None
) -> tuple[CheckedConfig, type[Task], Any]:
    """The configuration with the number of labels, its task, and the corpus it reads, if any."""
    with collect() as step:
        fine, networks, kind = _check_settings(config, unknown, step)
        corpus = kind.read_corpus(sections_of(fine)[0]) if same is None else same.corpus
    if corpus is not None and "task.labels" in kind.reads:
        fine["task.labels"] = len(corpus.labels)
    return CheckedConfig.from_values(fine, networks), kind, corpus


def check_experiment(config: Config) -> None:
    """Refuse what cannot be trained, as :func:`build_experiment` does, without reading files.

    Labels that training counts are taken for two here.

    Raises:
      InputError: naming key, value and remedy of all that is wrong.
    """
    with collect() as step:
        fine, networks, kind = _check_settings(config, None, step)
    if "task.labels" in kind.reads and not fine["task.labels"]:
        fine["task.labels"] = 2
    checked = CheckedConfig.from_values(fine, networks)
    make_system(checked.config, make_system_params(checked))


def _check_settings(
    config: Config, unknown: Mapping[str, Any] | None, step: Step
) -> tuple[ValidValues, NetworksOnFile | None, type[Task]]:
    """Right values by key, networks on file and the task; steps report what is wrong."""
    fine, networks = check_values(config, step, unknown)
    kind = find_task(fine["task.kind"])
    for name, remedy in kind.needs.items():
        with step():
            if not (value := fine[name]):
                del fine[name]  # so that nothing else is said of it
                raise InputError(name, value, f"{fine['task.kind']} needs it", remedy)
    check_rules(training_rules(), fine, step)
    whole = sections_of(fine)[1]
    with step():
        kind.check_pretrained(whole)  # first: a size that contradicts the folder breaks other rules
        kind.make_sizes(whole)
    return fine, networks, kind


def build_optimizers(config: Config) -> Optimizers:
    """Optimisers of clients, decoder and server."""
    training = config.training
    local = {
        "schedule": training.schedule,
        "warmup_steps": training.warmup_steps,
        "total_steps": training.rounds * training.local_steps,
        "clip_norm": training.clip_norm,
        "weight_decay": training.weight_decay,
    }

    def make(owner: str, **options: Any) -> Optimizer:
        name, rate = training[f"{owner}_optimizer"], training[f"{owner}_learning_rate"]
        return make_optimizer(name, rate, **options)

    return Optimizers(
        client=make("client", **local), decoder=make("decoder", **local), server=make("server")
    )


def at_rate(experiment: Experiment, multiple: float) -> Experiment:
    """The experiment at a multiple of its local learning rates."""
    config: Config = ConfigDict(experiment.config)
    for key in ("client_learning_rate", "decoder_learning_rate"):
        config.training[key] *= multiple
    optimizers = build_optimizers(config)
    return dataclasses.replace(experiment, config=config.to_dict(), optimizers=optimizers)


def build_rules(config: Config) -> Rules:
    """Rules of clients and server besides their optimisers and privacy."""
    training = config.training
    factor = training.embedding_rate_factor
    return Rules(
        proximal_weight=training.proximal_weight or None,
        embedding_rate_factor=None if factor == 1.0 else factor,
        touched_rows=config.payload.embedding_rows == "touched",
        server_average=training.server_average or None,
        activation_noise=training.activation_noise or None,
        secure_aggregation=_build_secure_aggregation(config),
        update_quantiser=quantiser_of(
            config.payload.update_number_bits,
            _clients_summed(config),
            config.payload.error_feedback,
        ),
        control_variates=training.control_variates,
        client_moments=training.client_moments,
    )


def _build_secure_aggregation(config: Config) -> SecureAggregation | None:
    keys = config.secure_aggregation
    if not keys.enabled:
        return None
    return SecureAggregation(
        ring_bits=keys.ring_bits,
        clip=keys.clip,
        threshold=keys.threshold,
        dropout_probability=keys.dropout_probability,
        clients=_clients_summed(config),
    )


def _clients_summed(config: Config) -> int:
    """Clients whose updates a control unit sums before it sends them; 1 where it sums none."""
    in_clusters = policy_entry(config.policy.name).averages_in_clusters
    return config.network.devices if in_clusters else 1


def _account_of(config: Any, cluster_indices: Sequence[np.ndarray]) -> Account | None:
    """What a run spends, with the noise that a target of epsilon asks for; None if all is off.

    Args:
      config: the configuration, checked.
      cluster_indices: samples of every cluster.
    """
    privacy, training = config["privacy"], config["training"]
    if not (privacy["epsilon"] or privacy["noise_multiplier"]):
        return None
    rounds, local_steps = training["rounds"], training["local_steps"]
    if privacy["unit"] == "example":
        _check_unit(config["policy"]["name"])
        sizes = rounds, local_steps, training["batch"]
        releases = example_releases(config["seed"], cluster_indices, *sizes)
    else:
        is_split = not policy_entry(config["policy"]["name"]).by_clients
        releases = cluster_releases(rounds, local_steps, one_decoder=is_split)
    noise_multiplier = privacy["noise_multiplier"] or noise_multiplier_of(
        privacy["epsilon"], float(releases[-1]), privacy["delta"]
    )
    return Account(privacy["unit"], noise_multiplier, privacy["delta"], releases)


def _check_unit(policy: str) -> None:
    """Refuse a policy, which a study may have changed, that no rule of the keys has seen."""
    if not policy_entry(policy).by_clients:
        problem = f"devices of {policy} know gradients of micro-batches alone"
        remedy = "Give cluster, or a data-parallel policy such as control_unit_fl"
        raise InputError("privacy.unit", "example", problem, remedy)


def _privacy_rules(config: Any, account: Account | None, weight: np.ndarray) -> dict[str, Any]:
    """Fields of ``Rules`` for a run with this account, and clusters of these shares ``[N]``."""
    if account is None:
        return {}
    privacy = config["privacy"]
    shared = {
        "noise_multiplier": account.noise_multiplier,
        "clip_norm": privacy["clip_norm"],
        "seed": seed_words(seed_of(config, "privacy")),
    }
    if account.unit == "example":
        at_once = privacy["examples_at_once"]
        return {"example_privacy": ExamplePrivacy(examples_at_once=at_once, **shared)}
    clip, largest = privacy["decoder_clip_norm"], float(weight.max())
    of_server = {"decoder_clip_norm": clip, "largest_share": largest}
    return {"cluster_privacy": ClusterPrivacy(**of_server, **shared)}
