"""Cost of data-parallel rounds against loops over the formulas, in double precision."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled
from support.client_pipeline import last_event_s
from support.compiled import evaluate, in_numpy, replica_links
from support.random_networks import random_network
from support.random_problems import ENDS, pick, random_problems, with_ends
from support.reference_links import hazard, spectral_efficiency
from support.structs import as_problem

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.cost import client_round
from collapipe_jax.edge.cost.decision import ClientDecision

client_model_bits = in_numpy(client_round.client_model_bits)


def _simple(policy, **options):
    """The policy with equal shares and parts, in NumPy: it compiles in a moment."""

    def decide(problem, **others):
        found = policy(problem, shares="equal", split="even", **options, **others)
        return jax.tree.map(np.array, found)

    return decide


vanilla_fl, control_unit_fl = _simple(compiled.vanilla_fl), _simple(compiled.control_unit_fl)
hierarchical_fl = _simple(compiled.hierarchical_fl)
splitfed = _simple(compiled.splitfed, client_micro_batches=1)


def reference(network, samples, client_blocks, share, power_w, whole_model, micro_batches=1):
    """Cost of a round by docs/system-model.md, section 6, one client after the other."""
    learning, shape = network["learning"], np.shape(samples)
    clients = sum(count > 0 for row in samples for count in row)
    present = [n for n, row in enumerate(samples) if sum(row) > 0]
    total_weight = sum(learning["cluster_weight"][n] for n in present)
    latency, computing, energy = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    memory, lost, divergence = np.zeros(shape), np.zeros(shape), 0.0
    for n in present:
        for k, own in enumerate(samples[n]):
            if own == 0:
                continue
            links, count = link_rates(network, n, k, share[n][k], power_w[n][k]), 1
            if not whole_model:
                count = min(micro_batches, own)
            size = own / count
            work = client_work(network, size, client_blocks, clients, whole_model)
            messages_s, air_bits, trip = step_messages(network, size, links, whole_model)
            times = client_times(network, n, k, work, links, messages_s, count)
            latency[n, k], computing[n, k] = times
            memory[n, k] = client_bytes(network, own, client_blocks, whole_model, count)
            power, work = power_w[n][k], (work[0], work[1] * count)
            energy[n, k] = client_energy_j(network, n, k, work, air_bits * count, power, links)
            lost[n, k] = -math.expm1(-trip)
            weight = (
                learning["cluster_weight"][n] / total_weight * own / network["workload"]["batch"]
            )
            divergence += weight**2 * bracket(learning, own, math.expm1(trip), count)
    return {
        "latency_s": latency.max(),
        "cluster_latency_s": latency.max(axis=1),
        "compute_latency_s": computing.max(),
        "energy_j": np.concatenate([np.zeros((shape[0], 1)), energy], axis=1),
        "memory_bytes": memory,
        "server_memory_bytes": server_bytes(
            network, samples, client_blocks, whole_model, micro_batches
        ),
        "loss_probability": lost,
        "divergence": divergence,
        "absent": [n not in present for n in range(shape[0])],
    }


def link_rates(network, n, k, share, power_w):
    """SINR and bits a second, of the uplink and then of the downlink."""
    radio = network["radio"]
    band, gain = radio["d2e_bandwidth_hz"], radio["d2e_gain"][n][k + 1]
    up_noise = band * radio["bs_noise_w_per_hz"] + radio["d2e_interference_w"]
    down_noise = band * radio["node_noise_w_per_hz"] + radio["downlink_interference_w"]
    x_up = power_w * gain / (share * up_noise)
    x_down = radio["bs_power_w"] * gain / down_noise
    up, down = (share * band * spectral_efficiency(radio, x) for x in (x_up, x_down))
    return x_up, up, x_down, down


def client_work(network, own, held, clients, whole_model):
    """Bits of the parameters; of a micro-batch the client's operations and overhead, the server."""
    work, compute = network["workload"], network["compute"]
    ratio, overhead_s = work["backward_ratio"], compute["block_overhead_s"]
    bits = held * work["block_param_bits"] + work["embedding_param_bits"]
    flops = own * (work["embed_flops"] + held * work["block_flops"]) * (1 + ratio)
    if whole_model:
        bits += ENDS["decoder_param_bits"]
        flops += own * work["decoder_flops"]
        return bits, flops, ((held + 1) * (1 + ratio) + 1) * overhead_s, 0.0
    rest = work["blocks"] - held
    behind = rest * work["block_flops"] * (1 + ratio) + work["decoder_flops"]
    server_s = clients * own * behind / compute["es_flops_per_s"]
    server_s += (rest * (1 + ratio) + 1) * overhead_s
    return bits, flops, (held + 1) * (1 + ratio) * overhead_s, server_s


