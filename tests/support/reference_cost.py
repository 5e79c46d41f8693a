"""Slow, independent float64 cost of a round, written loop by loop from docs/system-model.md.

A network and a decision are plain dictionaries with the keys of docs/file-formats.md, holding
numbers and NumPy arrays. Nothing here uses the package but the two converters at the end.
"""

import math
from itertools import pairwise

import numpy as np
from scipy.special import exp1

TOLERANCE = 1e-4
NUMBERS = (
    "latency_s",
    "cluster_latency_s",
    "compute_latency_s",
    "energy_j",
    "divergence",
    "loss_probability",
    "memory_bytes",
    "objective",
)
"""Entries of a cost that are real numbers."""


# --- (1)-(7): the air -------------------------------------------------------------------------


def active_chain(segments_row) -> list[int]:
    """Active devices of a cluster, in index order, counted from 1."""
    return [k + 1 for k, blocks in enumerate(segments_row) if blocks > 0]


def interference_w(network, decision, n, j) -> float:
    """(1)."""
    total = 0.0
    for other in range(network["clusters"]):
        chain = active_chain(decision["segments"][other])
        if other == n or not chain:
            continue
        for i in [0, *chain]:
            gain = network["radio"]["cross_gain"][other][i][n][j]
            total += decision["d2d_power_w"][other][i] * gain
    return network["radio"]["d2d_activity"] * total


def spectral_efficiency(radio, sinr) -> float:
    """(2), or its mean over Rayleigh fading."""
    x = sinr / radio["snr_gap"]
    nats = math.log1p(x)
    if radio.get("rate_law") == "ergodic" and x > 0:
        nats = math.exp(1 / x) * exp1(1 / x)
    return min(nats / math.log(2), radio["max_spectral_efficiency"])


def d2d_link(network, decision, n, i, j, share) -> tuple[float, float]:
    """(3): rate and SINR from node i to node j."""
    radio = network["radio"]
    if share == 0:
        return 0.0, 0.0
    band = radio["d2d_bandwidth_hz"]
    noise = band * radio["node_noise_w_per_hz"] + interference_w(network, decision, n, j)
    sinr = decision["d2d_power_w"][n][i] * radio["d2d_gain"][n][i][j] / (share * noise)
    return share * band * spectral_efficiency(radio, sinr), sinr


def uplink(network, decision, n) -> tuple[float, float]:
    """(4)."""
    radio, share = network["radio"], decision["d2e_share"][n]
    if share == 0:
        return 0.0, 0.0
    band = radio["d2e_bandwidth_hz"]
    noise = band * radio["bs_noise_w_per_hz"] + radio["d2e_interference_w"]
    sinr = decision["d2e_power_w"][n] * radio["d2e_gain"][n][0] / (share * noise)
    return share * band * spectral_efficiency(radio, sinr), sinr


def downlink(network, decision, n) -> tuple[float, float]:
    """(5)."""
    radio, share = network["radio"], decision["d2e_share"][n]
    band = radio["d2e_bandwidth_hz"]
    noise = band * radio["node_noise_w_per_hz"] + radio["d2e_interference_w"]
    sinr = radio["bs_power_w"] * radio["d2e_gain"][n][0] / noise
    return share * band * spectral_efficiency(radio, sinr), sinr


def hazard(radio, sinr) -> float:
    """(6), for one transport block."""
    if sinr == 0:
        return math.inf
    if radio["outage_threshold"] == 0:
        return 0.0
    z, attempts = radio["outage_threshold"] / sinr, radio["harq_attempts"]
    if z > 30:
        return z - math.log(attempts)
    if z < math.log(2):
        all_lost = math.exp(attempts * math.log(-math.expm1(-z)))
        return -math.log1p(-all_lost)
    log_all_lost = attempts * math.log1p(-math.exp(-z))
    return -math.log(-math.expm1(log_all_lost))


# --- (8)-(16), (19): one cluster --------------------------------------------------------------


def flow(stages, micro_batches) -> float:
    """(11)."""
    return sum(stages) + (micro_batches - 1) * max(stages)


