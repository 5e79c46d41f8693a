"""DSSRA on hundreds of networks at once, the ugly ones included, and then with gateways."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import compiles
from support.compiled import evaluate
from support.random_problems import pick, random_problems, to_batch_last, with_unusable_links

from collapipe_jax.core.compilation import quick_jit
from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.feasibility import can_run, is_feasible
from collapipe_jax.edge.cost.static_pipeline import static_pipeline
from collapipe_jax.edge.policies.alternating import alternating
from collapipe_jax.edge.policies.baselines import titanic
from collapipe_jax.edge.policies.dssra import (
    SearchConfig,
    dssra,
    dssra_wide,
    number_of_starts,
)
from collapipe_jax.edge.policies.greedy import greedy
from collapipe_jax.edge.solver.allocate import (
    BROKEN,
    NO_CLUSTER,
    OPTIMAL,
    STEP_LIMIT,
    TOLERANCE,
    allocate,
)
from experiments.benchmarks.solver.networks import NetworkShape, sample_problems
from experiments.double_precision import in_double

CLUSTERS, DEVICES, BLOCKS = 2, 3, 5
NETWORKS = 132
LIGHT = SearchConfig(
    allocation_steps=(6, 6, 6, 12), candidates=3, cluster_candidates=4, cluster_steps=5
)
KINDS = (
    *("plain", "fades", "away", "nobody", "no queues", "huge queues", "v = 0", "one device"),
    *("dead links", "feeble links", "no block"),
)
WIDE_KINDS = "plain", "fades", "away", "no block"
"""Of networks for which gateways are decided too."""


def ugly(index, rng, network):
    kind = KINDS[index % len(KINDS)]
    memory, control = network["compute"]["memory_bytes"], network["control"]
    radio = network["radio"]
    network["workload"]["server_blocks"] = BLOCKS if kind == "no block" else 0
    if kind == "fades":
        for name in ("d2e_gain", "d2d_gain", "cross_gain"):
            radio[name] *= 10.0 ** -rng.uniform(0, 4, radio[name].shape)
    if kind == "away":
        memory[rng.uniform(size=memory.shape) < 0.5] = 0
    if kind == "nobody":
        memory[rng.permutation(CLUSTERS)[: rng.integers(1, CLUSTERS + 1)]] = 0
    if kind == "no queues":
        control["energy_queue"] *= 0
        control["divergence_queue"] = 0.0
    if kind == "huge queues":
        control["energy_queue"] *= 1e6
        control["divergence_queue"] = 1e6
    if kind == "v = 0":
        control["v"] = 0.0
    if kind in ("dead links", "feeble links"):  # of a device that is not needed
        factor = 0.0 if kind == "dead links" else 1e-15
        spoilt = rng.integers(0, DEVICES)
        memory[:] = 1e12
        radio["d2d_gain"][0, spoilt + 1] *= factor
        radio["d2d_gain"][0, :, spoilt + 1] *= factor
    if kind == "one device":
        memory *= 0
        memory[np.arange(CLUSTERS), rng.integers(0, DEVICES, CLUSTERS)] = 1e12


def solve(problem):
    found = dssra(problem, config=LIGHT)
    both = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), found.decision, static_pipeline(problem, 8)
    )
    costs = jax.vmap(evaluate, in_axes=(None, 0))(problem, both)
    return found, costs, is_feasible(problem, found.decision)


def by_kind(tree):
    """Networks in a table, a column per kind."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, len(KINDS), *leaf.shape[1:]), tree)


solve_table = quick_jit(jax.vmap(jax.vmap(solve)))


def solve_all(problem):
    solution = solve_table(by_kind(problem))
    flat = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), solution)
    found, costs, feasible = flat
    own, static = (jax.tree.map(lambda leaf, at=at: leaf[:, at], costs) for at in (0, 1))
    return found, own, static, feasible


@pytest.fixture(scope="module")
def solved():
    problem = random_problems(NETWORKS, CLUSTERS, DEVICES, BLOCKS, ugly)
    return problem, *solve_all(problem)


