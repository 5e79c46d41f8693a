"""A lower bound of the objective over all shares and powers, by CVXPY and Clarabel.

With the partition fixed, logarithms of SINRs and of times on air are affine in logarithms of
shares, powers and noise; latencies and energies are linear in times, and in powers times
times (docs/system-model.md, section 5). The coefficients are derivatives of the package's own
functions. Exponentials are cones. Convex functions of one number that no cone knows (times
of a bit and hazards by SINRs, the inverse survival by hazards) are replaced by maxima of
tangents, which lie below them. Nothing else is relaxed. Tangents are added at every solution
until the bound meets an objective.
"""

import contextlib
import functools
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.chain import Messages, at_senders
from collapipe_jax.edge.cost.convergence import excess_inverse_survival
from collapipe_jax.edge.cost.decision import Allocation, Decision
from collapipe_jax.edge.cost.evaluate import (
    energy_cost,
    message_energy_j,
    received_s,
    round_terms,
)
from collapipe_jax.edge.cost.fixed_partition import FixedPartition
from collapipe_jax.edge.cost.latency import air_times, cluster_latency_s, flow_times, latency_parts
from collapipe_jax.edge.cost.link_quality import (
    BitTimes,
    Links,
    link_bit_times,
    link_sinrs,
    round_links,
)
from collapipe_jax.edge.cost.maximum import Maximum
from collapipe_jax.edge.cost.problem import RoundProblem
from collapipe_jax.edge.network import channel
from collapipe_jax.edge.solver.limits import to_allocation, to_logs
from experiments.benchmarks.solver.outside_scipy import (
    OutsideSolution,
    decision_at,
    evaluate_compiled,
    fix,
)
from experiments.double_precision import in_double

try:
    import clarabel  # noqa: F401  CVXPY finds it by itself
    import cvxpy as cp
except ModuleNotFoundError:  # optional packages; an error names them where they are needed
    cp = None

_LOG_SINRS = (-4.0, -2.0, 0.0, 2.0, 4.0)  # over the gap of the code; tangents are always there
_HAZARDS = (0.0, 0.01, 0.3, 2.0, 8.0)  # likewise
_LARGEST_HAZARD = 45.0  # beyond, exp(hazard) leaves the numbers that Clarabel copes with
_CLOSE = 1e-7  # bound and objective, relative
_TOLERANCE = 1e-9  # of Clarabel


class OutsideBound(NamedTuple):
    """Lower bound of the objective for a partition, and the best point met."""

    lower_bound: float
    solution: OutsideSolution


def lower_bound_with_cvxpy(
    problem: RoundProblem, decision: Decision, rounds: int = 10
) -> OutsideBound:
    """Lower bound of the objective over shares and powers.

    It is the value of the dual, a bound whether or not the solver converged, less what the
    dual's residual may be worth. If the decision is optimal the first round settles it.

    Args:
      problem: one round of one network.
      decision: the partition; the first tangents touch at its shares and powers, which must
        be positive where used.
      rounds: of new tangents, at most.

    Raises:
      InputError: if CVXPY or Clarabel is missing, or attempts lengthen a time on air.
    """
    if cp is None:
        remedy = 'Run pip install -e ".[bench]"'
        raise InputError("cvxpy", None, "the package or its solver is missing", remedy)
    attempts = problem.radio.retransmissions
    if attempts != "free":
        reason = "the conic program has no further attempts"
        raise InputError("radio.retransmissions", attempts, reason, "Set it to free")
    with jax.enable_x64(True):
        problem, decision = in_double(problem), in_double(decision)
        fixed = fix(problem, decision)
        points = _first_points(fixed, decision)
        objective = float(evaluate_compiled(problem, decision).objective)
        best = OutsideBound(-np.inf, OutsideSolution(decision, objective))
        for _ in range(rounds):
            bound, logs, points = _solve(fixed, best.solution, points)
            best = best._replace(lower_bound=max(bound, best.lower_bound))
            if logs is None:  # the solver failed
                break
            found = decision_at(fixed, decision, logs)
            objective = float(evaluate_compiled(problem, found).objective)
            if objective < best.solution.objective:
                best = best._replace(solution=OutsideSolution(found, objective))
            if best.lower_bound >= (1.0 - _CLOSE) * best.solution.objective:
                break
    return best


