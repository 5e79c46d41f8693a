"""Collaborative pipeline training of Transformers over a simulated wireless edge network.

>>> import collapipe_jax as cp
>>> params = cp.system_params(cp.read_config("quickstart"))

Axis letters, used for every shape in the package:

====== =====================================================
``R``  realisations of the network
``N``  clusters, each one control unit with its devices
``K``  devices of a cluster
``L``  encoder blocks
``M``  micro-batches of a mini-batch
``B``  samples of a mini-batch
``S``  stages of a pipeline
``H``  local steps of a round
====== =====================================================

Arrays over the nodes of a cluster have ``K + 1`` entries: node 0 is the control
unit, nodes ``1..K`` are the devices. Shapes are unbatched unless said otherwise:
every function treats one realisation, and ``jax.vmap`` makes it many. Quantities
are in SI units on a linear scale; equation numbers refer to
``docs/system-model.md``.

What ``__all__`` names is public; everything else may change.
"""

from importlib import metadata
from typing import TYPE_CHECKING, Any

from collapipe_jax.core.plugins import lazily

if TYPE_CHECKING:
    from collapipe_jax.core.errors import InputError, TrainingError
    from collapipe_jax.edge.cost.decision import ClientDecision, Decision, Routes
    from collapipe_jax.edge.cost.evaluate import evaluate
    from collapipe_jax.edge.cost.feasibility import is_feasible, violations
    from collapipe_jax.edge.cost.problem import RoundProblem
    from collapipe_jax.edge.cost.round_cost import RoundCost
    from collapipe_jax.edge.environment import (
        Environment,
        SystemRound,
        observe,
        reset,
        simulate,
        step,
    )
    from collapipe_jax.edge.policies.registry import PolicyEntry, make_policy
    from collapipe_jax.edge.system import SystemParams
    from collapipe_jax.learning.tasks.registry import load
    from collapipe_jax.runs.config.default import get_config as default_config
    from collapipe_jax.runs.config.files import read_config
    from collapipe_jax.runs.config.system import system_params
    from collapipe_jax.runs.documents import (
        read_decision,
        read_network,
        write_decision,
        write_network,
    )
    from collapipe_jax.runs.results.datasets import open_results
    from collapipe_jax.runs.training.ongoing_run import TrainedRun
    from collapipe_jax.runs.training.train import train

_PUBLIC = {
    "ClientDecision": "edge.cost.decision",
    "Decision": "edge.cost.decision",
    "Environment": "edge.environment",
    "InputError": "core.errors",
    "PolicyEntry": "edge.policies.registry",
    "RoundCost": "edge.cost.round_cost",
    "RoundProblem": "edge.cost.problem",
    "Routes": "edge.cost.decision",
    "SystemParams": "edge.system",
    "SystemRound": "edge.environment",
    "default_config": "runs.config.default:get_config",
    "evaluate": "edge.cost.evaluate",
    "is_feasible": "edge.cost.feasibility",
    "load": "learning.tasks.registry",
    "make_policy": "edge.policies.registry",
    "observe": "edge.environment",
    "open_results": "runs.results.datasets",
    "read_config": "runs.config.files",
    "read_decision": "runs.documents",
    "read_network": "runs.documents",
    "reset": "edge.environment",
    "simulate": "edge.environment",
    "step": "edge.environment",
    "TrainingError": "core.errors",
    "TrainedRun": "runs.training.ongoing_run",
    "train": "runs.training.train",
    "system_params": "runs.config.system",
    "violations": "edge.cost.feasibility",
    "write_decision": "runs.documents",
    "write_network": "runs.documents",
}
"""Module of each public name, and the name there where it is another."""

__all__ = [*_PUBLIC, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


_get, _ = lazily(__name__, _PUBLIC)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``collapipe --help`` needs no JAX."""
    if name == "__version__":
        return metadata.version("collapipe-jax")
    globals()[name] = found = _get(name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