def step_messages(network, own, links, whole_model):
    """Of a micro-batch: seconds of both messages, bits that the client sends, and their hazard."""
    if whole_model:
        return (0.0, 0.0), 0.0, 0.0
    work, radio = network["workload"], network["radio"]
    x_up, up, x_down, down = links
    sent = own * (work["activation_bits"] + work["target_bits"])
    back = own * work["activation_bits"]
    overhead_s = network["compute"]["link_overhead_s"]
    messages_s = sent / up + overhead_s, back / down + overhead_s
    trip = sent / radio["transport_block_bits"] * hazard(radio, x_up)
    trip += back / radio["transport_block_bits"] * hazard(radio, x_down)
    return messages_s, sent, trip


def client_times(network, n, k, work, links, messages_s, count):
    """Latency of a client's round, and its part of computing."""
    bits, flops, overhead_s, server_s = work
    _, up, _, down = links
    steps, speed = network["workload"]["local_steps"], network["compute"]["flops_per_s"][n][k + 1]
    ratio = network["workload"]["backward_ratio"]
    forward_s = (flops / speed + overhead_s) / (1 + ratio)
    step_s, computing_s = (
        last_event_s([(forward_s, sent_s, server_s, back_s, ratio * forward_s)] * count)
        for sent_s, back_s in (messages_s, (0.0, 0.0))
    )
    return bits / down + steps * step_s + bits / up, steps * computing_s


def client_bytes(network, own, held, whole_model, count):
    """Memory of a client for its part of a mini-batch."""
    work = network["workload"]
    total = held * (work["block_static_bytes"] + own * work["block_kept_bytes"])
    at_once = math.ceil(own / count)
    total += (held > 0) * at_once * work["block_working_bytes"] + ENDS["embedding_static_bytes"]
    return total + (ENDS["decoder_static_bytes"] if whole_model else 0.0)


def server_bytes(network, samples, held, whole_model, micro_batches):
    """Memory of the edge server for all clients, one after the other."""
    work, total = network["workload"], 0.0
    rest = work["blocks"] - held
    for own in np.ravel(samples):
        if own and not whole_model:
            at_once = math.ceil(own / min(own, micro_batches))
            total += rest * (work["block_static_bytes"] + at_once * work["block_kept_bytes"])
            total += (rest > 0) * at_once * work["block_working_bytes"]
            total += ENDS["decoder_static_bytes"]
    return total


def client_energy_j(network, n, k, work, air_bits, power_w, links):
    """Energy of computing and of sending."""
    bits, flops = work
    compute, steps = network["compute"], network["workload"]["local_steps"]
    speed = compute["flops_per_s"][n][k + 1]
    computing_j = steps * flops * compute["energy_coefficient"][n][k + 1] * speed**2
    drawn_w = power_w / network["radio"]["amplifier_efficiency"]
    return computing_j + drawn_w * (steps * air_bits + bits) / links[1]


def bracket(learning, own, excess, count):
    """Variance and heterogeneity of a client's gradient under losses."""
    variance = learning["gradient_variance"] * (1 + excess) / own
    return variance + 2 * learning["gradient_heterogeneity"] * excess / count


@pytest.mark.parametrize(("whole_model", "micro_batches"), [(True, 1), (False, 1), (False, 3)])
@pytest.mark.parametrize("seed", range(4))
def test_cost_is_that_of_the_formulas(x64, seed, whole_model, micro_batches):
    rng = np.random.default_rng(seed)
    network = random_network(rng, 3, 4, 5)
    samples = rng.integers(0, 2 + 2 * micro_batches, (3, 4))
    samples[seed % 3] = 0  # a cluster that nobody of is there
    samples[(seed + 1) % 3, 0] = 3
    share, power_w = rng.dirichlet(np.ones(12)).reshape(3, 4), rng.uniform(0.05, 0.2, (3, 4))
    held = 5 if whole_model else int(rng.integers(0, 3))
    expected = reference(network, samples, held, share, power_w, whole_model, micro_batches)
    decision = ClientDecision(
        samples=jnp.asarray(samples),
        client_blocks=jnp.asarray(held),
        d2e_share=jnp.asarray(share),
        d2e_power_w=jnp.asarray(power_w),
        whole_model=whole_model,
        micro_batches=jnp.asarray(micro_batches),
    )
    cost = evaluate(with_ends(as_problem(network)), decision)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(cost, name), value, rtol=1e-9, err_msg=name)
    np.testing.assert_allclose(sum(cost.parts), expected["cluster_latency_s"], rtol=1e-9)
    np.testing.assert_allclose(sum(cost.clients).max(axis=1), expected["cluster_latency_s"], 1e-9)