def _dual_value(program) -> float:
    """Value of the dual at Clarabel's answer, less what its residual may be worth.

    For any multipliers ``z`` of the cones, ``q x >= -b z + (A' z + q) x`` at a feasible
    ``x``, which is taken to lie within twice the size of the solution.
    """
    options = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), _TOLERANCE)
    options |= {"max_threads": 1, "accept_unknown": True}
    data, chain, inverse = program.get_problem_data(cp.CLARABEL, solver_opts=options)
    solution = chain.solve_via_data(program, data, solver_opts=options)
    with warnings.catch_warnings(), contextlib.suppress(cp.SolverError):
        warnings.simplefilter("ignore")  # an inaccurate solution still makes a bound
        program.unpack_results(solution, chain, inverse)
    x, z = np.asarray(solution.x), np.asarray(solution.z)
    residual = data["A"].T @ z + data["c"]
    offset = inverse[-1][cp.settings.OFFSET]
    value = float(offset - data["b"] @ z - 2.0 * np.abs(residual) @ (1.0 + np.abs(x)))
    return value if np.isfinite(value) else -np.inf


class _Points(NamedTuple):
    """Where tangents touch, one array a tangent: log SINRs of messages, hazards of clusters."""

    log_sinr: list[np.ndarray]
    hazard: list[np.ndarray]


def _first_points(fixed: FixedPartition, decision: Decision) -> _Points:
    """At the decision, and on a grid."""
    with jax.numpy_rank_promotion("allow"):
        logs = to_logs(fixed, decision)
        links = round_links(fixed, to_allocation(fixed, logs))
    used = _used(fixed)[0].log_bit_hz_s
    log_sinr = np.log(np.asarray(ravel_pytree(links.sinr)[0]))[ravel_pytree(used)[0]]
    hazard = np.asarray(links.hazard)[used.uplink]
    at_gap = np.log(float(fixed.radio.snr_gap))
    return _Points(
        [log_sinr, *(np.full_like(log_sinr, x + at_gap) for x in _LOG_SINRS)],
        [hazard, *(np.full_like(hazard, x) for x in _HAZARDS)],
    )


class _Point(NamedTuple):
    """Variables of the program, their times in units of those of a known decision."""

    logs: Allocation  # of shares, and of powers over their maxima
    log_noise: Array  # noise and interference over noise, [P, N]
    log_bit_hz_s: Messages  # time of a bit on a hertz
    bit_s: tuple[Messages, Array]  # time of a bit, of messages and of downlinks
    longest_s: Array  # stage of either flow, [2, N]


class _Rows(NamedTuple):
    """Affine functions of a :class:`_Point`."""

    log_sinr: Messages
    log_bit_s: tuple[Messages, Array]  # time of a bit, of messages and of downlinks
    log_power: Messages  # of the senders, over their maxima
    stages_s: Array  # of either flow, [2, P + 2, N]
    latency_s: Array  # of clusters, [N]
    energy_cost: Array  # of clusters at full power, [N]


def _used(fixed: FixedPartition) -> tuple[_Point, _Rows]:
    """Masks of the entries that the partition uses."""
    active = np.asarray(fixed.active)
    sends, waits = active[0], active[0] & np.asarray(fixed.micro_batches > 1)
    messages = Messages(np.stack([active] * 2), np.stack([active[1:]] * 2), sends)
    stages = waits & np.stack([np.concatenate([active, [sends, sends]])] * 2)
    logs, bits = Allocation(active, active, sends, sends), (messages, sends)
    point = _Point(logs, active, messages, bits, np.stack([waits, waits]))
    return point, _Rows(messages, bits, messages, stages, sends, sends)


