"""Who sits out a round of a policy that ignores the channel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled
from support.compiled import evaluate
from support.random_problems import pick, plain_problems, with_ends

from collapipe_jax.edge.policies.registry import POLICIES

BLIND = [name for name, entry in POLICIES.items() if "deadline" in entry.options]
CLIENTS = [name for name in BLIND if POLICIES[name].by_clients]
QUICK = "static_pipeline", "random", "vanilla_fl", "hierarchical_fl"


def blind(quick=QUICK, names=BLIND):
    """Policies that ignore the channel; those that are not quick decide as others do."""
    slow = pytest.mark.slow
    return [name if name in quick else pytest.param(name, marks=slow) for name in names]


def problem_with(gain=None, reference_s=1e6):
    """A network without outage by default, in which cluster 1 has another gain to the base."""
    problem = with_ends(pick(plain_problems(1, 3, 4, 6), 0))
    radio = problem.radio.replace(outage_threshold=jnp.asarray(1e-12))
    if gain is not None:
        radio = problem.radio.replace(d2e_gain=radio.d2e_gain.at[1].set(gain))
        radio = radio.replace(outage_threshold=jnp.asarray(1e-9))
    control = problem.control.replace(reference_latency_s=jnp.asarray(reference_s))
    return problem.replace(radio=radio, control=control)


def decide(problem, name, deadline):
    """With equal shares and parts and all clients, which compile in a moment."""
    options = {"shares": "equal", "split": "even", "clients": 4}
    return jax.device_get(compiled.decide(name, problem, deadline=deadline, **options))


def takes_part(decision):
    work = decision.samples if hasattr(decision, "samples") else decision.segments
    return np.any(np.asarray(work) > 0, axis=1)


def test_all_policies_but_those_that_optimise_have_a_deadline():
    assert set(POLICIES) - set(BLIND) == {
        "dssra",
        "dssra_wide",
        "dssra_offline",
        "greedy",
        "alternating",
    }


@pytest.mark.parametrize("name", blind(("vanilla_fl", "static_pipeline")))
def test_nobody_sits_out_good_links_in_time(name):
    problem = problem_with()
    plain, patient = decide(problem, name, 0.0), decide(problem, name, 1.0)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(patient), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("name", blind())
def test_a_cluster_in_outage_sits_out(name):
    problem = problem_with(gain=1e-30)
    decision = decide(problem, name, 1.0)
    assert takes_part(decision).tolist() == [True, False, True]
    cost = evaluate(problem, decision)
    assert np.asarray(cost.absent).tolist() == [False, True, False]
    assert np.isfinite(cost.latency_s)
    if name != "random":
        assert float(decision.d2e_share.sum()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", blind())
def test_past_the_deadline_the_fastest_alone_stays(name):
    problem = problem_with(reference_s=1e-6)
    decision = decide(problem, name, 1.0)
    assert takes_part(decision).sum() == 1
    if POLICIES[name].by_clients:
        assert int(np.sum(np.asarray(decision.samples) > 0)) == 1


@pytest.mark.parametrize("name", blind(names=CLIENTS))
def test_a_cluster_keeps_its_batch_when_clients_leave(name):
    problem = problem_with()
    if POLICIES[name].by_control_units:
        return
    gain = problem.radio.d2e_gain.at[0, 2].set(1e-30)
    inside = problem.radio.d2d_gain.at[0, 0, 2].set(1e-30).at[0, 2, 0].set(1e-30)
    radio = problem.radio.replace(d2e_gain=gain, d2d_gain=inside)
    problem = problem.replace(radio=radio.replace(outage_threshold=jnp.asarray(1e-9)))
    samples = np.asarray(decide(problem, name, 1.0).samples)
    assert samples[0, 1] == 0
    assert np.all(samples[0, [0, 2, 3]] > 0)
    assert np.all(samples.sum(axis=1) == int(problem.workload.batch))