def cluster_cost(network, decision, n) -> dict:
    """Latency, energies, hazard and divergence of one cluster, weights left out."""
    nodes = network["devices"] + 1
    work, radio, compute = network["workload"], network["radio"], network["compute"]
    segments = decision["segments"][n]
    chain = active_chain(segments)
    silent = {
        "latency_s": 0.0,
        "compute_s": 0.0,
        "energy_j": [0.0] * nodes,
        "hazard": 0.0,
        "divergence": 0.0,
        "memory_bytes": [0.0] * (nodes - 1),
        "absent": True,
    }
    if not chain:
        return silent
    count = decision["micro_batches"][n]
    batch = work["batch"]
    per_micro = batch / count
    steps, ratio = work["local_steps"], work["backward_ratio"]
    speed, overhead = compute["flops_per_s"][n], compute["block_overhead_s"]
    activation, target = work["activation_bits"], work["target_bits"]

    # Every message of a trip: who sends it, its rate and its SINR.
    route = [0, *chain, 0]
    hops = []
    for here, there in pairwise(route):
        share = decision["d2d_share"][n][here]
        forward = d2d_link(network, decision, n, here, there, share)
        backward = d2d_link(network, decision, n, there, here, share)
        hops.append((here, there, forward, backward))
    up_rate, up_sinr = uplink(network, decision, n)
    down_rate, down_sinr = downlink(network, decision, n)
    collect = {k: d2d_link(network, decision, n, k, 0, 1.0)[0] for k in chain}
    distribute = {k: d2d_link(network, decision, n, 0, k, 1.0)[0] for k in chain}

    # (7)
    blocks_of_activation = per_micro * activation / radio["transport_block_bits"]
    trip_hazard = 0.0
    for _, _, (_, forward_sinr), (_, backward_sinr) in hops:
        trip_hazard += blocks_of_activation * hazard(radio, forward_sinr)
        trip_hazard += blocks_of_activation * hazard(radio, backward_sinr)
    trip_hazard += blocks_of_activation * hazard(radio, down_sinr)
    uplink_blocks = per_micro * (activation + target) / radio["transport_block_bits"]
    trip_hazard += uplink_blocks * hazard(radio, up_sinr)

    # (15)
    memory = [0.0] * (nodes - 1)
    for k in chain:
        per_block = work["block_static_bytes"] + batch * work["block_kept_bytes"]
        memory[k - 1] = segments[k - 1] * per_block + per_micro * work["block_working_bytes"]

    # (8), (10), compute stages
    embed = per_micro * work["embed_flops"] / speed[0] + overhead
    share_of_server = compute["es_flops_per_s"] / network["clusters"]
    decode = per_micro * work["decoder_flops"] / share_of_server + overhead
    on_device = {
        k: segments[k - 1] * (per_micro * work["block_flops"] / speed[k] + overhead) for k in chain
    }
    compute_forward = [embed] + [on_device[k] for k in chain] + [decode]
    compute_backward = [ratio * on_device[k] for k in reversed(chain)] + [ratio * embed]
    compute_s = steps * (flow(compute_forward, count) + flow(compute_backward, count))

    result = silent | {
        "memory_bytes": memory,
        "compute_s": compute_s,
        "hazard": trip_hazard,
        "absent": False,
    }
    rates = [up_rate, down_rate, *collect.values(), *distribute.values()]
    rates += [rate for hop in hops for rate, _ in hop[2:]]
    if min(rates) == 0:
        return result | {
            "latency_s": math.inf,
            "energy_j": [math.inf] * nodes,
            "divergence": math.inf,
        }

    # (9), (12)
    delay = compute["link_overhead_s"]
    forward_stages, backward_stages = [embed], []
    for _, there, (rate, _), _ in hops:
        forward_stages.append(per_micro * activation / rate + delay)
        if there != 0:
            forward_stages.append(on_device[there])
    forward_stages += [per_micro * (activation + target) / up_rate + delay, decode]
    backward_stages.append(per_micro * activation / down_rate + delay)
    for here, _, _, (rate, _) in reversed(hops):
        backward_stages.append(per_micro * activation / rate + delay)
        backward_stages.append(ratio * (on_device[here] if here != 0 else embed))
    iteration = flow(forward_stages, count) + flow(backward_stages, count)

    # (13), (14)
    block_bits = work["block_param_bits"]
    model_bits = work["blocks"] * block_bits + work["embedding_param_bits"]
    collect_s = {k: segments[k - 1] * block_bits / collect[k] for k in chain}
    distribute_s = sum(segments[k - 1] * block_bits / distribute[k] for k in chain)
    up_s, down_s = model_bits / up_rate, model_bits / down_rate
    latency = down_s + distribute_s + steps * iteration + sum(collect_s.values()) + up_s

    # (16)
    energy = [0.0] * nodes
    coefficient, power = compute["energy_coefficient"][n], decision["d2d_power_w"][n]
    for k in chain:
        flops = steps * batch * segments[k - 1] * work["block_flops"] * (1 + ratio)
        energy[k] += flops * coefficient[k] * speed[k] ** 2 + power[k] * collect_s[k]
    flops = steps * batch * work["embed_flops"] * (1 + ratio)
    energy[0] += flops * coefficient[0] * speed[0] ** 2 + power[0] * distribute_s
    for here, there, (forward_rate, _), (backward_rate, _) in hops:
        bits = steps * count * per_micro * activation
        energy[here] += power[here] * bits / forward_rate
        energy[there] += power[there] * bits / backward_rate
    sending = steps * count * per_micro * (activation + target) / up_rate + up_s
    energy[0] += decision["d2e_power_w"][n] * sending

    # (19)
    growth = math.exp(trip_hazard) if trip_hazard <= 50 else math.exp(50) * (trip_hazard - 49)
    learning = network["learning"]
    divergence = learning["gradient_variance"] * growth / batch
    divergence += 2 * learning["gradient_heterogeneity"] * (growth - 1) / count
    return result | {"latency_s": latency, "energy_j": energy, "divergence": divergence}


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
            while (blocks + 1) * per_block + working <= room and held < work["blocks"]:
                blocks, held = blocks + 1, held + 1
        if held >= work["blocks"]:
            return True
    return False