def _places(masks):
    """The place of every entry in the flat array of a tree of this form."""
    leaves, tree = jax.tree.flatten(masks)
    ends = np.cumsum([leaf.size for leaf in leaves])
    numbered = zip(leaves, ends, strict=True)
    places = (np.arange(end - leaf.size, end).reshape(leaf.shape) for leaf, end in numbered)
    return jax.tree.unflatten(tree, places)


def _chosen(places, masks) -> np.ndarray:
    """Places of the used entries of a part of a tree."""
    return np.concatenate(jax.tree.leaves(jax.tree.map(lambda p, m: p[m], places, masks)))


class _First:
    """Rule: of two entries the first; given numbers for longest stages."""

    def __init__(self, longest_s: Array):
        self.longest_s, self.stages_s = longest_s, []

    def pair(self, name: str, first: Array, second: Array) -> Maximum:
        del name, second
        return Maximum(first, None)

    def over(self, name: str, values: Array) -> Maximum:
        self.stages_s.append(values)
        return Maximum(self.longest_s[("forward", "backward").index(name)], None)


def _rows(fixed: FixedPartition, unit_bit_s, unit_s: Array, point: _Point) -> _Rows:
    """The package's functions of a round, each by variables of its own."""
    noise_w = fixed.radio.d2d_bandwidth_hz * fixed.radio.node_noise_w_per_hz
    allocation = to_allocation(fixed, point.logs)
    full_power = to_allocation(fixed, jax.tree.map(jnp.zeros_like, point.logs))
    sinr = link_sinrs(fixed, allocation, noise_w * jnp.expm1(point.log_noise))
    senders = at_senders(point.logs.d2d_power, fixed.chain)
    rule = _First(point.longest_s * unit_s)
    links = Links(sinr, jax.tree.map(jnp.exp, point.log_bit_hz_s), None, None)
    bit_s = _bit_times_s(link_bit_times(fixed, allocation, links, rule))
    messages_s, downlink_s = jax.tree.map(jnp.multiply, point.bit_s, unit_bit_s)
    air = air_times(fixed, BitTimes(*(Maximum(s, None) for s in messages_s), downlink_s))
    latency_s = cluster_latency_s(latency_parts(fixed, air, flow_times(fixed, air, rule)))
    return _Rows(
        log_sinr=jax.tree.map(jnp.log, sinr),
        log_bit_s=jax.tree.map(lambda s, one: jnp.log(s / one), bit_s, unit_bit_s),
        log_power=senders._replace(uplink=point.logs.d2e_power),
        stages_s=jnp.stack(rule.stages_s) / unit_s,
        latency_s=latency_s / unit_s,
        energy_cost=energy_cost(
            fixed, message_energy_j(fixed, full_power, air), received_s(fixed, air)
        ),
    )


def _bit_times_s(times: BitTimes) -> tuple[Messages, Array]:
    return Messages(times.hop.value, times.move.value, times.uplink.value), times.downlink_s


@jax.jit
def _coefficients(fixed: FixedPartition, decision: Decision) -> tuple:
    """Rows at 0 and their derivatives, flat, and the latency of a known decision."""
    with jax.numpy_rank_promotion("allow"):
        logs = to_logs(fixed, decision)
        terms = round_terms(fixed, to_allocation(fixed, logs))
        unit_bit_s, unit_s = _bit_times_s(terms.bit_time), jnp.max(terms.cluster_latency_s)
        node, messages = logs.d2d_share, unit_bit_s[0]
        template = _Point(logs, node, messages, unit_bit_s, node[:2])
        zero, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, template))

        def rows(flat):
            return ravel_pytree(_rows(fixed, unit_bit_s, unit_s, unravel(flat)))[0]

        return rows(zero), jax.jacobian(rows)(zero), unit_s


