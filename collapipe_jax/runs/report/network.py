"""Networks of runs and comparisons, computed anew from configuration, seed and decisions.

Their links are those that a decision uses, with their quality.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.quantity import quantities
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.edge.cost.chain import at_next
from collapipe_jax.edge.cost.client_round import client_links, replica_links, sends
from collapipe_jax.edge.cost.decision import (
    ClientDecision,
    Decision,
    Routes,
    decision_allocation,
    fill_idle,
)
from collapipe_jax.edge.cost.fixed_partition import fix_decision
from collapipe_jax.edge.cost.link_quality import link_bit_times, round_links
from collapipe_jax.edge.cost.maximum import hard_max
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.environment import Environment, SystemState, observe, reset, step
from collapipe_jax.edge.network.channel import Radio, d2d_sinr, downlink_sinr
from collapipe_jax.edge.policies.registry import make_policy, policy_entry
from collapipe_jax.edge.system import EdgeSystem, sample_positions, sample_system
from collapipe_jax.runs.config.system import build_system_params, system_key
from collapipe_jax.runs.results.record import RunRecord
from collapipe_jax.runs.studies.montecarlo import realisation_keys
from collapipe_jax.runs.training.learning_rounds import network_keys
from collapipe_jax.runs.training.network_ahead import network_at_start

NO_LINK = -1
"""In place of the node where a link ends."""


class UsedLinks(NamedTuple):
    """Links by the node that sends, ``[N, K + 1]`` each."""

    d2d_to: Array  # node of the cluster where its D2D link ends, or NO_LINK
    d2d_sinr: Array
    d2d_bit_s: Array  # time of a bit
    talks_d2e: Array  # whether it talks to the base station
    d2e_sinr: Array
    d2e_bit_s: Array


def used_links(problem: RoundProblem, decision: Decision | ClientDecision) -> UsedLinks:
    """Links of the local steps of a round, at their shares and powers and the interference.

    A pipeline has its hops, and gateways to the base station. Data-parallel clients have their
    ways to the base station, or first to the control unit.

    See docs/system-model.md, section 2.
    """
    if isinstance(decision, ClientDecision):
        return _of_clients(problem, decision)
    with jax.numpy_rank_promotion("allow"):
        return _of_pipeline(problem, decision)


def _possible_links(problem: RoundProblem) -> UsedLinks:
    """Links from devices to control units and from there to the base station, without a decision.

    Each is alone on the whole band at full power. The quality to the base station is that of the
    downlink.
    """
    radio = problem.radio
    to_unit = d2d_sinr(radio, radio.d2d_power_max_w, radio.d2d_gain[:, :, 0], jnp.ones(()), 0.0)
    device = jnp.arange(problem.devices + 1) > 0
    d2d_to = jnp.broadcast_to(jnp.where(device, 0, NO_LINK), to_unit.shape)
    return UsedLinks(
        d2d_to=d2d_to,
        d2d_sinr=to_unit,
        d2d_bit_s=jnp.full_like(to_unit, jnp.nan),
        talks_d2e=d2d_to == NO_LINK,
        d2e_sinr=downlink_sinr(radio, radio.d2e_gain),
        d2e_bit_s=jnp.full_like(to_unit, jnp.nan),
    )


def _of_pipeline(problem: RoundProblem, decision: Decision) -> UsedLinks:
    fixed = fix_decision(problem, decision)
    chain = fixed.chain
    allocation = fill_idle(decision_allocation(decision), chain.used, 1.0)
    links = round_links(fixed, allocation)
    times = link_bit_times(fixed, allocation, links, hard_max)
    nodes = jnp.arange(problem.devices + 1)[:, None]
    gateway = nodes == 0 if chain.gateway is None else chain.gateway
    by_node = UsedLinks(
        d2d_to=jnp.where(chain.hops, at_next(nodes, chain), NO_LINK),
        d2d_sinr=links.sinr.hop[0],
        d2d_bit_s=times.hop.value[0],
        talks_d2e=gateway & chain.members[:1],
        d2e_sinr=jnp.broadcast_to(links.sinr.uplink, chain.members.shape),
        d2e_bit_s=jnp.broadcast_to(times.uplink.value, chain.members.shape),
    )
    return jax.tree.map(jnp.transpose, by_node)


def _of_clients(problem: RoundProblem, decision: ClientDecision) -> UsedLinks:
    links, shape = client_links(problem, decision), (problem.clusters, problem.devices + 1)
    first = 1 if decision.tier == "devices" else 0  # node of the first sender of a cluster
    last = first + links.uplink_sinr.shape[1]

    def to_nodes(values: Array, begin: int, end: int, other: float) -> Array:
        return jnp.full(shape, other, values.dtype).at[:, begin:end].set(values)

    found = UsedLinks(
        d2d_to=jnp.full(shape, NO_LINK),
        d2d_sinr=jnp.zeros(shape),
        d2d_bit_s=jnp.zeros(shape),
        talks_d2e=to_nodes(sends(decision), first, last, False),
        d2e_sinr=to_nodes(links.uplink_sinr, first, last, 0.0),
        d2e_bit_s=to_nodes(links.uplink_bit_s, first, last, 0.0),
    )
    if decision.tier != "hierarchical":
        return found
    replicas, end = replica_links(problem, decision), shape[1]
    return found._replace(
        d2d_to=to_nodes(jnp.where(decision.samples > 0, 0, NO_LINK), 1, end, NO_LINK),
        d2d_sinr=to_nodes(replicas.up_sinr, 1, end, 0.0),
        d2d_bit_s=to_nodes(replicas.up_bit_s, 1, end, 0.0),
    )


class NetworkRounds(NamedTuple):
    """A network over rounds, NumPy's arrays."""

    position_m: np.ndarray  # ``[R, N, K + 1, 2]``, or ``[1, ...]`` where nobody walks
    is_drawn: bool  # False: it has gains alone, and positions are those of :func:`schematic`
    is_there: np.ndarray  # devices that are available, ``[R, N, K]``
    links: UsedLinks  # ``[R, N, K + 1]`` each
    mean_problem: RoundProblem  # at mean gains
    latency_s: np.ndarray  # of the rounds, ``[R]``; the same as on file


