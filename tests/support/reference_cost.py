"""Slow, independent float64 cost of a round, written loop by loop from docs/system-model.md.

A network and a decision are plain dictionaries with the keys of docs/file-formats.md, holding
numbers and NumPy arrays. Nothing here uses the package.
"""

import math
from typing import NamedTuple

import numpy as np

from support.reference_links import active_chain, cluster_links, downlink, gateway, hazard, senders

TOLERANCE = 1e-4
NUMBERS = (
    "latency_s",
    "cluster_latency_s",
    "compute_latency_s",
    "energy_j",
    "divergence",
    "loss_probability",
    "memory_bytes",
    "server_memory_bytes",
    "objective",
)
"""Entries of a cost that are real numbers."""


# --- (8)-(16), (19): one cluster --------------------------------------------------------------


def flow(stages, micro_batches, others=()) -> float:
    """(11), with other times that the longest stage may not be under."""
    return sum(stages) + (micro_batches - 1) * max(*stages, *others)


def trip_hazard(network, decision, n, links) -> float:
    """(7)."""
    work, radio = network["workload"], network["radio"]
    per_micro = work["batch"] / decision["micro_batches"][n]
    blocks_of_activation = per_micro * work["activation_bits"] / radio["transport_block_bits"]
    total = 0.0
    for _, _, (_, forward_sinr), (_, backward_sinr) in links.hops:
        total += blocks_of_activation * hazard(radio, forward_sinr)
        total += blocks_of_activation * hazard(radio, backward_sinr)
    total += blocks_of_activation * hazard(radio, links.downlink[1])
    uplink_bits = work["activation_bits"] + work["target_bits"]
    uplink_blocks = per_micro * uplink_bits / radio["transport_block_bits"]
    return total + uplink_blocks * hazard(radio, links.uplink[1])


def device_memory_bytes(network, decision, n) -> list[float]:
    """(15), (26)."""
    work, segments = network["workload"], decision["segments"][n]
    count = decision["micro_batches"][n]
    per_micro, chain = work["batch"] / count, active_chain(segments)
    memory = [0.0] * network["devices"]
    for s, k in enumerate(chain):
        in_flight = count
        if work.get("schedule", "gpipe") == "1f1b":
            in_flight = min(count, 2 * (len(chain) - s) + 2)
        per_block = work["block_static_bytes"] + in_flight * per_micro * work["block_kept_bytes"]
        memory[k - 1] = segments[k - 1] * per_block + per_micro * work["block_working_bytes"]
    return memory


def server_memory_bytes(network, decision) -> float:
    """(53), of a pipeline whose decoder takes no room."""
    work, total = network["workload"], 0.0
    blocks = work.get("server_blocks", 0)
    for n in range(network["clusters"]):
        if blocks and active_chain(decision["segments"][n]):
            per_micro = work["batch"] / decision["micro_batches"][n]
            total += per_micro * blocks * work["block_kept_bytes"]
            total += per_micro * work["block_working_bytes"]
    return total + blocks * work["block_static_bytes"]


def computing_s(network, decision, n) -> tuple[float, dict[int, float], float]:
    """(8), (10), (45): forward times of embedding and active devices, both of the edge server."""
    work, compute = network["workload"], network["compute"]
    segments, speed = decision["segments"][n], compute["flops_per_s"][n]
    overhead = compute["block_overhead_s"]
    per_micro = work["batch"] / decision["micro_batches"][n]
    embed = per_micro * work["embed_flops"] / speed[0] + overhead
    on_device = {
        k: segments[k - 1] * (per_micro * work["block_flops"] / speed[k] + overhead)
        for k in active_chain(segments)
    }
    share_of_server = compute["es_flops_per_s"] / network["clusters"]
    passes = work.get("server_blocks", 0) * (1 + work["backward_ratio"])
    flops = work["decoder_flops"] + passes * work["block_flops"]
    serve = per_micro * flops / share_of_server + (1 + passes) * overhead
    return embed, on_device, serve


def cluster_blocks(work) -> int:
    """(46)."""
    return work["blocks"] - work.get("server_blocks", 0)