def _solve(
    fixed: FixedPartition, known: OutsideSolution, points: _Points
) -> tuple[float, Allocation | None, _Points]:
    """Solve the conic program, in units of a known objective.

    Returns:
      A lower bound, the point as logarithms, None if the solver failed, and the tangents with
      those that touch there.
    """
    offset, matrix, unit_s = jax.device_get(_coefficients(fixed, known.decision))
    (used, used_rows), unit, radio = _used(fixed), known.objective, fixed.radio
    place, row = _places(used), _places(used_rows)
    point, latency = cp.Variable(matrix.shape[1]), cp.Variable()
    sends = used.logs.d2e_share

    def at(places):
        return matrix[places] @ point + offset[places]

    log_sinr = at(_chosen(row.log_sinr, used_rows.log_sinr))
    log_bit_hz_s = point[_chosen(place.log_bit_hz_s, used.log_bit_hz_s)]
    bit_s = point[_chosen(place.bit_s, used.bit_s)]
    flow, stage, cluster = np.nonzero(used_rows.stages_s)
    energy = _energy_cost(matrix, row, place, used.log_bit_hz_s, at, unit)
    hazard, loss, loss_limits = _loss_cost(fixed, log_sinr, points, unit)
    limits = [
        point[np.setdiff1d(np.arange(point.size), _chosen(place, used))] == 0,
        bit_s >= cp.exp(at(_chosen(row.log_bit_s, used_rows.log_bit_s))),
        log_bit_hz_s >= -np.log(float(radio.max_spectral_efficiency)),
        *(log_bit_hz_s >= _tangent(_log_bit_hz_s, radio, x, log_sinr) for x in points.log_sinr),
        point[place.longest_s[flow, cluster]] >= at(row.stages_s[flow, stage, cluster]),
        latency >= at(row.latency_s[sends]),
        *_allocation_limits(fixed, point, place),
        *loss_limits,
    ]
    latency_cost = float(fixed.costs.latency_per_s * unit_s / unit) * latency
    value = _dual_value(cp.Problem(cp.Minimize(latency_cost + energy + loss), limits))
    constant = fixed.costs.divergence * fixed.divergence.lossless
    bound = float(jnp.sum(constant) + np.sum(offset[row.energy_cost])) + unit * value
    if log_sinr.value is None:
        return bound, None, points
    logs = jax.tree.map(lambda places: point.value[places], place.logs)
    return bound, logs, _Points([*points.log_sinr, log_sinr.value], [*points.hazard, hazard.value])


def _allocation_limits(fixed: FixedPartition, point, place) -> list:
    """Bands and powers, and noise with interference, at least, over noise."""
    active, radio = np.asarray(fixed.active), fixed.radio
    logs, sends = place.logs, active[0]
    bands = [logs.d2e_share[sends]]
    bands += [logs.d2d_share[active[:, n], n] for n in np.flatnonzero(sends)]
    limits = [
        point[logs.d2d_power[active]] <= 0,
        point[logs.d2e_power[sends]] <= 0,
        *(cp.sum(cp.exp(point[band])) <= 1 for band in bands),
    ]
    full_w = np.asarray(radio.d2d_power_max_w).T
    noise_w = float(radio.d2d_bandwidth_hz * radio.node_noise_w_per_hz)
    received = full_w[:, :, None, None] * np.asarray(fixed.cross_gain) / noise_w
    received = received[active][:, active]  # sender to receiver
    log_power, log_noise = logs.d2d_power[active], place.log_noise[active]
    sender, receiver = np.nonzero(received > 0)
    if sender.size == 0:
        return [*limits, point[log_noise] >= 0]
    parts = point[log_power[sender]] - point[log_noise[receiver]]
    parts = cp.exp(parts + np.log(received[sender, receiver]))
    arrives = np.equal.outer(np.arange(log_noise.size), receiver).astype(float)
    return [*limits, cp.exp(-point[log_noise]) + arrives @ parts <= 1]