def network_of_run(record: RunRecord) -> NetworkRounds:
    """The network of a training run in every round on file.

    Fading, walks and availability follow from the seed, everything else from the decisions on
    file.

    Raises:
      InputError: if the network is on file and has changed since.
    """
    params, seed = build_system_params(ConfigDict(record.config)), seed_of(record.config, "network")
    key = system_key(seed)
    system = quick_jit(sample_system)(key, params, seed)
    if "server_blocks" in record.constants:  # earlier versions decided none
        system = system.with_cut(record.constants["server_blocks"])
    start, keys = network_at_start(record, system), network_keys(record, record.history["round"])
    decisions = _decisions_of(record, system)
    found = quick_jit(_replay)(system, start, keys, decisions)
    is_there, links, position_m, latency_s = jax.device_get(found)
    is_drawn = params.networks is None
    if position_m is None and is_drawn:
        position_m = np.asarray(sample_positions(key, params))[None]
    if position_m is None:
        position_m = schematic(system.mean_problem.radio)[None]
    return NetworkRounds(
        position_m, is_drawn, is_there, links, jax.device_get(system.mean_problem), latency_s
    )


def _replay(
    system: EdgeSystem, start: SystemState, keys: Array, decisions: Decision | ClientDecision
) -> tuple[Array, UsedLinks, Array | None, Array]:
    """Rounds of decisions on file: who is there, links, positions of who walks, latency."""

    def one(state: SystemState, given: tuple[Array, Any]) -> tuple[SystemState, tuple]:
        key, decision = given
        before = Environment(system, state, key)
        problem = observe(before)
        after, happened = step(key, before, decision)
        position_m = None if state.mobility is None else state.mobility.position_m
        links, is_there = used_links(problem, decision), problem.compute.memory_bytes > 0
        return after.state, (is_there, links, position_m, happened.cost.latency_s)

    return jax.lax.scan(one, start, (keys, decisions))[1]


def _decisions_of(record: RunRecord, system: EdgeSystem) -> Decision | ClientDecision:
    """Decisions of all rounds on file, leaves ``[R, ...]``."""
    history, policy = record.history, record.config["policy"]
    if not policy_entry(record.policy).by_clients:
        return _pipeline_decisions(history)
    # What a policy of clients never varies is not on file.
    like: Any = jax.eval_shape(make_policy(**policy), jax.random.key(0), system.mean_problem)
    names = quantities(ClientDecision)
    return like.replace(**{name: jnp.asarray(history[name]) for name in names if name in history})


def _pipeline_decisions(history: Mapping[str, np.ndarray]) -> Decision:
    """Decisions of pipelines on file, leaves ``[R, ...]``."""
    routes = None
    if "gateway" in history:
        routes = Routes(**{name: jnp.asarray(history[name]) for name in quantities(Routes)})
    given = {name: jnp.asarray(history[name]) for name in quantities(Decision)}
    return Decision(**given, routes=routes)


def network_of_point(config: Mapping[str, Any], realisations: int) -> NetworkRounds:
    """The first network of a comparison at mean gains, with its possible links, as one round."""
    params = build_system_params(ConfigDict(config))
    key = realisation_keys(seed_of(config, "network"), realisations)[0]
    system = quick_jit(reset)(key, params, 0).system
    if params.networks is None:
        # As a reset splits the key.
        position_m = np.asarray(sample_positions(jax.random.split(key, 3)[0], params))
    else:
        position_m = schematic(system.mean_problem.radio)
    problem = system.mean_problem
    return NetworkRounds(
        position_m[None],
        params.networks is None,
        np.asarray(problem.compute.memory_bytes > 0)[None],
        jax.tree.map(lambda leaf: np.asarray(leaf)[None], _possible_links(problem)),
        jax.device_get(problem),
        np.full(1, np.nan),
    )


_DEVICE_SHARE = 0.3
"""Scale of a cluster in a schematic picture over that of the cell."""


def schematic(radio: Radio) -> np.ndarray:
    """Places of the nodes of a network that has gains alone, ``[N, K + 1, 2]``.

    Distances are losses in dB to the base station and, on a smaller scale, to the control unit.
    Directions have no meaning.
    """
    d2e_db = -10.0 * np.log10(np.maximum(np.asarray(radio.d2e_gain), 1e-20))
    d2d_db = -10.0 * np.log10(np.maximum(np.asarray(radio.d2d_gain)[:, 0], 1e-20))
    clusters, nodes = d2e_db.shape
    centre_angle = 2.0 * np.pi * np.arange(clusters)[:, None] / clusters
    # No device lies towards the base station, where the place of node 0 is left empty.
    angle = centre_angle + np.pi + 2.0 * np.pi * np.arange(nodes) / nodes
    distance = np.where(np.arange(nodes) > 0, _DEVICE_SHARE * d2d_db, 0.0)
    return _polar(d2e_db[:, :1], centre_angle) + _polar(distance, angle)


def _polar(distance: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Points of the plane at distances and angles, ``[..., 2]``."""
    return distance[..., None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
