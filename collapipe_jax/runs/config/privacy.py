"""Differential privacy of a configuration: its rules in training, and what a run spends."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.edge.policies.registry import policy_entry
from collapipe_jax.learning.federated.accountant import (
    Account,
    cluster_releases,
    example_releases,
    noise_multiplier_of,
)
from collapipe_jax.learning.federated.privacy import ClusterPrivacy, ExamplePrivacy, seed_words


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
