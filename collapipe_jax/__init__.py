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

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collapipe_jax.config.default import get_config as default_config
    from collapipe_jax.config.files import read_config
    from collapipe_jax.config.system import build_system_params as system_params
    from collapipe_jax.cost.decision import ClientDecision, Decision
    from collapipe_jax.cost.evaluate import evaluate
    from collapipe_jax.cost.feasibility import is_feasible, violations
    from collapipe_jax.cost.problem import RoundProblem
    from collapipe_jax.cost.round_cost import RoundCost
    from collapipe_jax.errors import InputError, TrainingError
    from collapipe_jax.files.datasets import open_results
    from collapipe_jax.files.documents import (
        read_decision,
        read_network,
        write_decision,
        write_network,
    )
    from collapipe_jax.policies.registry import PolicyEntry, make_policy
    from collapipe_jax.simulation.environment import (
        Environment,
        SystemRound,
        observe,
        reset,
        simulate,
        step,
    )
    from collapipe_jax.simulation.system import SystemParams
    from collapipe_jax.tasks.trained_model import load
    from collapipe_jax.training.ongoing_run import TrainedRun
    from collapipe_jax.training.run import train

_PUBLIC = {
    "ClientDecision": "cost.decision",
    "Decision": "cost.decision",
    "Environment": "simulation.environment",
    "InputError": "errors",
    "PolicyEntry": "policies.registry",
    "RoundCost": "cost.round_cost",
    "RoundProblem": "cost.problem",
    "SystemParams": "simulation.system",
    "SystemRound": "simulation.environment",
    "default_config": "config.default:get_config",
    "evaluate": "cost.evaluate",
    "is_feasible": "cost.feasibility",
    "load": "tasks.trained_model",
    "make_policy": "policies.registry",
    "observe": "simulation.environment",
    "open_results": "files.datasets",
    "read_config": "config.files",
    "read_decision": "files.documents",
    "read_network": "files.documents",
    "reset": "simulation.environment",
    "simulate": "simulation.environment",
    "step": "simulation.environment",
    "TrainingError": "errors",
    "TrainedRun": "training.ongoing_run",
    "train": "training.run",
    "system_params": "config.system:build_system_params",
    "violations": "cost.feasibility",
    "write_decision": "files.documents",
    "write_network": "files.documents",
}
"""Module of each public name, and the name there where it is another."""

__all__ = [*_PUBLIC, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``collapipe --help`` needs no JAX."""
    if name == "__version__":
        return metadata.version("collapipe-jax")
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, other = _PUBLIC[name].partition(":")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), other or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