def reference_violations(network, decision) -> set[str]:
    """Names of the constraints a decision violates."""
    work, radio, broken = network["workload"], network["radio"], set()
    memory = reference_cost(network, decision)["memory_bytes"]
    if sum(decision["d2e_share"]) > 1 + TOLERANCE:
        broken.add("d2e_share")
    for n in range(network["clusters"]):
        row = decision["segments"][n]
        chain = active_chain(row)
        active = [0, *chain] if chain else []
        if sum(row) != work["blocks"] and (chain or could_run(network, n)):
            broken.add("segments")
        if chain and decision["micro_batches"][n] not in list(work["micro_batch_choices"]):
            broken.add("micro_batches")
        if chain and decision["d2e_power_w"][n] > radio["d2e_power_max_w"][n] * (1 + TOLERANCE):
            broken.add("d2e_power")
        if sum(decision["d2d_share"][n]) > 1 + TOLERANCE:
            broken.add("d2d_share")
        for i in range(network["devices"] + 1):
            if i not in active and decision["d2d_share"][n][i] > 0:
                broken.add("d2d_share")
            limit = radio["d2d_power_max_w"][n][i] * (1 + TOLERANCE)
            if i in active and decision["d2d_power_w"][n][i] > limit:
                broken.add("d2d_power")
        for k in range(network["devices"]):
            if memory[n][k] > network["compute"]["memory_bytes"][n][k] * (1 + TOLERANCE):
                broken.add("memory")
    return broken


# --- random cases -----------------------------------------------------------------------------


def random_network(rng, clusters, devices, blocks, choices=(2, 3, 6, 12)) -> dict:
    """A network in which no two sizes agree, no gain is reciprocal and nothing is 1.

    Interference, losses, overheads and parameter transfers all weigh in the result.
    """
    nodes = devices + 1

    def around(value, *shape, spread=2.0):
        return value * spread ** rng.uniform(-1, 1, shape)

    batch = 24
    weight = rng.dirichlet(np.full(clusters, 4.0))
    return {
        "format": "collapipe-network/1",
        "clusters": clusters,
        "devices": devices,
        "workload": {
            "blocks": blocks,
            "batch": batch,
            "local_steps": 3,
            "micro_batch_choices": list(choices),
            "block_flops": float(around(8.1e8)),
            "embed_flops": float(around(9.3e7)),
            "decoder_flops": float(around(2.7e9)),
            "backward_ratio": float(rng.uniform(1.7, 3.1)),
            "activation_bits": float(around(2.3e5)),
            "target_bits": float(around(3.9e4)),
            "block_param_bits": float(around(1.9e6)),
            "embedding_param_bits": float(around(4.7e6)),
            "block_static_bytes": float(around(3.1e7)),
            "block_kept_bytes": float(around(2.2e6)),
            "block_working_bytes": float(around(3.7e6)),
        },
        "radio": {
            "d2e_bandwidth_hz": 2.1e7,
            "d2d_bandwidth_hz": 1.3e7,
            "bs_noise_w_per_hz": 1.26e-20,
            "node_noise_w_per_hz": 3.2e-20,
            "d2e_interference_w": float(around(2e-13)),
            "d2d_activity": float(rng.uniform(0.2, 0.8)),
            "snr_gap": float(rng.uniform(1.3, 2.2)),
            "max_spectral_efficiency": float(rng.uniform(6.2, 7.4)),
            "bs_power_w": float(around(2.3)),
            "d2e_power_max_w": around(0.23, clusters, spread=1.4),
            "d2d_power_max_w": around(0.17, clusters, nodes, spread=1.4),
            "d2e_gain": around(4e-11, clusters, nodes, spread=3),
            "d2d_gain": around(2e-10, clusters, nodes, nodes, spread=6),
            "cross_gain": around(5e-13, clusters, nodes, clusters, nodes, spread=4),
            "outage_threshold": float(rng.uniform(0.7, 1.5)),
            "harq_attempts": 3,
            "transport_block_bits": 4.3e4,
        },
        "compute": {
            "flops_per_s": around(3.3e11, clusters, nodes, spread=3),
            "energy_coefficient": around(4e-35, clusters, nodes),
            "memory_bytes": around(1.9e9, clusters, devices, spread=1.5),
            "es_flops_per_s": float(around(5.3e12)),
            "block_overhead_s": 1.7e-3,
            "link_overhead_s": 2.9e-3,
        },
        "learning": {
            "cluster_weight": weight,
            "gradient_variance": float(around(3.7)),
            "gradient_heterogeneity": float(around(0.47)),
        },
        "control": {
            "v": float(around(7.9)),
            "reference_latency_s": float(around(23.0)),
            "energy_budget_j": around(31.0, clusters, nodes),
            "energy_queue": around(2.6, clusters, nodes, spread=3),
            "divergence_target": float(around(0.37)),
            "divergence_queue": float(around(1.9)),
        },
    }