def computing_latency_s(network, decision, n) -> float:
    """Of all local steps, by the stages that compute alone."""
    embed, on_device, decode = computing_s(network, decision, n)
    ratio, count = network["workload"]["backward_ratio"], decision["micro_batches"][n]
    chain = list(on_device)
    forward = [embed] + [on_device[k] for k in chain] + [decode]
    backward = [ratio * on_device[k] for k in reversed(chain)] + [ratio * embed]
    return network["workload"]["local_steps"] * (flow(forward, count) + flow(backward, count))


def stages_s(network, decision, n, links) -> tuple[list[float], list[float]]:
    """(9), (10): stages of the forward and the backward flow."""
    work, delay = network["workload"], network["compute"]["link_overhead_s"]
    embed, on_device, decode = computing_s(network, decision, n)
    per_micro = work["batch"] / decision["micro_batches"][n]
    activation, target = work["activation_bits"], work["target_bits"]
    ratio = work["backward_ratio"]
    forward, backward = [embed], []
    forward += [per_micro * activation / rate + delay for _, _, (rate, _), _ in links.hops]
    forward += on_device.values()
    forward += [per_micro * (activation + target) / links.uplink[0] + delay, decode]
    backward.append(per_micro * activation / links.downlink[0] + delay)
    backward += [per_micro * activation / rate + delay for _, _, _, (rate, _) in links.hops]
    backward += [ratio * time for time in (*on_device.values(), embed)]
    return forward, backward


def relay_stages_s(network, decision, n, links) -> tuple[list[float], list[float]]:
    """(30): forward and backward times of what a node receives and sends; none if at once."""
    if network["radio"].get("duplex", "full") == "full":
        return [], []
    per_micro = network["workload"]["batch"] / decision["micro_batches"][n]
    bits = per_micro * network["workload"]["activation_bits"]
    delay = network["compute"]["link_overhead_s"]
    found = []
    for way in (2, 3):
        hop_s = [(hop[:2], bits / hop[way][0] + delay) for hop in links.hops]
        nodes = range(network["devices"] + 1)
        found.append([sum(time for ends, time in hop_s if i in ends) for i in nodes])
    return found[0], found[1]


class ModelTimes(NamedTuple):
    """Seconds that a cluster's parameters take on their way, by device or in all."""

    collect: dict[int, float]
    distribute: float
    up: float
    down: float


class SecureMessages(NamedTuple):
    """Bits of the masked model, and seconds besides of a party and of the server."""

    up: float
    shared: float  # down, the same for all parties
    own: float  # down, for one party
    mask_s: float
    rest_s: float


def secure_messages(network, decision) -> SecureMessages:
    """(38)-(41): of every cluster that takes part; in the clear its update goes up."""
    work, own = network["workload"], network.get("secure_aggregation")
    own_rows = embedding_bits(network, work["batch"])
    model_bits = cluster_blocks(work) * work["block_param_bits"] + own_rows
    if own is None:
        return SecureMessages(work.get("update_ratio", 1.0) * model_bits, model_bits, 0.0, 0.0, 0.0)
    parties = sum(bool(active_chain(row)) for row in decision["segments"])
    masked_bits = own["number_ratio"] * model_bits + own["count_bits"]
    secret, lost = own["secret_bits"], own["dropout_probability"]
    # Up: two public keys, two shares for every other party, and a share of every party.
    up = masked_bits + 2 * secret + 2 * (parties - 1) * secret + parties * secret
    # Down: two public keys and two shares of every other party.
    shared, own_shares = model_bits + 2 * (parties - 1) * secret, 2 * (parties - 1) * secret
    own_masks = parties * (1 - lost)
    pair_masks = parties * (parties - 1) * lost * (1 - lost)
    server_s = (own_masks + pair_masks) * masked_bits / 8 / own["server_mask_bytes_per_s"]
    rest_s = 6 * network["compute"]["link_overhead_s"] + server_s
    mask_s = parties * masked_bits / 8 / own["party_mask_bytes_per_s"]
    return SecureMessages(up, shared, own_shares, mask_s, rest_s)


class Signals(NamedTuple):
    """Bits of a node's report and grant, and of all nodes' through the gateway."""

    report: float
    grant: float
    up: float
    down: float


