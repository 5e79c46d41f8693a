"""Functions of a round, compiled as a whole: hundreds of single operations take longer."""

import functools

import jax
import numpy as np

from collapipe_jax.edge import queues
from collapipe_jax.edge.cost import client_round, feasibility
from collapipe_jax.edge.cost import evaluate as _evaluate
from collapipe_jax.edge.cost import static_pipeline as _static_pipeline
from collapipe_jax.edge.policies import client_policies, registry
from collapipe_jax.edge.policies import dssra as _dssra


def _strong(leaf):
    """The leaf without a weak type, which would be compiled for apart."""
    is_weak = isinstance(leaf, jax.Array) and leaf.aval.weak_type
    return np.asarray(leaf) if is_weak and not isinstance(leaf, jax.core.Tracer) else leaf


def in_numpy(function, **options):
    """The compiled function with results in NumPy, where a comparison compiles nothing."""
    whole = jax.jit(function, **options)

    @functools.wraps(function)
    def call(*arguments):
        return jax.device_get(whole(*jax.tree.map(_strong, arguments)))

    call.clear_cache = whole.clear_cache  # of `compiles`
    return call


evaluate = in_numpy(_evaluate.evaluate)
violations = in_numpy(feasibility.violations)
is_feasible = in_numpy(feasibility.is_feasible)
sends = in_numpy(client_round.sends)
by_sender = in_numpy(client_round.by_sender)
client_links = in_numpy(client_round.client_links)
replica_links = in_numpy(client_round.replica_links)
control_unit_floor_j = in_numpy(queues.control_unit_floor_j)
least_latency_s = in_numpy(queues.least_latency_s)

dssra = jax.jit(_dssra.dssra)
static_pipeline = jax.jit(_static_pipeline.static_pipeline)

_whole = functools.partial(jax.jit, static_argnames=("shares", "split", "accumulation", "clients"))
vanilla_fl = _whole(client_policies.vanilla_fl)
selected_fl = _whole(client_policies.selected_fl)
control_unit_fl = _whole(client_policies.control_unit_fl)
hierarchical_fl = _whole(client_policies.hierarchical_fl)
splitfed = jax.jit(
    client_policies.splitfed,
    static_argnames=("cut", "client_micro_batches", "tier", "shares", "split"),
)


@functools.cache
def compiled_policy(name, **options):
    """A policy of the registry, compiled as a whole; the same program for the same options."""
    return jax.jit(registry.make_policy(name, **options))


def decide(name, problem, **options):
    """Decision of a policy of the registry."""
    return compiled_policy(name, **options)(jax.random.key(0), problem)