def of_kind(values, kind):
    return np.asarray(values)[KINDS.index(kind) :: len(KINDS)]


def test_feasible_everywhere(solved):
    *_, feasible = solved
    assert np.all(feasible)


def test_finite_everywhere(solved):
    _, found, cost, _, _ = solved
    for tree in (found, cost.replace(flows=0, parts=0)):
        for leaf in jax.tree.leaves(tree):
            assert np.all(np.isfinite(leaf))


def test_never_worse_than_the_static_pipeline(solved):
    _, _, cost, static, _ = solved
    assert np.all(cost.objective <= static.objective * (1 + 1e-5))
    ratio = of_kind(cost.objective, "plain") / of_kind(static.objective, "plain")
    assert np.median(ratio) < 0.9


@pytest.mark.parametrize("kind", ["dead links", "feeble links"])
def test_a_device_without_usable_links_is_left_out(solved, kind):
    _, _, cost, static, _ = solved
    of_static, latency_s = of_kind(static.latency_s, kind), of_kind(cost.latency_s, kind)
    assert np.all(np.isinf(of_static))
    assert np.max(latency_s) < 10 * np.max(of_kind(cost.latency_s, "plain"))


def test_a_decision_does_not_depend_on_the_others_of_its_batch(solved):
    """Some are searched again, a chunk of these at a time."""
    problem, found, *_ = solved
    order = np.random.default_rng(0).permutation(NETWORKS)
    shuffled = solve_all(jax.tree.map(lambda leaf: leaf[order], problem))[0]
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(shuffled), strict=True):
        np.testing.assert_array_equal(one[order], other)


