"""Functions of a round, compiled as a whole: hundreds of single operations take longer."""

import functools

import jax

from collapipe_jax.edge.cost import evaluate as _evaluate
from collapipe_jax.edge.cost import feasibility
from collapipe_jax.edge.policies import client_policies

evaluate = jax.jit(_evaluate.evaluate)
violations = jax.jit(feasibility.violations)

_whole = functools.partial(jax.jit, static_argnames=("shares", "split", "accumulation", "clients"))
vanilla_fl = _whole(client_policies.vanilla_fl)
selected_fl = _whole(client_policies.selected_fl)
control_unit_fl = _whole(client_policies.control_unit_fl)
hierarchical_fl = _whole(client_policies.hierarchical_fl)
splitfed = jax.jit(
    client_policies.splitfed, static_argnames=("cut", "client_micro_batches", "shares", "split")
)