def random_decision(rng, network, sitting_out=(), skipped=0) -> dict:
    """A decision within all bounds but perhaps memory, with devices skipped at random."""
    clusters, devices = network["clusters"], network["devices"]
    blocks = network["workload"]["blocks"]
    segments = np.zeros((clusters, devices), int)
    share = np.zeros((clusters, devices + 1))
    for n in range(clusters):
        if n in sitting_out:
            continue
        used = np.sort(rng.permutation(devices)[: devices - skipped])
        cuts = np.sort(rng.choice(np.arange(1, blocks), len(used) - 1, replace=False))
        segments[n, used] = np.diff([0, *cuts, blocks])
        share[n, [0, *(used + 1)]] = rng.dirichlet(np.full(len(used) + 1, 3.0))
    radio = network["radio"]
    return {
        "format": "collapipe-decision/1",
        "policy": "random",
        "segments": segments,
        "micro_batches": rng.choice(network["workload"]["micro_batch_choices"], clusters),
        "d2d_share": share,
        "d2d_power_w": radio["d2d_power_max_w"] * rng.uniform(0.3, 0.9, share.shape),
        "d2e_share": rng.dirichlet(np.full(clusters, 3.0)),
        "d2e_power_w": radio["d2e_power_max_w"] * rng.uniform(0.3, 0.9, clusters),
    }


# --- into the package's structs ---------------------------------------------------------------


def as_problem(network):
    """The package's problem, in the precision that is switched on."""
    # Imported here: the reference itself must not lean on what it checks.
    import jax.numpy as jnp

    from collapipe_jax.cost.divergence import Learning
    from collapipe_jax.cost.problem import Control, RoundProblem
    from collapipe_jax.cost.workload import Workload
    from collapipe_jax.network.channel import Radio
    from collapipe_jax.network.devices import Compute

    def arrays(section, *left_out):
        kept = {key: value for key, value in network[section].items() if key not in left_out}
        return {key: jnp.asarray(np.asarray(value)) for key, value in kept.items()}

    compute = network["compute"]
    speed = np.asarray(compute["flops_per_s"], float)
    joules_per_flop = np.asarray(compute["energy_coefficient"], float) * speed**2
    return RoundProblem(
        workload=Workload(blocks=network["workload"]["blocks"], **arrays("workload", "blocks")),
        radio=Radio(
            **arrays("radio", "rate_law"), rate_law=network["radio"].get("rate_law", "mean")
        ),
        compute=Compute(
            **arrays("compute", "energy_coefficient"), joules_per_flop=jnp.asarray(joules_per_flop)
        ),
        learning=Learning(**arrays("learning")),
        control=Control(**arrays("control")),
    )


def as_decision(decision):
    """The package's decision, in the precision that is switched on."""
    import jax.numpy as jnp

    from collapipe_jax.cost.decision import Decision

    names = [key for key in decision if key not in ("format", "policy")]
    return Decision(**{key: jnp.asarray(np.asarray(decision[key])) for key in names})
