"""Secure aggregation in the cost of a round: bits, seconds and joules."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.against_reference import base_case
from support.compiled import (
    by_sender,
    client_links,
    control_unit_floor_j,
    decide,
    evaluate,
    least_latency_s,
    sends,
)
from support.random_networks import secure_section
from support.random_problems import with_ends
from support.structs import as_decision, as_problem

from collapipe_jax.edge.cost.problem import SecureExchange
from collapipe_jax.edge.cost.terms import secure_messages

NODE_POWER = ("flops_per_s", "joules_per_flop")


def secure_exchange(**changed):
    numbers = {name: jnp.asarray(each) for name, each in (secure_section() | changed).items()}
    return SecureExchange(**numbers)


def secure_case():
    network, decision = copy.deepcopy(base_case())
    network["secure_aggregation"] = secure_section()
    return network, decision


@pytest.mark.parametrize(
    ("users", "entries", "ring_bits", "expansion"),
    [
        (2**10, 2**20, 26, 1.73),
        (2**14, 2**20, 30, 3.62),
        (2**14, 2**24, 30, 1.98),
    ],
)
def test_expansions_are_those_of_bonawitz_et_al(users, entries, ring_bits, expansion):
    """Section 7 of the paper: inputs of 16 bits, keys and shares of 256, and no counts."""
    secure = secure_exchange(number_ratio=ring_bits / 16, count_bits=0.0, secret_bits=256.0)
    sent = secure_messages(secure, 16.0 * entries, jnp.asarray(float(users)))
    total = sent.upload_bits + sent.public_key_bits + sent.share_bits
    np.testing.assert_allclose(total / (16.0 * entries), expansion, atol=0.006)


@pytest.mark.usefixtures("x64")
def test_expected_masks_of_the_server_are_those_of_drawn_drop_outs():
    secure, parties, draws = secure_exchange(), 9, 200_000
    lost = float(secure.dropout_probability)
    arrived = np.random.default_rng(0).random((draws, parties)) >= lost
    stays = arrived.sum(1)
    masks = (stays + stays * (parties - stays)).mean()
    sent = secure_messages(secure, 0.0, jnp.asarray(float(parties)))
    mask_s = secure.count_bits / 8 / secure.server_mask_bytes_per_s
    np.testing.assert_allclose(sent.unmask_s / mask_s, masks, rtol=2e-3)


def client_problem():
    return with_ends(as_problem(base_case()[0]))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("vanilla_fl", marks=pytest.mark.slow),
        pytest.param("splitfed", marks=pytest.mark.slow),
        pytest.param("control_unit_fl", marks=pytest.mark.slow),
        "hierarchical_fl",
    ],
)
@pytest.mark.usefixtures("x64")
def test_clients_send_masked_models_to_the_base_station(name):
    """Every term by hand, at the shares of the round without secure aggregation."""
    plain, own = client_problem(), secure_section()
    plain, decision = jax.device_get((plain, decide(name, plain, shares="equal", split="even")))
    secure = plain.replace(secure_aggregation=secure_exchange())
    before, after = (evaluate(each, decision) for each in (plain, secure))
    work, links = plain.workload, client_links(plain, decision)
    bits = float(decision.client_blocks * work.block_param_bits + work.embedding_param_bits)
    bits += float(work.ends.decoder_param_bits) if decision.whole_model else 0.0
    trains, used = decision.samples > 0, sends(decision)
    parties, lost = int(used.sum()), own["dropout_probability"]
    masked_bits = own["number_ratio"] * bits + own["count_bits"]
    more_bits = masked_bits + 3 * parties * own["secret_bits"] - bits
    mask_s = parties * masked_bits / 8 / own["party_mask_bytes_per_s"]
    masks = parties * (1 - lost) + parties * (parties - 1) * lost * (1 - lost)
    unmask_s = masks * masked_bits / 8 / own["server_mask_bytes_per_s"]
    rest_s = 6 * plain.compute.link_overhead_s + mask_s + unmask_s
    more_s = np.where(trains, more_bits * links.uplink_bit_s + rest_s, 0.0)
    np.testing.assert_allclose(after.clients.upload_s - before.clients.upload_s, more_s, rtol=1e-9)
    # Public keys reach all at once, at the rate of the slowest, and shares each on its own.
    key_s = links.parameter_bit_s + links.downlink_bit_s
    more_s = np.where(trains, 2 * (parties - 1) * own["secret_bits"] * key_s, 0.0)
    found_s = after.clients.download_s - before.clients.download_s
    np.testing.assert_allclose(found_s, more_s, rtol=1e-9)
    speed, per_flop = (by_sender(getattr(plain.compute, field), decision) for field in NODE_POWER)
    drawn_w = decision.d2e_power_w / plain.radio.amplifier_efficiency
    more_j = drawn_w * more_bits * links.uplink_bit_s + mask_s * speed * per_flop
    found_j = by_sender(after.energy_j - before.energy_j, decision)
    np.testing.assert_allclose(found_j, np.where(used, more_j, 0.0), rtol=1e-9)


@pytest.mark.slow
def test_shares_of_clients_still_end_a_round_together():
    problem = client_problem().replace(secure_aggregation=secure_exchange())
    cost = evaluate(problem, decide("vanilla_fl", problem))
    latency_s = sum(cost.clients)
    np.testing.assert_allclose(latency_s, latency_s.max(), rtol=1e-3)


@pytest.mark.usefixtures("x64")
def test_floors_contain_what_every_decision_spends():
    network, decision = secure_case()
    problem, plain = as_problem(network), as_problem(base_case()[0])
    cost = evaluate(problem, as_decision(decision))
    assert (control_unit_floor_j(problem) < cost.energy_j[:, 0]).all()
    assert (control_unit_floor_j(problem) > control_unit_floor_j(plain)).all()
    assert least_latency_s(plain) < least_latency_s(problem) < cost.latency_s


@pytest.mark.slow
def test_decisions_see_the_price():
    """Each of two decisions is the better one under its own price."""
    plain = as_problem(base_case()[0])
    secure = plain.replace(secure_aggregation=secure_exchange())
    own, other = (decide("dssra", each) for each in (secure, plain))
    assert evaluate(secure, own).objective < evaluate(secure, other).objective
    assert evaluate(plain, other).objective < evaluate(plain, own).objective
