"""Realisations of policies on file: comparisons, sweeps of them, and closed loops.

The arrays of an experiment have the axes ``policy``, ``v`` where there are several, those that
are swept, ``realisation``, and their own; what is kept of the networks lacks the first two.
A part is a chunk of realisations of one policy at one point.
"""

import itertools
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.core.statistics import running_mean
from collapipe_jax.runs.config.sweeps import SEED, Axis, Sweep
from collapipe_jax.runs.results.experiment import Results, read_summary
from collapipe_jax.runs.results.store import Place


class Case(NamedTuple):
    """All realisations of one policy and V."""

    policy: str  # its name
    v: float  # weight of latency
    values: dict[str, np.ndarray]  # arrays by name, ``[R, ...]``


class Realisations(NamedTuple):
    """Realisations of policies on the same networks."""

    # ``config``, and ``options`` with rounds, realisations, chunk, policies and V
    settings: dict[str, Any]
    networks: dict[str, np.ndarray]  # arrays by name, ``[R, ...]``
    cases: list[Case]  # in the order of policies, then of V

    @property
    def rounds(self) -> int:
        """Length of the horizon."""
        return self.settings["options"]["rounds"]

    @property
    def policies(self) -> dict[str, dict[str, np.ndarray]]:
        """Arrays by policy, where there is one V."""
        return {case.policy: case.values for case in self.cases}

    def only(self, kept: np.ndarray) -> "Realisations":
        """The realisations of some networks, ``kept`` booleans ``[R]``."""
        cases = [case._replace(values=select(case.values, kept)) for case in self.cases]
        return self._replace(networks=select(self.networks, kept), cases=cases)


def select(values: Mapping[str, np.ndarray], kept: np.ndarray) -> dict[str, np.ndarray]:
    """Arrays by name at some places of their first axis."""
    return {name: value[kept] for name, value in values.items()}


class Part(NamedTuple):
    """A chunk of realisations: of the networks of a point, or of a policy on them."""

    place: Place
    point: int  # number of the point; 0 where nothing is swept
    policy: str = ""  # empty: of the networks
    v: float | None = None  # weight of latency; None: that of the configuration


def sweep_settings(sweep: Sweep) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options and configuration of a sweep: its axes, and the first point.

    The options have also what every point has otherwise, and the greatest lengths of axes that
    configurations set.
    """
    configs: list[dict[Any, Any]] = [
        dict(flatten_dict(point.config.to_dict(), sep=".")) for point in sweep.points
    ]
    first, most = configs[0], {}
    for config in configs:
        nodes = config["network.devices"] + 1
        own = {"cluster": config["network.clusters"], "device": nodes - 1, "node": nodes}
        own["blocks"] = config["model.encoder_blocks"] + 1
        most = {axis: max(most.get(axis, 0), size) for axis, size in own.items()}
    axes = [axis._asdict() for axis in sweep.axes]
    changes = [{key: own[key] for key in own if own[key] != first[key]} for own in configs]
    for axis in axes:
        del axis["keys"]
    options = {"axes": axes, "points": changes, "sizes": most}
    return options, sweep.points[0].config.to_dict()


def point_config(settings: Mapping[str, Any], point: int) -> dict[str, Any]:
    """Configuration of a point."""
    points = settings["options"].get("points", [{}])
    flat = flatten_dict(settings["config"], sep=".")
    return unflatten_dict({**flat, **points[point]}, sep=".")


def _axes(options: Mapping[str, Any]) -> list[Axis]:
    return [Axis(keys=[], **axis) for axis in options.get("axes", [])]


def coordinates(options: Mapping[str, Any]) -> dict[str, tuple[str, list[Any]]]:
    """Labels of policies, V and points, by their name with the axis."""
    found = {"policy": ("policy", options["policies"])}
    if len(options.get("v", [])) > 1:
        found["v"] = ("v", options["v"])
    return found | swept_coordinates(options)


def swept_coordinates(options: Mapping[str, Any]) -> dict[str, tuple[str, list[Any]]]:
    """Labels of the points of a sweep, by their name with the axis."""
    return {
        name: (axis.name, values)
        for axis in _axes(options)
        for name, values in axis.columns.items()
    }


def parts_of(options: Mapping[str, Any]) -> dict[str, Part]:
    """All parts of an experiment by their names, in the order in which they are made."""
    axes = _axes(options)
    sizes = {axis.name: len(axis.values) for axis in axes}
    several_v = "v" in options and len(options["v"]) > 1
    cases: dict[str, tuple[str, float | None, dict]] = {"networks": ("", None, {})}
    for place, policy in enumerate(options["policies"]):
        for index, v in enumerate(options.get("v", [None])):
            lead = {"policy": (place, len(options["policies"]))}
            lead |= {"v": (index, len(options["v"]))} if several_v else {}
            cases[f"{policy}_v{v!r}" if several_v else policy] = policy, v, lead
    parts = {}
    for name, (policy, v, lead) in cases.items():
        for point, where in enumerate(np.ndindex(*sizes.values())):
            swept = {axis: (i, sizes[axis]) for axis, i in zip(sizes, where, strict=True)}
            folder = f"{name}/{point:04d}" if axes else name
            for part, place in _chunk_parts(folder, options, {**lead, **swept}).items():
                parts[part] = Part(place, point, policy, v)
    return parts


def _chunk_parts(
    name: str, options: Mapping[str, Any], lead: Mapping[str, tuple[int, int]]
) -> dict[str, Place]:
    """Every chunk of a case, by the name of its part; ``lead`` as of :class:`Place`."""
    realisations, chunk = options["realisations"], options["chunk"]
    sizes = options.get("sizes", {})
    return {
        f"{name}/{start:06d}": Place(dict(lead), start, realisations, chunk, sizes)
        for start in range(0, realisations, chunk)
    }


def _joined(chunks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays of several chunks, one after the other."""
    return {name: np.concatenate([one[name] for one in chunks]) for name in chunks[0]}


