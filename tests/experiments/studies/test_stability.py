"""Bounds of docs/theory.md on made-up loops, and what policies were shown."""

import json

import jax
import numpy as np
import pytest
from support.tiny_system import tiny_params

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.environment import observed_problems, reset, simulate
from collapipe_jax.edge.policies.registry import make_policy
from collapipe_jax.edge.system import sample_system
from collapipe_jax.runs.figures.draw import kind_of
from collapipe_jax.runs.results.experiment import Results
from experiments.studies import stability
from experiments.studies.stability import LEAST_SLACK, bounds, summarise
from figures import stability as stability_figure
from figures.__main__ import KINDS, STUDIES


def made_up(seed, use_mean, latency_mean, networks=5, rounds=400, limits=3):
    """A loop of independent rounds, its queues by (20)."""
    rng = np.random.default_rng(seed)
    use = use_mean + rng.uniform(-0.5, 0.5, (networks, rounds, limits))
    latency = latency_mean + rng.uniform(-0.2, 0.2, (networks, rounds))
    queue = np.zeros((networks, rounds + 1, limits))
    for t in range(rounds):
        queue[:, t + 1] = np.maximum(queue[:, t] + use[:, t] - 1.0, 0.0)
    effective = np.maximum(queue[:, :-1], [0.1, 0.0, 0.25])
    return {
        "latency": latency,
        "use": use,
        "queue": queue[:, :-1],
        "effective_queue": effective,
        "last_queue": queue[:, -1],
    }


def summary(*given):
    return summarise(bounds(*given))


def test_bounds_are_those_of_the_theorem_written_out():
    loop, other = made_up(0, 0.95, 1.0, networks=1), made_up(1, 0.8, 1.1, networks=1)
    gaps, v = np.array([0.1, 0.3]), 5.0
    got = summary(v, loop, [other], gaps)
    total = lifted = 0.0
    for t in range(400):
        queue, use, theirs = loop["queue"][0, t], loop["use"][0, t], other["use"][0, t]
        effective = loop["effective_queue"][0, t]
        total += 0.5 * ((use - 1) ** 2).sum() + 0.2 + (effective * theirs - queue).sum()
        total -= (effective - queue) @ use
        lifted += (effective - queue) @ (theirs - use) / 400
    total -= 0.5 * (loop["last_queue"][0] ** 2).sum()
    expected = other["latency"].mean() + total / 400 / v
    assert got["latency_bound"]["mean"] == pytest.approx(expected, rel=1e-9)
    slack = 1 - other["use"][0].mean(axis=0).max()
    drift = 0.5 * ((loop["use"][0] - 1) ** 2).sum(axis=1).mean()
    gained = v * (other["latency"].mean() - loop["latency"].mean())
    backlog = (drift + 0.2 + lifted + gained) / slack
    assert got["backlog_bound"]["mean"] == pytest.approx(backlog, rel=1e-9)
    assert got["sample_path_excess"] <= 1e-12


def test_a_solver_worse_than_it_says_is_found_out():
    """Decisions as slow as can be, at no gap: the bound by a fast comparison must break."""
    slow, fast = made_up(0, 0.9, 9.0), made_up(1, 0.9, 1.0)
    got = summary(100.0, slow, [fast], np.zeros(2))
    assert got["latency_holds"] == 0


def test_the_best_comparison_counts_and_one_without_slack_bounds_no_backlog():
    loop = made_up(0, 0.95, 1.0)
    near, far = made_up(1, 0.9, 1.05), made_up(2, 0.3, 3.0)
    tight = made_up(3, 1.0 + LEAST_SLACK, 1.0)
    both = summary(10.0, loop, [near, far], np.zeros(2))
    one = summary(10.0, loop, [far], np.zeros(2))
    assert both["latency_bound"]["mean"] < one["latency_bound"]["mean"]
    assert summary(10.0, loop, [tight], np.zeros(2))["with_slack"] == 0