def signals(network, decision, n) -> Signals:
    """(43)."""
    own = network.get("signalling", {"report_bits": 0.0, "grant_bits": 0.0})
    nodes = len(senders(decision, n))
    report, grant = own["report_bits"], own["grant_bits"]
    return Signals(report, grant, nodes * report, nodes * grant)


def model_times_s(network, decision, n, links) -> ModelTimes:
    """(13), (38), (39), (43)."""
    own, secure = signals(network, decision, n), secure_messages(network, decision)
    collect, distribute = {}, 0.0
    for k, rate in links.collect.items():
        held = returned_bits(network, decision, n, k)
        collect[k] = (held + own.report) / rate
    for k, rate in links.distribute.items():
        distribute += (held_bits(network, decision, n, k) + own.grant) / rate
    batch = network["workload"]["batch"]
    up = (secure.up + own.up + request_bits(network, batch)) / links.uplink[0]
    down = (secure.own + own.down) / links.downlink[0]
    if is_broadcast(decision):
        takes_part = sum(bool(active_chain(row)) for row in decision["segments"])
        others = embedding_bits(network, takes_part * batch) - embedding_bits(network, batch)
        down += broadcast_s(network, decision, secure.shared + others)
    else:
        down += secure.shared / links.downlink[0]
    return ModelTimes(collect, distribute, up, down)


def held_bits(network, decision, n, node) -> float:
    """Parameters that a node hands over to its gateway and gets from there."""
    work = network["workload"]
    if node == 0:
        return embedding_bits(network, work["batch"])
    return decision["segments"][n][node - 1] * work["block_param_bits"]


def returned_bits(network, decision, n, node) -> float:
    """Updates that a node hands over to its gateway, and the targets of the round."""
    work = network["workload"]
    bits = work.get("update_ratio", 1.0) * held_bits(network, decision, n, node)
    if node == 0:
        bits += work["local_steps"] * work["batch"] * work["target_bits"]
        bits += request_bits(network, work["batch"])
    return bits


def rows_read(rows, samples) -> float:
    """(54)."""
    return float(np.interp(samples, rows["samples"], rows["rows_read"]))


def embedding_bits(network, samples) -> float:
    """(55)."""
    bits, rows = network["workload"]["embedding_param_bits"], network.get("embedding_rows")
    if rows is None:
        return bits
    return bits - (rows["table_rows"] - rows_read(rows, samples)) * rows["row_bits"]


def request_bits(network, samples) -> float:
    """(56)."""
    rows = network.get("embedding_rows")
    return 0.0 if rows is None else rows_read(rows, samples) * rows["number_bits"]


def is_broadcast(decision) -> bool:
    """Whether parameters come down by broadcast."""
    return decision.get("routes", {"broadcast": 0})["broadcast"] > 0


def broadcast_s(network, decision, bits) -> float:
    """Time of what all gateways receive at once, at the rate of the worst on the whole band."""
    takes_part = [n for n, row in enumerate(decision["segments"]) if active_chain(row)]
    whole_band = {**decision, "d2e_share": np.ones(network["clusters"])}
    rate = min(downlink(network, whole_band, n)[0] for n in takes_part)
    return bits / rate if rate > 0 else math.inf


def cluster_latency_s(network, decision, n, links) -> float:
    """(12), (14), (41)."""
    count = decision["micro_batches"][n]
    stages, relays = (
        stages_s(network, decision, n, links),
        relay_stages_s(network, decision, n, links),
    )
    iteration = sum(flow(own, count, both) for own, both in zip(stages, relays, strict=True))
    model_s = model_times_s(network, decision, n, links)
    moving_s = model_s.down + model_s.distribute + sum(model_s.collect.values()) + model_s.up
    secure = secure_messages(network, decision)
    moving_s += secure.mask_s + secure.rest_s
    return moving_s + network["workload"]["local_steps"] * iteration


