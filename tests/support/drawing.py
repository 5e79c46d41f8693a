"""Made-up training runs for figures, and checks that hold for any figure."""

import re

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import FixedLocator

from collapipe_jax.runs.results.checkpoints import RunRecord

CLUSTERS, DEVICES = 3, 4


def flow_s(stages, micro_batches):
    return stages.sum(axis=-1) + (micro_batches - 1) * stages.max(axis=-1)


def stage_flows(rng, segments, micro_batches):
    """Random stage times of one cluster, zero where a device is skipped or all sit out."""
    active = np.concatenate([[segments.any()], segments > 0])
    blocks = np.concatenate([[1], segments])
    nodes = active * blocks * rng.uniform(0.02, 0.1, active.size)
    hops = active * rng.uniform(0.01, 0.12, active.size)
    turn = active[0] * rng.uniform(0.02, 0.2, 3)
    forward = np.append(np.stack([nodes, hops], 1), turn[:2])
    backward = np.append(turn[2], np.stack([2 * nodes, 1.1 * hops], 1).ravel()[::-1])
    return forward / micro_batches, backward / micro_batches


def queue_of(ratio):
    backlog, states = np.zeros(ratio.shape[1:]), []
    for row in ratio:
        backlog = np.maximum(backlog + row - 1, 0)
        states.append(backlog)
    return np.stack(states)


def make_record(
    policy="dssra",
    rounds=12,
    *,
    micro_batches=8,
    absent=True,
    evaluated=3,
    local_steps=5,
    pipeline=True,
    load=1.0,
    seed=0,
):
    """A run of random numbers that keep the relations of a real one."""
    rng = np.random.default_rng(seed)
    shape = (rounds, CLUSTERS)
    segments = rng.multinomial(8, [0.4, 0.0, 0.35, 0.25], size=shape)
    micro = np.full(shape, micro_batches)
    if absent:
        segments[:: max(1, rounds // 3), 1] = 0
    present = segments.any(-1)
    flows = [stage_flows(rng, segments[at], micro[at]) for at in np.ndindex(shape)]
    forward = np.stack([flow[0] for flow in flows]).reshape(*shape, -1)
    backward = np.stack([flow[1] for flow in flows]).reshape(*shape, -1)
    parts = rng.uniform(0.5, 1.5, (*shape, 5)) * [0.4, 0.2, 6.0, 0.1, 0.9] * load
    if pipeline:
        parts[..., 2] = local_steps * (flow_s(forward, micro) + flow_s(backward, micro))
    else:
        forward, backward = 0 * forward, 0 * backward
        parts[..., [1, 3]] = 0
    parts *= present[..., None]
    cluster_latency = parts.sum(-1)
    budget = rng.uniform(5, 20, (CLUSTERS, DEVICES + 1))
    energy = load * budget * rng.lognormal(0, 0.4, (*shape, DEVICES + 1)) * present[..., None]
    divergence = rng.lognormal(0, 0.3, rounds)
    progress_made = 1 - np.exp(-(np.arange(rounds) + 1) / 6)
    is_evaluated = np.zeros(rounds, bool)
    if evaluated:
        is_evaluated[evaluated - 1 :: evaluated] = True
    return RunRecord(
        config={"seed": seed, "task": {"kind": "translation"}, "policy": {"name": policy}},
        constants={
            "energy_budget_j": budget,
            "divergence_target": np.asarray(1.1),
            "memory_limit_bytes": np.full((CLUSTERS, DEVICES), 4e9),
            "baseline_score": np.asarray(3.2),
        },
        history={
            "round": np.arange(1, rounds + 1),
            "latency_s": cluster_latency.max(-1),
            "simulated_time_s": np.cumsum(cluster_latency.max(-1)),
            "compute_latency_s": 0.5 * cluster_latency.max(-1),
            "cluster_latency_s": cluster_latency,
            "parts_s": parts,
            "energy_j": energy,
            "energy_queue": queue_of(energy / budget),
            "divergence": divergence,
            "divergence_queue": queue_of(divergence / 1.1),
            "loss_probability": rng.uniform(0, 0.1, shape),
            "memory_bytes": 1e8 * segments,
            "segments": segments,
            "micro_batches": micro,
            "absent": ~present,
            "forward_flow_s": forward,
            "backward_flow_s": backward,
            "train_loss": 6 - 4 * progress_made + rng.normal(0, 0.15, rounds),
            "erased_fraction": rng.uniform(0, 0.1, rounds),
            "validation_loss": np.where(is_evaluated, 6.1 - 3.8 * progress_made, np.nan),
            "score": np.where(is_evaluated, 30 * progress_made, np.nan),
        },
    )


def rendered(figure):
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    return figure


def panels_of(figure):
    return [axes for axes in figure.axes if axes.get_visible()]


def assert_units(figure):
    """Every axis that shows numbers names its unit in brackets."""
    for axes in panels_of(figure):
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_locator(), FixedLocator):
                continue
            shows_numbers = any(tick.label1.get_visible() for tick in axis.get_major_ticks())
            if shows_numbers or axis.get_label_text():
                assert re.search(r"\[\S.*\]$", axis.get_label_text()), axis.get_label_text()


def line_values(axes):
    return [np.asarray(line.get_ydata(), float) for line in axes.lines]
