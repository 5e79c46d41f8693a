"""Random networks and decisions, as plain dictionaries with the keys of docs/file-formats.md."""

import numpy as np


def random_network(rng, clusters, devices, blocks, choices=(2, 3, 6, 12)) -> dict:
    """A network in which no two sizes agree, no gain is reciprocal and nothing is 1.

    Interference, losses, overheads and parameter transfers all weigh in the result.
    """

    def around(value, *shape, spread=2.0):
        return value * spread ** rng.uniform(-1, 1, shape)

    weight = rng.dirichlet(np.full(clusters, 4.0))
    return {
        "format": "collapipe-network/1",
        "clusters": clusters,
        "devices": devices,
        "workload": _workload(rng, around, blocks, choices),
        "radio": _radio(rng, around, clusters, devices + 1),
        "compute": _compute(around, clusters, devices),
        "learning": {
            "cluster_weight": weight,
            "gradient_variance": float(around(3.7)),
            "gradient_heterogeneity": float(around(0.47)),
        },
        "control": _control(around, clusters, devices + 1),
    }


def _workload(rng, around, blocks, choices):
    return {
        "blocks": blocks,
        "batch": 24,
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
        "update_ratio": 1.0,
        "block_static_bytes": float(around(3.1e7)),
        "block_kept_bytes": float(around(2.2e6)),
        "block_working_bytes": float(around(3.7e6)),
    }


def _radio(rng, around, clusters, nodes):
    return {
        "d2e_bandwidth_hz": 2.1e7,
        "d2d_bandwidth_hz": 1.3e7,
        "bs_noise_w_per_hz": 1.26e-20,
        "node_noise_w_per_hz": 3.2e-20,
        "d2e_interference_w": float(around(2e-13)),
        "downlink_interference_w": 7.3e-13,
        "d2d_activity": float(rng.uniform(0.2, 0.8)),
        "snr_gap": float(rng.uniform(1.3, 2.2)),
        "max_spectral_efficiency": float(rng.uniform(6.2, 7.4)),
        "bs_power_w": float(around(2.3)),
        "d2e_power_max_w": around(0.23, clusters, spread=1.4),
        "d2d_power_max_w": around(0.17, clusters, nodes, spread=1.4),
        "d2e_gain": around(4e-11, clusters, nodes, spread=3),
        "d2d_gain": around(2e-10, clusters, nodes, nodes, spread=6),
        "cross_gain": around(5e-13, clusters, nodes, clusters, nodes, spread=4),
        "amplifier_efficiency": 1.0,
        "outage_threshold": float(rng.uniform(0.7, 1.5)),
        "harq_attempts": 3,
        "transport_block_bits": 4.3e4,
    }


def _compute(around, clusters, devices):
    nodes = devices + 1
    return {
        "flops_per_s": around(3.3e11, clusters, nodes, spread=3),
        "energy_coefficient": around(4e-35, clusters, nodes),
        "memory_bytes": around(1.9e9, clusters, devices, spread=1.5),
        "es_flops_per_s": float(around(5.3e12)),
        "block_overhead_s": 1.7e-3,
        "link_overhead_s": 2.9e-3,
        "idle_power_w": 0.0,
        "receive_power_w": 0.0,
    }


def secure_section() -> dict:
    """Secure aggregation in which every term weighs in the result, to be added to a network."""
    return {
        "number_ratio": 1.9,
        "count_bits": 3.1e5,
        "secret_bits": 4.3e5,
        "dropout_probability": 0.23,
        "party_mask_bytes_per_s": 2.7e6,
        "server_mask_bytes_per_s": 8.3e6,
    }


def signalling_section() -> dict:
    return {"report_bits": 3e6, "grant_bits": 5e6}


def rows_section() -> dict:
    """Rows that travel, of a table that is a part of every random embedding."""
    return {
        "table_rows": 300.0,
        "row_bits": 5e3,
        "number_bits": 1.7e3,
        "samples": np.array([0.0, 1.0, 10.0, 24.0, 50.0, 96.0]),
        "rows_read": np.array([0.0, 20.0, 90.0, 150.0, 190.0, 210.0]),
    }


WHOLE_TABLE = {"rows_read": np.array([0.0, *[300.0] * 5]), "number_bits": 0.0}
"""Changes of :func:`rows_section` under which all rows travel, without their numbers."""


def _control(around, clusters, nodes):
    return {
        "v": float(around(7.9)),
        "reference_latency_s": float(around(23.0)),
        "energy_budget_j": around(31.0, clusters, nodes),
        "energy_queue": around(2.6, clusters, nodes, spread=3),
        "divergence_target": float(around(0.37)),
        "divergence_queue": float(around(1.9)),
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
