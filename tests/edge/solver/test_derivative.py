"""The slope, written out, against automatic differentiation of the round's own terms."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.random_allocations import (
    central_differences,
    random_coupling,
    random_logs,
    random_weights,
    with_first_cluster_moved,
)
from support.random_networks import secure_section
from support.random_problems import random_rounds, to_batch_last

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.edge.cost.convergence import local_steps_drift
from collapipe_jax.edge.cost.decision import Routes, decision_partition
from collapipe_jax.edge.cost.evaluate import air_energy_j, round_terms
from collapipe_jax.edge.cost.fixed_partition import fix_partition
from collapipe_jax.edge.cost.link_quality import active_power_w, round_links
from collapipe_jax.edge.cost.problem import SecureExchange
from collapipe_jax.edge.network.channel import RATE_LAWS
from collapipe_jax.edge.solver.energy_caps import fix_capped_partition
from collapipe_jax.edge.solver.limits import to_allocation
from collapipe_jax.edge.solver.smooth_maximum import PowerMean, initial_weights, power_mean
from collapipe_jax.edge.solver.smooth_objective import evaluate_allocation

pytestmark = pytest.mark.usefixtures("double")


@dataclasses.dataclass(frozen=True)
class Case:
    """What networks are drawn, and which objective is differentiated."""

    shape: tuple[int, int, int] = (2, 3, 5)  # clusters, devices, blocks
    batch: int = 6
    rate_law: str = "mean"
    efficiency_scale: float = 1.0  # of the ceiling of modulation
    amplifier_efficiency: float = 1.0
    idle_power_w: float = 0.0
    receive_power_w: float = 0.0
    secure: bool = False
    duplex: str = "full"
    retransmissions: str = "free"
    drift: bool = False
    caps: bool = False
    coupled: bool = False
    routes: bool = False
    temperature: float = 0.1


ERGODIC = "reliable, ergodic, routes, half duplex, secure, coupled, caps"
ALL_PARTS = Case(
    retransmissions="reliable",
    routes=True,
    duplex="half",
    secure=True,
    coupled=True,
    caps=True,
)
CASES = {
    "mean": Case(),
    "ergodic": Case(rate_law="ergodic"),
    "one cluster": Case((1, 3, 4)),
    "large": Case((4, 5, 12)),
    "large batch": Case(batch=12),
    "above the ceiling": Case(efficiency_scale=0.15),
    "above the ceiling, ergodic": Case(efficiency_scale=0.15, rate_law="ergodic"),
    "below the ceiling": Case(efficiency_scale=10.0),
    "amplifiers": Case(amplifier_efficiency=0.35),
    "idle power": Case(idle_power_w=2.0),
    "receiving": Case(receive_power_w=2.0),
    "receiving, coupled, reliable": Case(
        receive_power_w=0.5, coupled=True, retransmissions="reliable"
    ),
    "half duplex": Case(duplex="half"),
    "half duplex, secure, coupled, caps": Case(duplex="half", secure=True, coupled=True, caps=True),
    "reliable": Case(retransmissions="reliable"),
    "reliable, above the ceiling, caps": Case(
        retransmissions="reliable", efficiency_scale=0.15, caps=True
    ),
    "reliable, ergodic, coupled, half duplex": Case(
        retransmissions="reliable", rate_law="ergodic", coupled=True, duplex="half"
    ),
    "drift": Case(drift=True),
    "caps": Case(caps=True),
    "coupled": Case(coupled=True),
    "coupled, caps": Case(coupled=True, caps=True),
    "coupled, above the ceiling": Case(coupled=True, efficiency_scale=0.15),
    "coupled, caps, large batch": Case(coupled=True, caps=True, batch=12),
    "coupled, caps, amplifiers": Case(batch=12, coupled=True, caps=True, amplifier_efficiency=0.35),
    "coupled, caps, drift, large, ergodic": Case(
        (4, 5, 12), rate_law="ergodic", coupled=True, caps=True, drift=True
    ),
    "routes": Case(routes=True, receive_power_w=2.0),
    "routes, half duplex, secure, coupled, caps": Case(
        routes=True, duplex="half", secure=True, coupled=True, caps=True
    ),
    "reliable, routes, half duplex, secure, coupled, caps": ALL_PARTS,
    ERGODIC: dataclasses.replace(ALL_PARTS, rate_law="ergodic"),
    "another temperature": Case(temperature=0.23),
}
QUICK = ("mean", "above the ceiling", "below the ceiling", "amplifiers", "idle power", "receiving")
QUICK += ("coupled, caps",)
"""The first have one program, the last has other parts; all are together in a slow case."""
assert set(RATE_LAWS) == {case.rate_law for case in CASES.values()}


def cases(*names):
    """Cases as parameters; those are slow whose parts others have too."""
    slow = pytest.mark.slow
    return [name if name in QUICK else pytest.param(name, marks=slow) for name in names]


def draw(case, seed=0):
    """Problems, decisions and logarithms with a trailing batch axis."""
    clusters, devices, blocks = case.shape

    def sits_out(index):
        return (index % clusters,) if clusters > 1 and index % 2 else ()

    rounds = random_rounds(case.batch, clusters, devices, blocks, sits_out, seed=20 + seed)
    problem, decision = jax.device_get(to_batch_last(rounds))
    radio = problem.radio
    radio = radio.replace(
        rate_law=case.rate_law,
        duplex=case.duplex,
        retransmissions=case.retransmissions,
        max_spectral_efficiency=case.efficiency_scale * radio.max_spectral_efficiency,
        amplifier_efficiency=case.amplifier_efficiency * radio.amplifier_efficiency,
    )
    idle_w = case.idle_power_w + problem.compute.idle_power_w
    compute = problem.compute.replace(idle_power_w=idle_w)
    compute = compute.replace(receive_power_w=case.receive_power_w + 0.0 * idle_w)
    problem = problem.replace(radio=radio, compute=compute)
    if case.secure:
        section = {name: each + 0.0 * idle_w for name, each in secure_section().items()}
        problem = problem.replace(secure_aggregation=SecureExchange(**section))
    if case.drift:
        heterogeneity = jax.device_put(problem.learning.gradient_heterogeneity)
        drift = jax.device_get(local_steps_drift(0.02, 3, heterogeneity))
        drift = drift.replace(spread=np.broadcast_to(drift.spread, drift.divergence.shape))
        problem = problem.replace(learning=problem.learning.replace(drift=drift))
    if case.caps:  # close to what the nodes spend, some kept and some exceeded
        control = problem.control
        budget_j = 0.05 / case.amplifier_efficiency * control.energy_budget_j
        problem = problem.replace(control=control.replace(energy_budget_j=budget_j))
    if case.routes:
        rng = np.random.default_rng(seed)
        gateway = rng.integers(devices + 1, size=(clusters, case.batch))
        broadcast = rng.integers(2, size=case.batch)
        problem = problem.replace(routes=Routes(gateway=gateway, broadcast=broadcast))
    logs = random_logs(np.random.default_rng(seed), clusters, devices, case.batch, spread=2.5)
    return problem, decision, logs


@dataclasses.dataclass(frozen=True)
class Objective:
    """What of a case is no value of its problems."""

    caps: bool
    temperature: float


def objective_of(case):
    return Objective(case.caps, case.temperature)


def fixed_of(case, problem, decision):
    fix = fix_capped_partition if case.caps else fix_partition
    return fix(problem, *decision_partition(decision))


def smooth_objective(case, fixed, logs, weights, coupling):
    """The smooth objective from the round's terms, with nothing of the solver's own body."""
    allocation = to_allocation(fixed, logs)
    received_w = None if coupling is None else coupling.interference_w
    links = round_links(fixed, allocation, received_w)
    terms = round_terms(fixed, allocation, PowerMean(weights, case.temperature), links)
    cost = terms.cluster_cost
    if case.caps:
        cost = cost + cap_penalty(case, fixed, terms, weights.caps)
    per_s, latency_s = fixed.costs.latency_per_s, terms.cluster_latency_s
    if coupling is None:
        mean = power_mean(latency_s, weights.cluster, case.temperature)
        return per_s * mean.value + jnp.sum(cost, axis=0)
    both = jnp.stack([latency_s, jnp.broadcast_to(coupling.round_s, latency_s.shape)])
    mean = power_mean(both, weights.cluster, case.temperature)
    power_w = active_power_w(fixed, allocation)
    others = jnp.sum(power_w * coupling.interference_cost_per_w, axis=0)
    band = jnp.where(fixed.active[0], allocation.d2e_share * coupling.bandwidth_cost, 0.0)
    own = coupling.latency_cost_per_s
    return own * latency_s + (per_s - own) * mean.value + cost + others + band


def cap_penalty(case, fixed, terms, multiplier):
    """``w T (e^(1/T) - 1)`` of energies over their caps, from 0.1 nats on along its tangent."""
    excess = jnp.log(air_energy_j(fixed, terms.message_j) / fixed.caps.room_j)
    bounded = jnp.where(fixed.active, jnp.minimum(excess, 0.1), -1e3)
    slope = jnp.exp(bounded / case.temperature)
    beyond = jnp.where(fixed.active, excess - bounded, 0.0)
    penalty = case.temperature * (slope - 1.0) + slope * jnp.maximum(beyond, 0.0)
    return jnp.sum(multiplier * penalty, axis=0)


@functools.partial(quick_jit, static_argnums=0)
def both_slopes(case, problem, decision, logs, weights, coupling):
    """The evaluation, and the smooth objective with its slope by automatic differentiation."""
    fixed = fixed_of(case, problem, decision)

    def total(logs):
        value = smooth_objective(case, fixed, logs, weights, coupling)
        return jnp.sum(value), value

    wanted, value = jax.grad(total, has_aux=True)(logs)
    found = evaluate_allocation(fixed, logs, weights, coupling, case.temperature)
    return found, value, wanted


@functools.partial(quick_jit, static_argnums=0)
def start_of(case, problem, decision, logs):
    fixed = fixed_of(case, problem, decision)
    terms = round_terms(fixed, to_allocation(fixed, logs))
    return initial_weights(fixed), terms, fixed


def draw_all(case, seed=0):
    problem, decision, logs = draw(case, seed)
    clusters, devices, _ = case.shape
    weights, terms, fixed = start_of(objective_of(case), problem, decision, logs)
    rng, coupling, cluster_shape = np.random.default_rng(100 + seed), None, None
    if case.coupled:
        round_s = np.median(terms.cluster_latency_s, axis=0)
        coupling = random_coupling(rng, round_s, clusters, devices, case.batch)
        cluster_shape = (2, clusters, case.batch)
    weights = random_weights(rng, weights, cluster_shape)
    return (problem, decision, logs, weights, coupling), terms, fixed


@pytest.mark.parametrize("name", cases(*CASES))
def test_the_slope_is_that_of_automatic_differentiation(name):
    case = CASES[name]
    arguments, _, fixed = draw_all(case)
    found, value, wanted = jax.device_get(both_slopes(objective_of(case), *arguments))
    np.testing.assert_allclose(found.smooth, value, rtol=1e-12)
    # The ergodic law ends in a truncated fraction, whose own derivative is less exact.
    error = 1e-10 if case.rate_law == "mean" else 1e-8
    least = np.min(np.abs(value))
    assert not np.all(fixed.active)
    assert np.mean(np.abs(value) < 1e3) > 0.3  # not all is losses
    for field, got in found.slope._asdict().items():
        true = np.asarray(getattr(wanted, field))
        assert got.shape == true.shape
        # Relative to itself, or where its terms cancel to the least objective there is.
        np.testing.assert_allclose(got, true, rtol=error, atol=error * least, err_msg=field)
        assert np.any(true != 0), field
    for got, used in zip(found.slope, fixed.chain.used, strict=True):
        assert np.all(np.asarray(got)[~np.asarray(used)] == 0)


@pytest.mark.parametrize(
    "name", cases("above the ceiling", "below the ceiling", "coupled, caps", ERGODIC)
)
def test_the_drawn_cases_are_what_their_names_say(name):
    case = CASES[name]
    arguments, terms, fixed = draw_all(case)
    active = np.asarray(fixed.active)
    assert np.any(~active[0])  # absent clusters, idle devices
    assert np.any(active[0] & ~active[1:])
    efficiency = 1 / np.asarray(terms.links.bit_hz_s.hop)[:, active]
    ceiling = np.broadcast_to(fixed.radio.max_spectral_efficiency, active.shape)[active]
    above = np.mean(efficiency > ceiling)
    if name == "above the ceiling":
        assert above > 0.5
    if name == "below the ceiling":
        assert above == 0
    if case.caps:
        exceeded = (air_energy_j(fixed, terms.message_j) > fixed.caps.room_j)[active]
        assert 0.1 < np.mean(exceeded) < 0.95
    if case.coupled:
        latency_s, round_s = terms.cluster_latency_s, arguments[-1].round_s
        assert 0.1 < np.mean(latency_s > round_s) < 0.9


@pytest.mark.parametrize("name", cases("coupled, caps", ERGODIC))
def test_a_share_or_power_of_a_cluster_by_itself_moves_no_other(name):
    case = CASES[name]
    arguments, *_ = draw_all(case)
    problem, decision, logs, weights, coupling = arguments
    here = both_slopes(objective_of(case), *arguments)[0]
    moved = with_first_cluster_moved(logs)
    there = both_slopes(objective_of(case), problem, decision, moved, weights, coupling)[0]
    assert here.smooth.shape == (2, case.batch)
    np.testing.assert_array_equal(there.smooth[1:], here.smooth[1:])
    assert np.any(there.smooth[0] != here.smooth[0])


@pytest.mark.parametrize(
    "name",
    cases(
        *("mean", "above the ceiling", "coupled, caps", "caps", "coupled"),
        *("half duplex", "reliable", "receiving"),
    ),
)
def test_the_curvature_is_of_the_size_of_the_second_derivative(name):
    """A preconditioner and no bound: mostly within a factor of 2.5, never far too small."""
    case = CASES[name]
    arguments, _, fixed = draw_all(case)
    problem, decision, logs, weights, coupling = arguments
    found, *_ = both_slopes(objective_of(case), *arguments)
    assert all(np.all(np.isfinite(leaf)) for leaf in found.curvature)
    assert all(np.all(leaf >= 0) for leaf in found.curvature)

    def slope(logs):
        return both_slopes(objective_of(case), problem, decision, logs, weights, coupling)[0].slope

    ratios = []
    for field, index, second in central_differences(slope, logs, 1e-4):
        used = np.asarray(fixed.active[0] if field.startswith("d2e") else fixed.active)[index]
        curvature = np.asarray(getattr(found.curvature, field))[index]
        own = np.asarray(getattr(second, field))[index]
        ratios += list(curvature[used] / np.maximum(own[used], 1e-12))
    ratios = np.array(ratios)
    assert len(ratios) > 50
    assert np.all(ratios > 0.05)
    assert 0.8 < np.median(ratios) < 1.5
    assert np.mean((ratios > 0.4) & (ratios < 2.5)) > 0.7