@pytest.mark.slow
def test_problems_are_those_that_were_decided():
    params, rounds = tiny_params(), 4
    shown = []

    def policy(key, problem):
        jax.debug.callback(
            lambda queue: shown.append(np.asarray(queue)), problem.control.energy_queue
        )
        return make_policy("static_pipeline", 4)(key, problem)

    def run(of):
        return jax.jit(lambda key: of(reset(key, params), policy, rounds))(jax.random.key(3))

    run(simulate)
    jax.effects_barrier()
    queues = list(shown)
    met = run(observed_problems)
    np.testing.assert_array_equal(met.control.energy_queue, queues)
    assert len(np.unique(np.asarray(met.radio.d2e_gain)[:, 0, 0])) == rounds


def small(tmp_path, *more):
    """Arguments of a run on few, short loops."""
    sizes = ("--rounds=3", "--realisations=2", "--searched=2", "--config.policy.micro_batches=4")
    return ["--config=configs/stability.py", f"--workdir={tmp_path / 'run'}", *sizes, *more]


@pytest.mark.slow
def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch):
    """With a fast policy and search in place of the solver's."""
    decide = make_policy("static_pipeline", 4)
    monkeypatch.setattr(stability, "make_policy", lambda *_: decide)
    searched = []

    def gaps(keys, params, policy, rounds, count):
        searched.append(float(params.control.v))
        if len(searched) == 3:
            raise KeyboardInterrupt
        return np.full(count, 0.1)

    monkeypatch.setattr(stability, "solver_gaps", gaps)
    with pytest.raises(KeyboardInterrupt):
        stability.main(small(tmp_path))
    results = Results.open(tmp_path / "run", "stability")
    loops = sorted((tmp_path / "run" / "parts").glob("*_*.json"))
    loops = [path for path in loops if not path.name.startswith("gaps")]
    assert len(loops) == len(stability.V) + len(stability.PRICES)
    written = [path.stat().st_mtime_ns for path in loops]
    stability.main(small(tmp_path))
    assert searched == pytest.approx([*stability.V[:3], *stability.V[2:]])
    assert [path.stat().st_mtime_ns for path in loops] == written
    bounds_on_file = results.read("bounds")
    np.testing.assert_array_equal(bounds_on_file["v"], stability.V)
    report = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [row["v"] for row in report["v"]] == list(stability.V)
    latency = [row["latency"]["mean"] for row in report["v"]]
    np.testing.assert_allclose(latency, bounds_on_file["latency"].mean(axis=1))
    with pytest.raises(InputError, match="another configuration"):
        stability.main(small(tmp_path, "--rounds=7"))


def test_comparisons_see_one_price_and_loops_their_queues():
    seen, problem = [], jax.jit(sample_system)(jax.random.key(0), tiny_params()).mean_problem
    control = problem.control
    problem = problem.replace(
        control=control.replace(energy_queue=control.energy_queue + 2.0, divergence_queue=5.0)
    )
    decide = stability._at_constant_price(lambda key, problem: seen.append(problem.control))
    for price in (0.0, 0.7):
        decide(None, problem, price)
    loop, comparison = seen
    np.testing.assert_array_equal(loop.energy_queue, problem.control.energy_queue)
    assert float(loop.divergence_queue) == 5.0
    np.testing.assert_allclose(comparison.energy_queue, 0.7)
    assert float(comparison.divergence_queue) == pytest.approx(0.7)


@pytest.mark.parametrize("option", ["rounds", "realisations", "searched"])
def test_numbers_too_small_are_named(option, tmp_path):
    with pytest.raises(InputError, match=f"--{option}"):
        stability.main(small(tmp_path, f"--{option}=1"))


def test_bounds_are_drawn_where_there_are_any(tmp_path):
    rows = {}
    for v, other in ((1.0, made_up(1, 0.9, 1.05)), (10.0, made_up(3, 1.1, 1.0))):
        rows[v] = bounds(v, made_up(0, 0.95, 1.0), [other], np.zeros(2))
    stability.write_bounds(Results.create(tmp_path, "stability", {}, {}), rows)
    figure = stability_figure.draw(stability_figure.load(tmp_path))
    points = [len(line.get_xdata()) for axes in figure.axes for line in axes.lines[::3]]
    assert points == [2, 2, 1, 1]  # the second comparison bounds no backlog
    assert kind_of(tmp_path, KINDS | STUDIES) == "stability"
    assert stability.table({v: summarise(row) for v, row in rows.items()}).row_count == 2
