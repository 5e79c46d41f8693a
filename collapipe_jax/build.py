"""From a configuration to an experiment; with ``build_system.py`` all that knows ml_collections.

Everything a configuration can get wrong is found here, before any work starts.
"""

import dataclasses
from typing import Any

import numpy as np
import optax
from ml_collections import ConfigDict

from collapipe_jax.build_system import build_system
from collapipe_jax.config_checks import check_training, typed_values, under_keys
from collapipe_jax.errors import InputError
from collapipe_jax.federated.optimizers import make_optimizer, scale_group_rates
from collapipe_jax.models.config import TransformerConfig
from collapipe_jax.scheduling.policies import Policy, make_policy
from collapipe_jax.system import EdgeSystem
from collapipe_jax.tasks.split import split_samples
from collapipe_jax.tasks.translation import TranslationData, load_translation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizers:
    """Who steps what: clusters their clients, the edge server the decoder and the mean."""

    client: optax.GradientTransformation
    decoder: optax.GradientTransformation
    server: optax.GradientTransformation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A configuration made ready to run.

    Attributes:
      config: nested plain dictionary, as it is saved.
      data: corpus, tokenizer and splits.
      cluster_indices: training samples of every cluster.
      cluster_weight: share of the samples, ``[N]``.
      model: sizes.
      optimizers: of clients, decoder and server.
      system: the network.
      policy: who decides.
    """

    config: dict[str, Any]
    data: TranslationData
    cluster_indices: list[np.ndarray]
    cluster_weight: np.ndarray
    model: TransformerConfig
    optimizers: Optimizers
    system: EdgeSystem
    policy: Policy


def build_experiment(config: ConfigDict, default: ConfigDict) -> Experiment:
    """Make a configuration ready, or say what is wrong with it.

    Args:
      config: the configuration.
      default: the default one; it tells which keys there are and of which type.

    Raises:
      InputError: naming key, value and remedy.
    """
    config = ConfigDict(typed_values(config.to_dict(), default.to_dict()))
    check_training(config)
    model = build_model(config)  # cheap checks first, the corpus last
    policy = make_policy(config.policy.name, config.policy.micro_batches)
    optimizers = build_optimizers(config)
    equal = np.full(config.network.clusters, 1.0 / config.network.clusters)
    build_system(config, equal)
    data = load_data(config)
    cluster_indices = split_samples(
        config.seed,
        config.task.split,
        data.keys,
        config.network.clusters,
        config.task.concentration,
        minimum=config.training.batch,
    )
    sizes = np.array([len(indices) for indices in cluster_indices])
    weight = sizes / sizes.sum()
    return Experiment(
        config=config.to_dict(),
        data=data,
        cluster_indices=cluster_indices,
        cluster_weight=weight,
        model=model,
        optimizers=optimizers,
        system=build_system(config, weight),
        policy=policy,
    )


def build_model(config: ConfigDict) -> TransformerConfig:
    """Sizes of the model.

    Raises:
      InputError: if they do not fit each other.
    """
    sizes = ("vocabulary_size", "source_length", "target_length")
    with under_keys({f"model.{key}": f"task.{key}" for key in sizes}):
        return TransformerConfig(
            **{key: config.task[key] for key in sizes}, **config.model.to_dict()
        )


def build_optimizers(config: ConfigDict) -> Optimizers:
    """Optimisers of clients, decoder and server.

    Raises:
      InputError: on an unknown optimiser or schedule, or numbers that it refuses.
    """
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
    return Optimizers(
        client=scale_group_rates(client, {"embedding": training.embedding_rate_factor}),
        decoder=make("training.decoder_optimizer", training.decoder_learning_rate, **local),
        server=make("training.server_optimizer", training.server_learning_rate),
    )


def load_data(config: ConfigDict) -> TranslationData:
    """The corpus, tokenised and split.

    Raises:
      InputError: if it cannot be read, or is too small.
    """
    task = config.task
    files = tuple(task.corpus.split("|"))
    if len(files) > 2:
        raise InputError("task.corpus", task.corpus, "more than two files", "Give one, or A|B")
    corpus = files if len(files) == 2 else task.corpus
    return load_translation(
        corpus=corpus,
        pairs=task.pairs,
        validation_pairs=task.validation_pairs,
        test_pairs=task.test_pairs,
        vocabulary_size=task.vocabulary_size,
        source_length=task.source_length,
        target_length=task.target_length,
        seed=config.seed,
        reverse=task.reverse,
    )
