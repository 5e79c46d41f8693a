"""Bounds of docs/theory.md on made-up loops, and what policies were shown."""

import json

import jax
import numpy as np
import pytest
from support.tiny_system import tiny_params

import figures.all
from collapipe_jax.errors import InputError
from collapipe_jax.policies.registry import make_policy
from collapipe_jax.simulation.environment import problems_met, simulate
from experiments import stability
from experiments.stability import LEAST_SLACK, Loop, bounds
from figures import stability as stability_figure


def made_up(seed, use_mean, latency_mean, networks=5, rounds=400, limits=3):
    """A loop of independent rounds, its queues by (20)."""
    rng = np.random.default_rng(seed)
    use = use_mean + rng.uniform(-0.5, 0.5, (networks, rounds, limits))
    latency = latency_mean + rng.uniform(-0.2, 0.2, (networks, rounds))
    queue = np.zeros((networks, rounds + 1, limits))
    for t in range(rounds):
        queue[:, t + 1] = np.maximum(queue[:, t] + use[:, t] - 1.0, 0.0)
    shown = np.maximum(queue[:, :-1], [0.1, 0.0, 0.25])
    return Loop(latency, use, queue[:, :-1], shown, queue[:, -1])


def test_bounds_are_those_of_the_theorem_written_out():
    loop, other = made_up(0, 0.95, 1.0, networks=1), made_up(1, 0.8, 1.1, networks=1)
    gaps, v = np.array([0.1, 0.3]), 5.0
    got = bounds(v, loop, [other], gaps)
    total = lifted = 0.0
    for t in range(400):
        queue, use, theirs = loop.queue[0, t], loop.use[0, t], other.use[0, t]
        shown = loop.shown[0, t]
        total += 0.5 * ((use - 1) ** 2).sum() + 0.2 + (shown * theirs - queue).sum()
        total -= (shown - queue) @ use
        lifted += (shown - queue) @ (theirs - use) / 400
    total -= 0.5 * (loop.last_queue[0] ** 2).sum()
    expected = other.latency.mean() + total / 400 / v
    assert got["latency_bound"]["mean"] == pytest.approx(expected, rel=1e-9)
    slack = 1 - other.use[0].mean(axis=0).max()
    drift = 0.5 * ((loop.use[0] - 1) ** 2).sum(axis=1).mean()
    gained = v * (other.latency.mean() - loop.latency.mean())
    backlog = (drift + 0.2 + lifted + gained) / slack
    assert got["backlog_bound"]["mean"] == pytest.approx(backlog, rel=1e-9)
    assert got["sample_path_excess"] <= 1e-12


def test_a_solver_worse_than_it_says_is_found_out():
    """Decisions as slow as can be, at no gap: the bound by a fast comparison must break."""
    slow, fast = made_up(0, 0.9, 9.0), made_up(1, 0.9, 1.0)
    got = bounds(100.0, slow, [fast], np.zeros(2))
    assert got["latency_holds"] == 0


def test_the_best_comparison_counts_and_one_without_slack_bounds_no_backlog():
    loop = made_up(0, 0.95, 1.0)
    near, far = made_up(1, 0.9, 1.05), made_up(2, 0.3, 3.0)
    tight = made_up(3, 1.0 + LEAST_SLACK, 1.0)
    both = bounds(10.0, loop, [near, far], np.zeros(2))
    one = bounds(10.0, loop, [far], np.zeros(2))
    assert both["latency_bound"]["mean"] < one["latency_bound"]["mean"]
    assert bounds(10.0, loop, [tight], np.zeros(2))["with_slack"] == 0


def test_problems_are_those_that_were_decided():
    params, rounds = tiny_params(), 4
    shown = []

    def policy(key, problem):
        jax.debug.callback(
            lambda queue: shown.append(np.asarray(queue)), problem.control.energy_queue
        )
        return make_policy("static_pipeline", 4)(key, problem)

    def run(of):
        return jax.jit(lambda key: of(key, params, policy, rounds))(jax.random.key(3))

    run(simulate)
    jax.effects_barrier()
    queues = list(shown)
    met = run(problems_met)
    np.testing.assert_array_equal(met.control.energy_queue, queues)
    assert len(np.unique(np.asarray(met.radio.d2e_gain)[:, 0, 0])) == rounds


def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch):
    command = ["--config=configs/stability.py", f"--out={tmp_path / 'new' / 'out.json'}"]
    asked = []

    def rows(config, *, rounds, realisations, searched, done, console):
        asked.append(list(done))
        for v in stability.V:
            if v not in done:
                loop = made_up(0, 0.95, 1.0)
                yield {"v": v, **bounds(v, loop, [made_up(1, 0.9, 1.05)], np.zeros(2))}
                if len(asked) == 1:
                    raise KeyboardInterrupt

    monkeypatch.setattr(stability, "_missing_rows", rows)
    with pytest.raises(KeyboardInterrupt):
        stability.main(command)
    stability.main(command)
    assert asked == [[], [stability.V[0]]]
    report = json.loads((tmp_path / "new" / "out.json").read_text())
    assert [row["v"] for row in report["v"]] == list(stability.V)
    with pytest.raises(InputError, match="other settings"):
        stability.main([*command, "--rounds=7"])


@pytest.mark.parametrize("option", ["rounds", "realisations", "searched"])
def test_numbers_too_small_are_named(option, tmp_path):
    with pytest.raises(InputError, match=f"--{option}"):
        stability.main(
            ["--config=configs/stability.py", f"--out={tmp_path / 'out.json'}", f"--{option}=1"]
        )


def test_bounds_are_drawn_where_there_are_any(tmp_path):
    rows = []
    for v, other in ((1.0, made_up(1, 0.9, 1.05)), (10.0, made_up(3, 1.1, 1.0))):
        rows.append({"v": v, **bounds(v, made_up(0, 0.95, 1.0), [other], np.zeros(2))})
    (tmp_path / "stability.json").write_text(json.dumps({"v": rows}))
    figure = stability_figure.draw(stability_figure.load_rows(tmp_path))
    points = [len(line.get_xdata()) for axes in figure.axes for line in axes.lines[::3]]
    assert points == [2, 2, 1, 1]  # the second comparison bounds no backlog
    assert figures.all.kind_of(tmp_path) == "stability.json"
    assert stability.table(rows).row_count == 2
