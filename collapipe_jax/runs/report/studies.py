"""Pages of comparisons and of sweeps of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collapipe_jax.core.quantity import axis_texts, bytes_to_mib
from collapipe_jax.core.statistics import Estimate, median_estimate
from collapipe_jax.edge.cost.latency import LatencyParts
from collapipe_jax.runs.report.charts import (
    Data,
    config_table,
    line,
    line_chart,
    plain,
    table,
)
from collapipe_jax.runs.report.network import network_of_point
from collapipe_jax.runs.report.rounds import PARTS, network_data, network_sentence
from collapipe_jax.runs.results.realisations import (
    Realisations,
    SweepLine,
    energy_over_budget,
    load_points,
    load_realisations,
    load_sweep,
    only_runnable,
    runnable,
)
from collapipe_jax.runs.results.record import policy_label
from collapipe_jax.runs.studies.comparison import round_means, summarise

_METRICS = {
    "latency_s": "Latency of a round [s]",
    "compute_latency_s": "Compute latency [s]",
    "energy_j": "Energy of a round [J]",
    "device_memory_bytes": "Fullest device [MiB]",
    "divergence_over_target": "Divergence / target",
}


def comparison_page(workdir: str) -> Data:
    """The page of a comparison."""
    result = load_realisations(workdir, "compare")
    kept = only_runnable(result)
    summary = summarise(result)
    network, extent = _first_network(result)
    return {
        "title": "Comparison of policies",
        "runs": [network | {"sentences": [extent, *_sentences(kept, summary)]}],
        "charts": _metric_charts(kept) + _round_charts(kept),
        "tables": [_policy_table(summary)],
        "configuration": config_table(result.settings["config"]),
    }


def sweep_page(workdir: str, experiment: str = "sweep") -> Data:
    """The page of a sweep of comparisons, or of a map, which is one of two axes."""
    lines, points = load_sweep(workdir, experiment), load_points(workdir, experiment)
    if not any(runnable(point.networks).any() for point in points):
        only_runnable(points[0])  # raises
    network, extent = _first_network(points[0])
    return {
        "title": experiment.capitalize(),
        "runs": [network | {"sentences": [extent, *_sweep_sentences(lines)]}],
        "charts": [chart for one in lines for chart in _swept_charts(one, len(lines) > 1)],
        "tables": [_point_table(lines)],
        "configuration": config_table(points[0].settings["config"]),
    }


def _first_network(result: Realisations) -> tuple[Data, str]:
    """The first network of a comparison as a run without decisions, and a sentence about it."""
    options = result.settings["options"]
    network = network_of_point(result.settings["config"], options["realisations"])
    picture = network_data(network, np.zeros(1, int))
    data = {"name": "first network", "rounds": [0], "network": picture, "charts": [], "tables": []}
    text = network_sentence(network).replace("The network", "Of several networks the first", 1)
    return data, text


def _sentences(result: Realisations, summary: Mapping[str, Any]) -> list[str]:
    """Who computes under each policy, and what limits the fastest one that keeps the limits."""
    policies = summary["policies"]
    best = max(policies, key=lambda name: policies[name]["fastest"])
    wins, keeps = (100 * policies[best][key] for key in ("fastest", "keeps_limits"))
    part, share = _longest_part(result, best)
    nodes = int(np.prod(result.networks["memory_limit_bytes"].shape[1:]))
    return [
        f"Of {nodes} devices, {_active(summary)}.",
        f"{policy_label(best)} is the fastest that keeps all limits on {wins:.0f} % of networks "
        f"(it keeps them on {keeps:.0f} %); {share:.0f} % of its time goes to {part}.",
    ]


def _active(summary: Mapping[str, Any]) -> str:
    """How many devices compute under each policy."""
    counts = [
        f"{own['active_devices']['median']:.3g} compute under {policy_label(name)}"
        for name, own in summary["policies"].items()
    ]
    return f"{', '.join(counts)} in the median"


def _longest_part(result: Realisations, policy: str) -> tuple[str, float]:
    """Part of the latency that takes most of all rounds that end, and its share in percent."""
    parts_s = result.policies[policy]["parts_s"].reshape(-1, len(LatencyParts._fields))
    total_s = parts_s[np.isfinite(parts_s).all(axis=1)].sum(axis=0, dtype=np.float64)
    part = int(np.argmax(total_s))
    share = 100.0 * total_s[part] / total_s.sum() if total_s.sum() else 0.0
    return PARTS[LatencyParts._fields[part]], share


def _amounts(result: Realisations) -> dict[str, dict[str, np.ndarray]]:
    """Means over the rounds by metric and policy, ``[R]``, in the units of ``_METRICS``."""
    means = round_means(result)
    found = {metric: {name: own[metric] for name, own in means.items()} for metric in _METRICS}
    memory = found["device_memory_bytes"]
    found["device_memory_bytes"] = {
        name: np.asarray(bytes_to_mib(own)) for name, own in memory.items()
    }
    return found


def _metric_charts(result: Realisations) -> list[Data]:
    """A row a policy: every network, and the median with its interval."""
    charts = []
    for metric, by_policy in _amounts(result).items():
        rows = []
        for name, values in by_policy.items():
            median, low, high = (plain(part) for part in median_estimate(values))
            row = {"name": policy_label(name), "points": plain(values, 4)}
            rows.append(row | {"value": median, "low": low, "high": high})
        chart = {"kind": "rows", "name": metric, "title": _METRICS[metric], "rows": rows}
        charts.append(chart)
    return charts


def _round_charts(result: Realisations) -> list[Data]:
    """Medians over the networks in every round."""
    policies = result.policies
    series = {
        "latency_rounds": ("Latency of a round, median", "s", "latency_s"),
        "energy_queue": ("Longest energy queue, median", "budgets", "worst_energy_queue"),
        "divergence_queue": ("Divergence queue, median", "targets", "divergence_queue"),
    }

    def medians(title: str, name: str, unit: str, values: Mapping[str, np.ndarray], **more: Any):
        lines = []
        for look, (policy, own) in enumerate(values.items()):
            estimate = median_estimate(own)
            lines.append(_estimated(policy_label(policy), np.arange(own.shape[1]), estimate, look))
        return line_chart(name, title, "round", unit, lines, **more)

    over = {name: energy_over_budget(result, name) for name in policies}
    title, rule = "Energy so far over the sum of budgets, median", [["budgets", 1.0]]
    charts = medians(title, "energy_over_budget", "energy / budgets", over, rules=rule)
    for name, (title, unit, key) in series.items():
        charts += medians(title, name, unit, {one: own[key] for one, own in policies.items()})
    return charts if result.rounds > 1 else []


def _estimated(name: str, x: Any, estimate: Estimate, look: int) -> Data:
    """A line with its intervals."""
    return line(name, x, estimate.value, look, low=plain(estimate.low), high=plain(estimate.high))


def _policy_table(summary: Mapping[str, Any]) -> Data:
    """A row a policy, medians over networks."""
    head = ("policy", "latency [s]", "compute [s]", "energy [J]", "memory [MiB]")
    head = (*head, "devices", "blocks", "keeps limits [%]", "fastest [%]")
    rows = []
    for name, own in summary["policies"].items():
        memory = own["device_memory_bytes"]["median"]
        numbers = [own[key]["median"] for key in ("latency_s", "compute_latency_s", "energy_j")]
        numbers.append(None if memory is None else bytes_to_mib(memory))
        numbers += [own[key]["median"] for key in ("active_devices", "blocks")]
        numbers += [100.0 * float(own[key]) for key in ("keeps_limits", "fastest")]
        rows.append([policy_label(name), *numbers])
    note = (
        f"Medians over {summary['realisations']} networks with {summary['rounds']} rounds each; "
        f"{summary['realisations_left_out']} networks that cannot run are left out. Fastest: of "
        "the policies that keep all limits."
    )
    return table("policies", "Policies", head, rows, note)


def _sweep_sentences(lines: Sequence[SweepLine]) -> list[str]:
    """Who computes at the first point, and who is the fastest at both ends of the first axis."""
    swept, found = lines[0], []
    for value, point in zip(swept.values, swept.points, strict=True):
        kept = runnable(point.networks)
        if kept.any():
            found.append((value, point.only(kept)))
    ends = found[:1] + found[1:][-1:]
    summaries = [summarise(point) for _, point in ends]
    words = []
    for (value, point), summary in zip(ends, summaries, strict=True):
        policies = summary["policies"]
        best = max(policies, key=lambda name: policies[name]["fastest"])
        part, share = _longest_part(point, best)
        text = f"{policy_label(best)}, which spends {share:.0f} % of its time on {part}"
        words.append(f"{_place(swept, value)} it is {text}")
    return [
        f"At {_place(swept, found[0][0])}, {_active(summaries[0])}.",
        f"The fastest that keeps all limits: at {', and at '.join(words)}.",
    ]


def _place(swept: SweepLine, value: Any) -> str:
    """A value of what is swept, in words."""
    label, texts, _ = axis_texts(swept.axis.rstrip(), swept.values)
    name, _, unit = label.partition(" [")
    return f"{name} = {texts[swept.values.index(value)]} {unit.strip('–]')}".rstrip()


def _swept_charts(swept: SweepLine, several: bool) -> list[Data]:
    """Medians against what is swept, a chart a metric."""
    amounts = []
    for point in swept.points:
        kept = runnable(point.networks)
        amounts.append(_amounts(point.only(kept)) if kept.any() else None)
    named = not all(isinstance(value, int | float) for value in swept.values)
    axis, texts, scale = axis_texts(swept.axis.rstrip(), swept.values)
    x = np.arange(len(texts)) if named else np.array(swept.values, np.float64) / scale
    others = ", ".join(f"{name} = {value}" for name, value in swept.others.items())
    charts = []
    for metric, label in _METRICS.items():
        lines = []
        for look, policy in enumerate(swept.points[0].policies):
            parts = [
                (np.nan,) * 3 if own is None else median_estimate(own[metric][policy])
                for own in amounts
            ]
            estimate = Estimate(*(np.array(part, np.float64) for part in zip(*parts, strict=True)))
            lines.append(_estimated(policy_label(policy), x, estimate, look))
        more = {"ticks": texts} if named else {"log_x": swept.log}
        title = f"{label.partition(' [')[0]}, median" + (f", {others}" if several else "")
        unit = label.partition("[")[2].rstrip("]")
        charts += line_chart(metric, title, axis, unit, lines, **more)
    return charts


def _point_table(lines: Sequence[SweepLine]) -> Data:
    """A row for every point and policy, medians over networks."""
    first = axis_texts(lines[0].axis.rstrip(), lines[0].values)
    axes = [first[0], *lines[0].others]
    head = (*axes, "policy", "latency [s]", "energy [J]", "keeps limits [%]", "fastest [%]")
    rows = []
    for swept in lines:
        for value, point in zip(first[1], swept.points, strict=True):
            for name, own in summarise(point)["policies"].items():
                numbers = [own[key]["median"] for key in ("latency_s", "energy_j")]
                numbers += [100.0 * float(own[key]) for key in ("keeps_limits", "fastest")]
                places = [str(place) for place in (value, *swept.others.values())]
                rows.append([*places, policy_label(name), *numbers])
    return table("points", "Points", head, rows, "Medians over networks that can run.")