@pytest.mark.slow
def test_hardly_worse_than_other_policies_over_unusable_links():
    problem = random_problems(2 * NETWORKS, CLUSTERS, DEVICES, BLOCKS, with_unusable_links)

    def objectives(problem):
        ours, turns, relaxed = (decide(problem).decision for decide in (dssra, alternating, greedy))
        decisions = ours, relaxed, static_pipeline(problem, 8), titanic(problem, 8), turns
        feasible = [is_feasible(problem, decision) for decision in decisions]
        costs = [evaluate(problem, decision).objective for decision in decisions]
        return jnp.where(jnp.stack(feasible), jnp.stack(costs), jnp.inf)

    ours, *others = np.asarray(quick_jit(jax.vmap(objectives))(problem)).T
    best = np.min(others, axis=0)
    assert np.all(ours <= best * 1.002)
    assert np.sum(np.isfinite(ours)) > 1.5 * np.sum(np.isfinite(others[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "number", "segments"),
    [(9515, 27, [[5, 1, 0], [3, 3, 0]]), (555, 2636, [[0, 2, 4], [4, 2, 0]])],
    ids=["powers", "starts"],
)
def test_clusters_that_interfere_change_together(seed, number, segments):
    """At full powers from the start, or with one start alone, a search ends 1.9 or 11 % higher."""
    shape = NetworkShape(clusters=2, devices=3, blocks=6)
    problem = pick(sample_problems(seed, number + 1, shape, law="wide"), number)
    found = quick_jit(dssra)(problem)
    together = static_pipeline(problem, 32).replace(segments=jnp.array(segments))
    best = quick_jit(allocate)(problem, together)
    assert found.objective < 1.001 * best.objective


def test_small_networks_start_more_often():
    """Of four clusters of five devices some are away."""
    sizes = [(4, 5), (3, 4), (2, 3), (4, 1), (4, 5)]

    def there(index, rng, network):
        clusters, devices = sizes[index]
        network["compute"]["memory_bytes"] = np.zeros((4, 5))
        network["compute"]["memory_bytes"][:clusters, :devices] = 1e12
        if index == 4:  # a dead link
            network["radio"]["d2d_gain"][0, 0, 1] = 0

    problem = to_batch_last(random_problems(len(sizes), 4, 5, BLOCKS, there))
    with jax.numpy_rank_promotion("allow"):  # batch axes come last
        starts = quick_jit(number_of_starts)
        assert starts(problem, 1).tolist() == [1, 1, 3, 5, 5]
        assert starts(problem, 2).tolist()[:3] == [2, 2, 3]


@pytest.mark.parametrize("starts", [0, 6])
def test_a_wrong_number_of_starts_is_refused(starts):
    problem = random_problems(1, CLUSTERS, DEVICES, BLOCKS)
    with pytest.raises(InputError, match=f"starts.*{starts}.*1 to 5"):
        dssra(problem, config=LIGHT._replace(starts=starts))


def test_the_objective_is_that_of_the_decision(solved):
    _, found, cost, _, _ = solved
    np.testing.assert_allclose(found.objective, cost.objective, rtol=1e-4)


def test_clusters_sit_out_only_when_they_must(solved):
    problem, found, cost, _, _ = solved
    runs = np.asarray(quick_jit(jax.vmap(can_run))(problem))
    np.testing.assert_array_equal(~cost.absent, runs)
    nobody = ~runs.any(axis=1)
    assert nobody.any()  # networks in which nobody can run are among them
    assert np.all(cost.objective[nobody] == 0)
    assert np.all(cost.energy_j[~runs] == 0)
    np.testing.assert_array_equal(found.status == NO_CLUSTER, nobody)


def test_one_device_takes_all(solved):
    problem, found, *_ = solved
    there = of_kind(problem.compute.memory_bytes, "one device") > 0
    np.testing.assert_array_equal(of_kind(found.decision.segments, "one device"), BLOCKS * there)


def test_without_queues_power_is_free_and_latency_is_all(solved):
    problem, _, cost, static, _ = solved
    found, fixed = of_kind(cost.latency_s, "no queues"), of_kind(static.latency_s, "no queues")
    assert np.all(found <= fixed * (1 + 1e-5))
    worth = of_kind(problem.control.v / problem.control.reference_latency_s, "no queues")
    np.testing.assert_allclose(of_kind(cost.objective, "no queues"), worth * found, 1e-5)


def test_certificates_bound_what_a_partition_could_cost(solved):
    _, found, *_ = solved
    assert np.all(found.lower_bound <= found.objective * (1 + 1e-5))
    runs = found.status != NO_CLUSTER
    assert not np.any(found.status == BROKEN)
    close = found.objective - found.lower_bound <= TOLERANCE * found.objective
    np.testing.assert_array_equal(found.status[runs], np.where(close, OPTIMAL, STEP_LIMIT)[runs])
    assert np.all(found.residual >= 0)
    gap = 1 - of_kind(found.lower_bound, "plain") / of_kind(found.objective, "plain")
    assert np.median(gap) < 0.05


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_other_networks_and_queues_are_not_compiled_again(solved, times):
    problem = solved[0]
    rng = np.random.default_rng(1)

    def scaled(leaf, decades):
        return np.asarray(leaf) * np.float32(10.0 ** rng.uniform(-decades, decades, leaf.shape))

    for _ in range(times):
        radio, control, compute = problem.radio, problem.control, problem.compute
        radio = radio.replace(
            d2d_gain=scaled(radio.d2d_gain, 0.5),
            d2e_gain=scaled(radio.d2e_gain, 0.5),
            cross_gain=scaled(radio.cross_gain, 0.5),
        )
        control = control.replace(
            v=scaled(control.v, 1),
            energy_queue=scaled(control.energy_queue, 1),
            divergence_queue=scaled(control.divergence_queue, 1),
        )
        compute = compute.replace(flops_per_s=scaled(compute.flops_per_s, 0.3))
        problem = problem.replace(radio=radio, control=control, compute=compute)
        with compiles(solve_table, 0):
            found, cost, static, feasible = solve_all(problem)
        assert np.all(feasible)
        assert np.all(np.isfinite(found.objective))
        assert np.all(cost.objective <= static.objective * (1 + 1e-5))


@pytest.mark.slow
def test_a_lone_network_is_decided_as_among_many(solved):
    problem, found, *_ = solved
    alone = quick_jit(lambda one: dssra(one, config=LIGHT))
    for index in range(2 * len(KINDS)):
        got, wanted = alone(pick(problem, index)), pick(found, index)
        assert float(got.objective) == pytest.approx(float(wanted.objective), rel=1e-3), index
        assert got.decision.segments.shape == (CLUSTERS, DEVICES)
        assert got.decision.segments.dtype == got.decision.micro_batches.dtype == np.int32


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_slopes_of_the_objective_go_through_the_cost_and_not_the_decision(solved):
    """The decision is taken as it is, so slopes are those of its cost."""
    problem, found, *_ = solved
    one, decision = in_double((pick(problem, 0), pick(found.decision, 0)))

    @quick_jit
    @jax.value_and_grad
    def objective(gain):
        return evaluate(one.replace(radio=one.radio.replace(d2d_gain=gain)), decision).objective

    gain = np.asarray(one.radio.d2d_gain)
    _, slope = objective(gain)
    assert np.all(np.isfinite(slope))
    assert np.any(slope != 0)
    for index in zip(*np.nonzero(slope), strict=True):
        ends = []
        for sign in (1, -1):
            moved = gain.copy()
            moved[index] *= 1 + sign * 1e-5
            ends.append(float(objective(moved)[0]))
        expected = (ends[0] - ends[1]) / (2e-5 * gain[index])
        assert float(slope[index]) == pytest.approx(expected, rel=1e-4, abs=1e-6 / gain[index])


@quick_jit
@jax.vmap
def widened(problem):
    """The answer with gateways, its cost, and whether it is feasible."""
    wide = dssra_wide(problem, config=LIGHT)
    return wide, evaluate(problem, wide.decision), is_feasible(problem, wide.decision)


@pytest.fixture(scope="module")
def published(solved):
    """Some networks, and their answers without gateways."""
    places = [place for place in range(NETWORKS) if KINDS[place % len(KINDS)] in WIDE_KINDS]
    return pick(solved[:2], np.array(places[::2]))


@pytest.fixture(scope="module")
def wide(published):
    return jax.device_get(widened(published[0]))


def test_decisions_with_gateways_are_feasible_and_cost_what_they_say(wide):
    found, cost, feasible = wide
    assert np.all(feasible)
    np.testing.assert_allclose(found.objective, cost.objective, rtol=1e-5)
    finite = np.isfinite(found.objective)
    assert np.mean(finite) > 0.9
    assert np.all((found.lower_bound <= found.objective * (1 + 1e-5))[finite])


def test_no_answer_with_gateways_is_worse_than_the_published_one_and_many_are_better(
    published, wide
):
    before, found = np.asarray(published[1].objective), wide[0]
    finite = np.isfinite(before)
    assert np.all(found.objective[finite] <= before[finite] * (1 + 1e-5))
    some = finite & (before > 0)
    assert np.median(found.objective[some] / before[some]) < 0.95
    gateways = found.decision.routes.gateway
    assert 0.1 < np.mean(gateways == 0) < 0.9


def test_gateways_of_other_networks_are_not_compiled_again(published, wide):
    order = np.arange(len(wide[2]))[::-1]
    with compiles(widened, 0):
        turned, *_ = widened(pick(published[0], order))
    for one, other in zip(jax.tree.leaves(turned), jax.tree.leaves(wide[0]), strict=True):
        np.testing.assert_array_equal(one[::-1], other)


def test_no_slope_goes_through_the_decision(solved):
    """Abstractly: nothing is compiled."""
    one = pick(solved[0], 0)

    def through(gain):
        problem = one.replace(radio=one.radio.replace(d2d_gain=gain))
        decision = dssra(problem, config=LIGHT).decision
        return evaluate(problem, decision).objective

    slope = jax.eval_shape(jax.grad(through), one.radio.d2d_gain)
    assert slope.shape == one.radio.d2d_gain.shape
