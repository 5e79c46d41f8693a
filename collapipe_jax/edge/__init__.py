"""The network and its decisions: channel, cost, control, solver, policies, rounds.

What ``__all__`` names is public; everything behind it may change.
"""

from typing import TYPE_CHECKING

from collapipe_jax.core.plugins import lazily

if TYPE_CHECKING:
    from collapipe_jax.edge.cost.decision import ClientDecision, Decision, Routes
    from collapipe_jax.edge.cost.evaluate import evaluate
    from collapipe_jax.edge.cost.feasibility import is_feasible, usable_blocks, violations
    from collapipe_jax.edge.cost.problem import RoundProblem
    from collapipe_jax.edge.cost.round_cost import RoundCost
    from collapipe_jax.edge.cost.static_pipeline import static_pipeline
    from collapipe_jax.edge.cost.static_pipeline import (
        with_equal_allocation as with_equal_allocation,
    )
    from collapipe_jax.edge.environment import (
        Environment,
        SystemRound,
        observe,
        reset,
        simulate,
        step,
    )
    from collapipe_jax.edge.network.propagation import SightLaw
    from collapipe_jax.edge.policies.dssra import dssra, dssra_wide
    from collapipe_jax.edge.policies.registry import PolicyEntry, make_policy
    from collapipe_jax.edge.system import SystemParams

_PUBLIC = {
    "ClientDecision": "cost.decision",
    "Decision": "cost.decision",
    "Environment": "environment",
    "PolicyEntry": "policies.registry",
    "RoundCost": "cost.round_cost",
    "RoundProblem": "cost.problem",
    "Routes": "cost.decision",
    "SightLaw": "network.propagation",
    "SystemParams": "system",
    "SystemRound": "environment",
    "dssra": "policies.dssra",
    "dssra_wide": "policies.dssra",
    "evaluate": "cost.evaluate",
    "is_feasible": "cost.feasibility",
    "make_policy": "policies.registry",
    "observe": "environment",
    "reset": "environment",
    "simulate": "environment",
    "static_pipeline": "cost.static_pipeline",
    "step": "environment",
    "usable_blocks": "cost.feasibility",
    "violations": "cost.feasibility",
    "with_equal_allocation": "cost.static_pipeline",
}
"""Module of each public name, and the name there where it is another."""

__all__ = list(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = lazily(__name__, _PUBLIC)