def node_energies_j(network, decision, n, links) -> list[float]:
    """(16), (42)."""
    work, compute = network["workload"], network["compute"]
    coefficient, speed = compute["energy_coefficient"][n], compute["flops_per_s"][n]
    drawn = 1 / network["radio"].get("amplifier_efficiency", 1.0)
    power = [drawn * power_w for power_w in decision["d2d_power_w"][n]]
    segments = decision["segments"][n]
    steps, batch, passes = work["local_steps"], work["batch"], 1 + work["backward_ratio"]
    activation, target = work["activation_bits"], work["target_bits"]
    model_s = model_times_s(network, decision, n, links)
    energy = [0.0] * (network["devices"] + 1)
    for k in active_chain(segments):
        flops = steps * batch * segments[k - 1] * work["block_flops"] * passes
        energy[k] += flops * coefficient[k] * speed[k] ** 2
    for k, time in model_s.collect.items():
        energy[k] += power[k] * time
    flops = steps * batch * work["embed_flops"] * passes
    energy[0] += flops * coefficient[0] * speed[0] ** 2
    own = gateway(decision, n)
    energy[own] += power[own] * model_s.distribute
    for here, there, (forward_rate, _), (backward_rate, _) in links.hops:
        bits = steps * batch * activation
        energy[here] += power[here] * bits / forward_rate
        energy[there] += power[there] * bits / backward_rate
    sending = steps * batch * (activation + target) / links.uplink[0] + model_s.up
    energy[own] += drawn * decision["d2e_power_w"][n] * sending
    mask_s = secure_messages(network, decision).mask_s
    energy[own] += coefficient[own] * speed[own] ** 3 * mask_s
    add_received_energy(network, decision, n, links, energy)
    return energy


def add_received_energy(network, decision, n, links, energy):
    """(35)."""
    watt = network["compute"].get("receive_power_w", 0.0)
    work, steps = network["workload"], network["workload"]["local_steps"]
    bits = steps * work["batch"] * work["activation_bits"]
    for here, there, (forward_rate, _), (backward_rate, _) in links.hops:
        energy[there] += watt * bits / forward_rate
        energy[here] += watt * bits / backward_rate
    own, node = signals(network, decision, n), gateway(decision, n)
    for k in links.collect:
        moved = held_bits(network, decision, n, k)
        returned = returned_bits(network, decision, n, k)
        energy[node] += watt * (returned + own.report) / links.collect[k]
        energy[k] += watt * (moved + own.grant) / links.distribute[k]
    down_s = model_times_s(network, decision, n, links).down
    energy[node] += watt * (bits / links.downlink[0] + down_s)


def add_idle_energy(network, n, latency, energy):
    """(28)."""
    idle = network["compute"].get("idle_power_w", 0.0)
    for i in range(network["devices"] + 1):
        if idle > 0 and (i == 0 or network["compute"]["memory_bytes"][n][i - 1] > 0):
            energy[i] += idle * latency


def cluster_divergence(network, decision, n, hazard_of_trip) -> float:
    """(19), its weight left out."""
    learning = network["learning"]
    if hazard_of_trip <= 50:
        growth = math.exp(hazard_of_trip)
    else:
        growth = math.exp(50) * (hazard_of_trip - 49)
    sampling = learning["gradient_variance"] * growth / network["workload"]["batch"]
    erasure = 2 * learning["gradient_heterogeneity"] * (growth - 1) / decision["micro_batches"][n]
    return sampling + erasure


def cluster_cost(network, decision, n) -> dict:
    """Latency, energies, hazard and divergence of one cluster, weights left out."""
    nodes = network["devices"] + 1
    if not active_chain(decision["segments"][n]):
        return {
            "latency_s": 0.0,
            "compute_s": 0.0,
            "energy_j": [0.0] * nodes,
            "hazard": 0.0,
            "divergence": 0.0,
            "memory_bytes": [0.0] * (nodes - 1),
            "absent": True,
        }
    links = cluster_links(network, decision, n)
    lost = trip_hazard(network, decision, n, links)
    works = min(links.rates()) > 0
    return {
        "latency_s": cluster_latency_s(network, decision, n, links) if works else math.inf,
        "compute_s": computing_latency_s(network, decision, n),
        "energy_j": node_energies_j(network, decision, n, links) if works else [math.inf] * nodes,
        "hazard": lost,
        "divergence": cluster_divergence(network, decision, n, lost) if works else math.inf,
        "memory_bytes": device_memory_bytes(network, decision, n),
        "absent": False,
    }


# --- the round --------------------------------------------------------------------------------


