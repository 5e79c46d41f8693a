"""Differential privacy of a configuration: what it refuses, its rules, and what it spends."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from collapipe_jax.core.errors import InputError, Known, Step
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.edge.policies.registry import policy_entry
from collapipe_jax.learning.federated.accountant import (
    EXTRA,
    Account,
    cluster_releases,
    example_releases,
    is_installed,
    noise_multiplier_of,
)
from collapipe_jax.learning.federated.privacy import ClusterPrivacy, ExamplePrivacy, seed_words
from collapipe_jax.learning.tasks.registry import TASKS, find_task

_ON = "privacy.epsilon", "privacy.noise_multiplier"


def check_privacy(config: Known, step: Step) -> None:
    """Refuse what the noise would not cover, and what cannot be accounted for."""
    given = [name for name in _ON if config[name]]
    if not given:
        return
    name, value = given[0], config[given[0]]
    with step():
        if len(given) > 1:
            problem = "the noise follows from privacy.epsilon already"
            remedy = "Give one of them, and 0 for the other"
            raise InputError(_ON[1], config[_ON[1]], problem, remedy)
    with step():
        if not is_installed():
            remedy = f"pip install 'collapipe-jax[{EXTRA}]' brings it"
            raise InputError(name, value, "dp_accounting is not installed", remedy)
    with step():
        _check_vocabulary(config)
    with step():
        if not config["training.embedding_rate_factor"]:
            problem = "rows averaged over the clients that read them tell who read them"
            raise InputError("training.embedding_rate_factor", 0.0, problem, "Give 1")
    if config["privacy.unit"] == "example":
        _check_examples(config, step)
    else:
        _check_clusters(config, step)


def _check_vocabulary(config: Known) -> None:
    """Refuse a vocabulary that is learnt from the texts to protect."""
    kind, reads = config["task.kind"], find_task(config["task.kind"]).reads
    if kind not in TASKS or config["model.pretrained"]:
        return
    problem = "it would be learnt from the training texts and reveal their words"
    remedy = "Give a vocab.txt of public text, or model.pretrained"
    if "task.vocabulary" in reads:
        if not config["task.vocabulary"]:
            raise InputError("task.vocabulary", "", problem, remedy)
    elif config["task.corpus"] != "synthetic" or config["task.train"]:
        problem = "its vocabulary is learnt from the training texts and reveals their words"
        remedy = "Give model.pretrained" if "model.pretrained" in reads else "Choose another kind"
        raise InputError("task.kind", kind, problem, remedy)


def _check_clusters(config: Known, step: Step) -> None:
    """Refuse what leaves a cluster beside its clipped steps, or hides these from the server."""
    with step():
        if config["secure_aggregation.enabled"]:
            problem = "the server clips the step of every cluster, which it then cannot see"
            raise InputError("secure_aggregation.enabled", True, problem, "Give False")
    with step():
        if config["training.control_variates"]:
            problem = "control variates leave a cluster without clipping and noise"
            raise InputError("training.control_variates", True, problem, "Give False")
    with step():
        if (moments := config["training.client_moments"]) == "average":
            problem = "moments leave a cluster without clipping and noise"
            raise InputError("training.client_moments", moments, problem, "Give keep or reset")


def _check_examples(config: Known, step: Step) -> None:
    """Refuse learning in which no client has a gradient of a single example."""
    with step():
        _check_policy(config["policy.name"])
    with step():
        if (buckets := config["training.length_buckets"]) > 1:
            problem = "an example's length then decides which others are in its batch"
            raise InputError("training.length_buckets", buckets, problem, "Give 1")


def _check_policy(policy: str) -> None:
    if not policy_entry(policy).by_clients:
        problem = f"devices of {policy} know gradients of micro-batches alone"
        remedy = "Give cluster, or a data-parallel policy such as control_unit_fl"
        raise InputError("privacy.unit", "example", problem, remedy)


def account_of(config: Any, cluster_indices: Sequence[np.ndarray]) -> Account | None:
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
        _check_policy(config["policy"]["name"])  # which a study may have changed
        sizes = rounds, local_steps, training["batch"]
        releases = example_releases(config["seed"], cluster_indices, *sizes)
    else:
        is_split = not policy_entry(config["policy"]["name"]).by_clients
        releases = cluster_releases(rounds, local_steps, one_decoder=is_split)
    noise_multiplier = privacy["noise_multiplier"] or noise_multiplier_of(
        privacy["epsilon"], float(releases[-1]), privacy["delta"]
    )
    return Account(privacy["unit"], noise_multiplier, privacy["delta"], releases)


def privacy_rules(config: Any, account: Account | None, weight: np.ndarray) -> dict[str, Any]:
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
