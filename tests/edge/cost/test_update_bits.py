"""Updates that are shorter on their way up than parameters are on their way down."""

import numpy as np
import pytest
from support.against_reference import base_case
from support.compiled import (
    control_unit_floor_j,
    decide,
    evaluate,
    least_latency_s,
    static_pipeline,
)
from support.random_problems import pick, plain_problems, with_ends
from support.structs import as_decision, as_problem

RATIO = 0.29


def shortened(problem, ratio=RATIO):
    workload = problem.workload.replace(update_ratio=np.asarray(ratio))
    return problem.replace(workload=workload)


@pytest.mark.usefixtures("x64")
def test_of_a_pipeline_collection_and_upload_alone_are_faster():
    network, decision = base_case()
    problem, decision = as_problem(network), as_decision(decision)
    before, after = (evaluate(each, decision) for each in (problem, shortened(problem)))
    for name in ("collect_s", "upload_s"):
        expected = RATIO * getattr(before.parts, name)
        np.testing.assert_allclose(getattr(after.parts, name), expected, rtol=1e-9)
    for name in ("download_s", "distribute_s", "iterations_s"):
        np.testing.assert_array_equal(getattr(after.parts, name), getattr(before.parts, name))
    assert np.all(after.energy_j <= before.energy_j)
    np.testing.assert_array_equal(after.divergence, before.divergence)


@pytest.mark.parametrize(
    "name", ["vanilla_fl", "splitfed", "selected_fl", "control_unit_fl", "hierarchical_fl"]
)
@pytest.mark.usefixtures("x64")
def test_of_clients_uploads_alone_are_faster_on_both_hops(name):
    problem = with_ends(as_problem(base_case()[0]))
    decision = decide(name, problem, shares="equal", split="even")
    before, after = (evaluate(each, decision) for each in (problem, shortened(problem)))
    np.testing.assert_allclose(after.clients.upload_s, RATIO * before.clients.upload_s, rtol=1e-9)
    np.testing.assert_allclose(after.parts.collect_s, RATIO * before.parts.collect_s, rtol=1e-9)
    for part in ("download_s", "computing_s", "messages_s"):
        np.testing.assert_array_equal(getattr(after.clients, part), getattr(before.clients, part))


def test_the_floor_of_a_control_unit_is_still_reached_at_vanishing_power():
    problem = shortened(pick(plain_problems(1, 1, 4, 7), 0), 0.05)
    best = int(np.argmax(np.asarray(problem.radio.d2d_gain)[0, 0, 1:]))
    used = np.isin(np.arange(5), [0, best + 1])[None]
    decision = static_pipeline(problem, 3).replace(
        segments=7 * used[:, 1:],
        d2d_share=used / 2,
        d2d_power_w=used * 1e-7,
        d2e_power_w=np.full(1, 1e-6),
    )
    spent = float(evaluate(problem, decision).energy_j[0, 0])
    assert spent == pytest.approx(float(control_unit_floor_j(problem)[0]), rel=0.01)


@pytest.mark.usefixtures("x64")
def test_the_shortest_round_foresees_it():
    plain = as_problem(base_case()[0])
    least_s = [float(least_latency_s(shortened(plain, ratio))) for ratio in (0.0, RATIO, 1.0)]
    assert least_s[0] < least_s[1] < least_s[2] == float(least_latency_s(plain))
