import inspect

import jax
import numpy as np
import pytest
from support import ROOT
from support.random_problems import pick, random_problems, with_ends

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost.decision import ClientDecision, Decision
from collapipe_jax.edge.policies.registry import (
    _WHOLE_MODELS,
    POLICIES,
    RUN_POLICIES,
    PolicyEntry,
    make_policy,
)

CLIENT_POLICIES = [name for name, entry in POLICIES.items() if entry.by_clients]


def decided(name):
    """Shapes of a decision, of clients with equal shares and parts; nothing is compiled."""
    policy = make_policy(name, 3, shares="equal", split="even")
    assert list(inspect.signature(policy).parameters) == ["key", "problem"]
    problem = with_ends(pick(random_problems(1, 3, 4, 7), 0))
    return jax.eval_shape(policy, jax.random.key(0), problem)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_one_object_for_all_options_that_it_does_not_look_at(name):
    """So a sweep over Titanic's partitions compiles no other policy again."""
    assert make_policy(name, 4, 2) is make_policy(name, 4, 2)
    looks = {"titanic", "titanic_pipelined"}
    assert (make_policy(name, 4, 2) is make_policy(name, 4, 3)) == (name not in looks)
    fixed = {"titanic", "random", *CLIENT_POLICIES}
    assert (make_policy(name, 4, 2) is make_policy(name, 8, 2)) == (name in fixed)
    assert (make_policy(name) is make_policy(name, cut="best")) == (
        "cut" not in POLICIES[name].options
    )


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {*CLIENT_POLICIES, "dssra_offline"}))
def test_every_pipeline_policy_has_one_signature(name):
    decision = decided(name)
    assert isinstance(decision, Decision)
    numbers = {field: leaf for field, leaf in vars(decision).items() if field != "routes"}
    assert (decision.routes is not None) == (name == "dssra_wide")
    assert {field: leaf.shape for field, leaf in numbers.items()} == {
        "segments": (3, 4),
        "micro_batches": (3,),
        "d2d_share": (3, 5),
        "d2d_power_w": (3, 5),
        "d2e_share": (3,),
        "d2e_power_w": (3,),
    }
    assert decision.segments.dtype == decision.micro_batches.dtype == np.int32


@pytest.mark.parametrize("name", CLIENT_POLICIES)
def test_every_client_policy_has_one_signature(name):
    decision = decided(name)
    assert isinstance(decision, ClientDecision)
    clients = 1 if POLICIES[name].by_control_units else 4
    senders = 1 if name == "hierarchical_fl" else clients
    shapes = {field: np.shape(leaf) for field, leaf in vars(decision).items()}
    assert shapes == {
        "whole_model": (),
        "broadcast": (),
        "tier": (),
        "samples": (3, clients),
        "client_blocks": (),
        "accumulation": (3, clients),
        "micro_batches": (),
        "d2e_share": (3, senders),
        "d2e_power_w": (3, senders),
    }
    assert decision.samples.dtype == decision.client_blocks.dtype == np.int32


def test_the_number_of_micro_batches_reaches_the_static_pipeline():
    problem = pick(random_problems(1, 3, 4, 7), 0)
    counts = (2, 12)

    @jax.jit
    def decided(problem):
        policies = [make_policy("static_pipeline", count) for count in counts]
        return [policy(jax.random.key(0), problem).micro_batches for policy in policies]

    assert [found.tolist() for found in decided(problem)] == [[count] * 3 for count in counts]


def test_an_unknown_policy_is_named_with_the_known_ones():
    with pytest.raises(InputError, match=r"policy\.name") as caught:
        make_policy("no_such_policy")
    for name in ("no_such_policy", *POLICIES):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (PolicyEntry(lambda problem: None), "returned nothing. Return a Decision"),
        (PolicyEntry(POLICIES["control_unit_fl"].decide, _WHOLE_MODELS), "by_clients=True"),
        (
            PolicyEntry(lambda key, problem: None),
            r"takes \(key, problem\), and is given \(problem\)",
        ),
        (PolicyEntry(lambda problem: None, random=True), "given .key, problem.. Define decide"),
        (PolicyEntry(lambda problem: None, offline=True, by_clients=True), "both offline and by_"),
        (PolicyEntry(lambda problem: None, offline=True, random=True), "both offline and random"),
    ],
)
def test_a_wrong_policy_of_ones_own_is_named(entry, told, monkeypatch):
    monkeypatch.setitem(RUN_POLICIES, "mine", entry)
    with pytest.raises(InputError, match=told) as caught:
        decided("mine")
    assert caught.value.key == "policy.name"
    assert caught.value.value == "mine"


@pytest.mark.parametrize(("counts", "key"), [((0, 3), "micro_batches"), ((8, 0), "partitions")])
def test_counts_below_1_are_refused(counts, key):
    with pytest.raises(InputError, match=f"{key} = 0"):
        make_policy("titanic", *counts)


def test_every_policy_has_its_rule_on_the_page():
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    for name in POLICIES:
        assert f"| `{name}` |" in page