def load_points(workdir: str | os.PathLike, experiment: str) -> list[Realisations]:
    """The comparisons at all points; an ``InputError`` if a part is missing or damaged."""
    results = Results.open(workdir, experiment)
    parts = parts_of(results.options)
    found = results.read_parts({name: part.place for name, part in parts.items()})
    chunks: dict[tuple, list] = {}
    for name, part in parts.items():
        chunks.setdefault((part.point, part.policy, part.v), []).append(found[name])
    options = {
        name: value
        for name, value in results.options.items()
        if name not in ("axes", "points", "sizes")
    }
    loaded = []
    for point in range(math.prod(len(axis.values) for axis in _axes(results.options))):
        config = point_config(results.settings, point)
        cases = [
            Case(policy, config["control"]["v"] if v is None else v, _joined(own))
            for (at, policy, v), own in chunks.items()
            if at == point and policy
        ]
        settings = {"config": config, "options": options}
        loaded.append(Realisations(settings, _joined(chunks[point, "", None]), cases))
    return loaded


def load_realisations(workdir: str | os.PathLike, experiment: str) -> Realisations:
    """All that a finished experiment left; an ``InputError`` if it is missing or damaged."""
    return load_points(workdir, experiment)[0]


class SweepLine(NamedTuple):
    """Comparisons along one axis of a sweep, at one point of the others."""

    axis: str  # what is swept, with its unit
    log: bool  # whether the values are best drawn on a logarithmic axis
    # Of the points, in their order; names where the points have no number
    values: list[Any]
    points: list[Realisations]
    others: dict[str, Any]  # values on the other axes, by name


def load_sweep(workdir: str | os.PathLike, experiment: str = "sweep") -> list[SweepLine]:
    """Lines of a finished sweep or map along its first axis, networks of all seeds together.

    Raises:
      InputError: if something is missing or damaged.
    """
    axes = _axes(Results.open(workdir, experiment).options)
    points = load_points(workdir, experiment)
    if axes[-1].name == SEED and len(axes) > 1:
        seeds = len(axes.pop().values)
        points = [_pool(points[at : at + seeds]) for at in range(0, len(points), seeds)]
    first, others = axes[0], axes[1:]
    lines, count = [], math.prod(len(axis.values) for axis in others)
    for at, values in enumerate(itertools.product(*(axis.values for axis in others))):
        labels = dict(zip([axis.name for axis in others], values, strict=True))
        along = points[at::count]
        lines.append(SweepLine(first.label or first.name, first.log, first.values, along, labels))
    return lines