def _energy_cost(matrix, row, place, messages, at, unit: float):
    """Cost of energy on air, powers times times, in units."""
    by_bit_s = matrix[row.energy_cost].sum(0)[_chosen(place.bit_s[0], messages)] / unit
    log_energy = at(_chosen(row.log_power, messages)) + at(_chosen(row.log_bit_s[0], messages))
    costs = np.flatnonzero(by_bit_s > 0)
    if costs.size == 0:
        return 0.0
    return cp.sum(cp.exp(log_energy[costs] + np.log(by_bit_s[costs])))


def _loss_cost(fixed: FixedPartition, log_sinr, points: _Points, unit: float) -> tuple:
    """Hazards of clusters, cost of losses in units, and limits on both."""
    used = _used(fixed)[0].log_bit_hz_s
    cluster = [np.nonzero(mask)[-1] for mask in used]
    per_cluster = fixed.hop_blocks, jnp.zeros_like(fixed.hop_blocks), fixed.uplink_blocks
    blocks = [np.asarray(b)[n] for b, n in zip(per_cluster, cluster, strict=True)]
    cluster, blocks = np.concatenate(cluster), np.concatenate(blocks)
    counts = np.flatnonzero(blocks > 0)
    sends = np.flatnonzero(used.uplink)
    trip = np.equal.outer(sends, cluster[counts]).astype(float)
    per_excess = np.asarray(fixed.costs.divergence * fixed.divergence.per_excess)[sends]
    hazard = cp.Variable(sends.size)
    if not np.any(per_excess > 0):
        return hazard, 0.0, [hazard >= 0]
    # No optimum loses more than a known decision costs in all: steeper tangents are of no
    # use, and of no good to the solver's numbers.
    worth = unit / np.maximum(per_excess, 1e-30 * unit)
    most = np.minimum(np.log1p(worth), _LARGEST_HAZARD)
    least = _log_sinr(fixed.radio, trip.T @ most / blocks[counts])
    touching = [point[counts] for point in points.log_sinr]
    touching += [_log_sinr(fixed.radio, one / blocks[counts]) for one in _HAZARDS if one > 0]
    of_block, excess = cp.Variable(counts.size), cp.Variable(sends.size)
    by_sinr = functools.partial(_tangent, _log_sinr_hazard, fixed.radio)
    by_hazard = functools.partial(_tangent, _excess, fixed.radio)
    limits = [
        of_block >= 0,
        excess >= 0,
        hazard >= (trip * blocks[counts]) @ of_block + np.asarray(fixed.downlink_hazard)[sends],
        *(of_block >= by_sinr(np.maximum(x, least), log_sinr[counts]) for x in touching),
        *(excess >= by_hazard(np.minimum(x, most), hazard) for x in points.hazard),
    ]
    return hazard, (per_excess / unit) @ excess, limits


def _log_sinr(radio, hazard: np.ndarray) -> np.ndarray:
    return np.log(np.asarray(channel.sinr_at_hazard(radio, jnp.asarray(hazard))))


def _log_bit_hz_s(radio, log_sinr):
    return -jnp.log(channel.unlimited_efficiency(jnp.exp(log_sinr), radio))


def _log_sinr_hazard(radio, log_sinr):
    return channel.transport_block_hazard(radio, jnp.exp(log_sinr))


def _excess(radio, hazard):
    del radio
    return excess_inverse_survival(hazard)


def _tangent(function, radio, touching: np.ndarray, expression):
    """Lines that touch a convex function of one number, at an expression; one an entry."""
    value, slope = jax.device_get(_value_and_slope(function, radio, touching))
    return value + cp.multiply(slope, expression - touching)


@functools.partial(jax.jit, static_argnums=0)
def _value_and_slope(function, radio, touching):
    return jax.vmap(jax.value_and_grad(function, argnums=1), in_axes=(None, 0))(radio, touching)