def test_a_client_without_power_breaks_its_cluster_alone(x64):
    problem = with_ends(pick(random_problems(1, 2, 3, 4), 0))
    decision = vanilla_fl(problem)
    decision.d2e_power_w[1, 2] = 0.0
    cost = evaluate(problem, decision)
    assert np.isfinite(cost.cluster_latency_s).tolist() == [True, False]
    assert np.all(np.isfinite(cost.energy_j[0]))
    assert np.all(np.isinf(cost.energy_j[1]))
    for value in (cost.latency_s, cost.divergence, cost.objective):
        assert np.isinf(value)


def test_a_client_without_share_breaks_its_cluster_alone(x64):
    problem = with_ends(pick(random_problems(1, 2, 3, 4), 0))
    decision = splitfed(problem)
    decision.d2e_share[0, 0] = 0.0
    cost = evaluate(problem, decision)
    assert np.isfinite(cost.cluster_latency_s).tolist() == [False, True]
    assert not np.any(np.isnan(np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(cost)])))


@pytest.mark.parametrize("policy", [vanilla_fl, splitfed])
def test_a_workload_without_its_ends_is_an_error(policy):
    problem = pick(random_problems(1, 2, 3, 4), 0)
    with pytest.raises(InputError, match=r"workload\.ends"):
        policy(problem)


def test_sitting_out_costs_nothing(x64):
    problem = with_ends(pick(random_problems(1, 2, 3, 4), 0))
    compute = problem.compute.replace(memory_bytes=np.zeros((2, 3)))
    for policy in (vanilla_fl, splitfed):
        cost = evaluate(problem, policy(problem.replace(compute=compute)))
        assert np.all(cost.absent)
        for value in (cost.latency_s, cost.divergence, cost.energy_j, cost.memory_bytes):
            assert np.all(value == 0.0)


def one_device(problem, node):
    """The network with one device a cluster, which has the numbers of a node."""
    radio, compute = problem.radio, problem.compute
    problem = jax.device_get(problem)
    pair, room = np.array([0, node]), np.full((problem.clusters, 1), 1e15)
    radio = radio.replace(
        d2e_gain=radio.d2e_gain[:, pair],
        d2d_gain=radio.d2d_gain[:, pair][:, :, pair],
        cross_gain=radio.cross_gain[:, pair][:, :, :, pair],
        d2d_power_max_w=radio.d2d_power_max_w[:, pair],
    )
    compute = compute.replace(
        flops_per_s=compute.flops_per_s[:, pair],
        joules_per_flop=compute.joules_per_flop[:, pair],
        memory_bytes=room,
    )
    control = problem.control.replace(
        energy_budget_j=problem.control.energy_budget_j[:, pair],
        energy_queue=problem.control.energy_queue[:, pair],
    )
    return problem.replace(radio=radio, compute=compute, control=control)