def _pool(seeds: Sequence[Realisations]) -> Realisations:
    """Realisations of several seeds as those of one."""
    cases = [
        case._replace(values=_joined([one.cases[index].values for one in seeds]))
        for index, case in enumerate(seeds[0].cases)
    ]
    return seeds[0]._replace(networks=_joined([one.networks for one in seeds]), cases=cases)


def load_map(workdir: str | os.PathLike) -> dict[str, Any]:
    """The summary of a finished map; an ``InputError`` if it is missing or damaged."""
    return read_summary(Results.open(workdir, "map").folder, "map")


# Long-term limits: whether runs and comparisons keep them.

ENERGY_LIMIT = DIVERGENCE_LIMIT = 1.01
"""A mean over budget or target up to which a long-term constraint counts as met."""
_ABSURD = 10.0
"""A mean over its limit that no comparison of policies is meant to have."""


def runnable(networks: Mapping[str, np.ndarray]) -> np.ndarray:
    """Networks in which some cluster can hold the encoder, booleans ``[R]``."""
    reference_s = networks["reference_latency_s"]
    return networks["can_run"].any(axis=1) & (reference_s > 0) & np.isfinite(reference_s)


def only_runnable(result: Realisations) -> Realisations:
    """The comparison without networks in which no cluster can ever hold the encoder.

    Raises:
      InputError: if no network is left.
    """
    kept = runnable(result.networks)
    if not kept.any():
        problem = "no network of the comparison can run a round"
        raise InputError("realisations", len(kept), problem, "Give devices more memory")
    return result.only(kept)


def energy_over_budget(result: Realisations, policy: str) -> np.ndarray:
    """Mean energy so far of all nodes over the sum of their budgets, ``[R, T]``."""
    energy_j = result.policies[policy]["energy_j"].astype(np.float64)
    budget_j = result.networks["energy_budget_j"].astype(np.float64).sum(axis=(1, 2))
    return running_mean(energy_j.T).T / budget_j[:, None]


def warn_of_run(history: Mapping[str, np.ndarray], budget_j: np.ndarray, target: float) -> None:
    """Warn once of each limit that the means of a run, by round, are over."""
    energy_j, divergence = history["energy_j"].mean(axis=0), float(history["divergence"].mean())
    over = energy_j / budget_j
    n, i = np.unravel_index(np.argmax(over), over.shape)
    if over[n, i] > ENERGY_LIMIT:
        key = "control.device_budget_j" if i else "control.control_unit_budget_j"
        node = f"mean energy of cluster {n}, node {i}"
        _warn(
            node,
            f"{energy_j[n, i]:.3g} J",
            f"the budget of {budget_j[n, i]:.3g} J",
            over[n, i],
            key,
        )
    if divergence > DIVERGENCE_LIMIT * target:
        limit, key = f"the target of {target:.3g}", "control.divergence_ratio"
        _warn("mean divergence", f"{divergence:.3g}", limit, divergence / target, key)


def warn_of_comparison(summary: Mapping[str, Any]) -> None:
    """Warn of each policy that is far over a limit on some network."""
    limits = {"energy_over_budget": "control.device_budget_j and control.control_unit_budget_j"}
    limits |= {"divergence_over_target": "control.divergence_ratio"}
    for name, key in limits.items():
        ratios = {
            policy: found["violations"][f"worst_{name}"]
            for policy, found in summary["policies"].items()
        }
        if far := {policy: ratio for policy, ratio in ratios.items() if ratio > _ABSURD}:
            worst = ", ".join(f"{policy} {ratio:.3g}" for policy, ratio in far.items())
            words = f"mean {name.replace('_', ' ')}, on the worst network: {worst}; limit 1."
            text = f"{words} Raise {key}, or take another policy."
            warnings.warn(text, InputWarning, stacklevel=2)


def _warn(what: str, measured: str, limit: str, ratio: float, key: str) -> None:
    remedy = f"Raise {key}, lower control.v, or take a policy that minds it."
    text = f"{what} ended at {measured}, {ratio:.3g} times {limit}. {remedy}"
    warnings.warn(text, InputWarning, stacklevel=3)