def reference_cost(network, decision) -> dict:
    """The cost document without its verdict, with infinities in place of nulls."""
    clusters = range(network["clusters"])
    each = [cluster_cost(network, decision, n) for n in clusters]
    weight = network["learning"]["cluster_weight"]
    present = sum(weight[n] for n in clusters if not each[n]["absent"])
    divergence = 0.0
    for n in clusters:
        if not each[n]["absent"]:
            divergence += (weight[n] / present) ** 2 * each[n]["divergence"]
    latency = max(one["latency_s"] for one in each)
    for n in clusters:
        add_idle_energy(network, n, latency, each[n]["energy_j"])

    # (P2); a queue of zero cannot save a broken round
    control = network["control"]
    objective = control["v"] * latency / control["reference_latency_s"]
    if math.isinf(latency):
        objective = math.inf
    else:
        objective += control["divergence_queue"] * divergence / control["divergence_target"]
        for n in clusters:
            for i in range(network["devices"] + 1):
                used = each[n]["energy_j"][i] / control["energy_budget_j"][n][i]
                objective += control["energy_queue"][n][i] * used
    return {
        "latency_s": latency,
        "cluster_latency_s": np.array([one["latency_s"] for one in each]),
        "compute_latency_s": max(one["compute_s"] for one in each),
        "energy_j": np.array([one["energy_j"] for one in each]),
        "divergence": divergence,
        "loss_probability": np.array([-math.expm1(-one["hazard"]) for one in each]),
        "memory_bytes": np.array([one["memory_bytes"] for one in each]),
        "server_memory_bytes": server_memory_bytes(network, decision),
        "objective": objective,
        "absent": np.array([one["absent"] for one in each]),
    }


def could_run(network, n) -> bool:
    """Whether the devices of a cluster could hold the encoder for some micro-batches."""
    work = network["workload"]
    per_block = work["block_static_bytes"] + work["batch"] * work["block_kept_bytes"]
    for count in work["micro_batch_choices"]:
        working = work["batch"] / count * work["block_working_bytes"]
        held = 0
        for memory in network["compute"]["memory_bytes"][n]:
            blocks = 0
            room = memory * (1 + TOLERANCE)
            while (blocks + 1) * per_block + working <= room and held < cluster_blocks(work):
                blocks, held = blocks + 1, held + 1
        if held >= cluster_blocks(work):
            return True
    return False


def reference_violations(network, decision) -> set[str]:
    """Names of the constraints a decision violates."""
    work, radio, broken = network["workload"], network["radio"], set()
    memory = reference_cost(network, decision)["memory_bytes"]
    limit = network["compute"].get("es_memory_bytes", 0.0)
    if limit and server_memory_bytes(network, decision) > limit * (1 + TOLERANCE):
        broken.add("server_memory")
    if sum(decision["d2e_share"]) > 1 + TOLERANCE:
        broken.add("d2e_share")
    for n in range(network["clusters"]):
        row = decision["segments"][n]
        chain = active_chain(row)
        active, own = senders(decision, n), gateway(decision, n)
        hops = [i for i in ([0, *chain] if chain else []) if not (i == own == chain[-1])]
        if chain and own > 0 and network["compute"]["memory_bytes"][n][own - 1] == 0:
            broken.add("gateway")
        if sum(row) != cluster_blocks(work) and (chain or could_run(network, n)):
            broken.add("segments")
        if chain and decision["micro_batches"][n] not in list(work["micro_batch_choices"]):
            broken.add("micro_batches")
        limit, power = radio["d2e_power_max_w"][n] * (1 + TOLERANCE), decision["d2e_power_w"][n]
        if chain and not 0 < power <= limit:
            broken.add("d2e_power")
        if chain and decision["d2e_share"][n] <= 0:
            broken.add("d2e_share")
        if sum(decision["d2d_share"][n]) > 1 + TOLERANCE:
            broken.add("d2d_share")
        for i in range(network["devices"] + 1):
            if (i in hops) != (decision["d2d_share"][n][i] > 0):
                broken.add("d2d_share")
            limit = radio["d2d_power_max_w"][n][i] * (1 + TOLERANCE)
            if i in active and not 0 < decision["d2d_power_w"][n][i] <= limit:
                broken.add("d2d_power")
        for k in range(network["devices"]):
            if memory[n][k] > network["compute"]["memory_bytes"][n][k] * (1 + TOLERANCE):
                broken.add("memory")
    return broken