@pytest.mark.parametrize("whole_model", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_control_unit_is_a_client_with_the_whole_batch(whole_model, x64):
    problem = with_ends(pick(random_problems(1, 3, 4, 5), 0))
    alone, cut = one_device(problem, 0), {"cut": "2"}
    if whole_model:
        own, same = control_unit_fl(problem), vanilla_fl(alone)
    else:
        own, same = splitfed(problem, tier="control_units", **cut), splitfed(alone, **cut)
    cost, expected = evaluate(problem, own), evaluate(alone, same)
    for name in ("latency_s", "cluster_latency_s", "compute_latency_s", "divergence"):
        np.testing.assert_allclose(getattr(cost, name), getattr(expected, name), 1e-9, err_msg=name)
    np.testing.assert_allclose(cost.energy_j[:, 0], expected.energy_j[:, 1], rtol=1e-9)
    np.testing.assert_allclose(cost.control_unit_memory_bytes, expected.memory_bytes[:, 0])
    assert np.all(cost.energy_j[:, 1:] == 0.0)
    assert np.all(cost.memory_bytes == 0.0)


def test_one_device_a_cluster_is_its_control_unit_but_for_the_hop(x64):
    """Hierarchical averaging of one replica is none; (22) then has two D2D messages more."""
    network = random_network(np.random.default_rng(3), 3, 4, 5)
    problem = one_device(with_ends(as_problem(network)), 2)
    decision = hierarchical_fl(problem, accumulation=1)
    compute = problem.compute.replace(
        flops_per_s=problem.compute.flops_per_s[:, ::-1],
        joules_per_flop=problem.compute.joules_per_flop[:, ::-1],
    )
    swapped = problem.replace(compute=compute)
    same = control_unit_fl(swapped, accumulation=1).replace(d2e_share=decision.d2e_share)
    cost, expected = evaluate(problem, decision), evaluate(swapped, same)
    down_s, up_s, down_j, up_j = hop(network, 2)
    hop_s = down_s + up_s
    np.testing.assert_allclose(cost.cluster_latency_s - expected.cluster_latency_s, hop_s, 1e-7)
    np.testing.assert_allclose(cost.parts.distribute_s, down_s, rtol=1e-9)
    np.testing.assert_allclose(cost.parts.collect_s, up_s, rtol=1e-9)
    np.testing.assert_allclose(cost.energy_j.sum(axis=1) - expected.energy_j[:, 0], down_j + up_j)
    np.testing.assert_allclose(cost.divergence, expected.divergence, rtol=1e-12)


def hop(network, node):
    """Seconds and joules of a whole model from the control units to a device, and back."""
    radio, work = network["radio"], network["workload"]
    bits = work["blocks"] * work["block_param_bits"] + work["embedding_param_bits"]
    bits += ENDS["decoder_param_bits"]
    power, clusters = np.asarray(radio["d2d_power_max_w"]), len(radio["d2d_power_max_w"])
    found = []
    for n in range(clusters):
        times = []
        for sender, receiver in ((0, node), (node, 0)):
            disturbance = radio["d2d_bandwidth_hz"] * radio["node_noise_w_per_hz"]
            for other in set(range(clusters)) - {n}:
                for i in (0, node):
                    gain = radio["cross_gain"][other][i][n][receiver]
                    disturbance += radio["d2d_activity"] * power[other][i] * gain
            sinr = power[n][sender] * radio["d2d_gain"][n][sender][receiver] / disturbance
            rate = radio["d2d_bandwidth_hz"] * spectral_efficiency(radio, sinr)
            times.append(bits / rate)
        found.append((*times, times[0] * power[n][0], times[1] * power[n][node]))
    return np.array(found).T


def test_devices_of_a_cluster_send_replicas_in_turn_and_get_them_at_once(x64):
    """With several devices the slowest link sets the way down and all add up on the way back."""
    problem = with_ends(pick(random_problems(1, 2, 3, 4), 0))
    decision = hierarchical_fl(problem)
    links = replica_links(problem, decision)
    bits = float(client_model_bits(problem.workload, decision))
    at_once, in_turn = (evaluate(problem, decision.replace(broadcast=b)) for b in (True, False))
    down_s, up_s = bits * links.down_bit_s, bits * links.up_bit_s
    np.testing.assert_allclose(at_once.parts.distribute_s, down_s.max(axis=1))
    np.testing.assert_allclose(in_turn.parts.distribute_s, down_s.sum(axis=1))
    np.testing.assert_allclose(at_once.parts.collect_s, up_s.sum(axis=1))
    np.testing.assert_allclose(sum(at_once.parts), at_once.cluster_latency_s)


def test_a_broadcast_comes_at_the_rate_of_the_worst_on_the_whole_band(x64):
    problem = with_ends(pick(random_problems(1, 2, 3, 4), 0))
    decision = vanilla_fl(problem)
    cost = evaluate(problem, decision)
    one_by_one = evaluate(problem, decision.replace(broadcast=False))
    alone_s = one_by_one.clients.download_s * decision.d2e_share  # on the whole band
    np.testing.assert_allclose(cost.clients.download_s, np.max(alone_s), rtol=1e-9)
    np.testing.assert_allclose(cost.clients.upload_s, one_by_one.clients.upload_s)
