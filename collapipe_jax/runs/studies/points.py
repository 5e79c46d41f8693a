"""Comparisons at the points of a sweep, in one store; without axes one comparison."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.system import SystemParams
from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.sweeps import SEED, Axis, Sweep, read_sweep
from collapipe_jax.runs.config.system import build_system_params, check_budgets
from collapipe_jax.runs.results.experiment import Results
from collapipe_jax.runs.results.realisations import coordinates, sweep_settings
from collapipe_jax.runs.studies.comparison import networks
from collapipe_jax.runs.studies.montecarlo import WHOLE, Shard, run_policies
from collapipe_jax.runs.studies.reducers import per_round


class Comparisons(NamedTuple):
    """Comparisons to make, checked."""

    experiment: str  # its name
    sweep: Sweep
    options: dict[str, Any]  # of the experiment
    params: list[SystemParams]  # of every point


def read_comparisons(
    experiment: str,
    path: str,
    overrides: Mapping[str, Any],
    options: Mapping[str, Any],
    axes: Sequence[Axis] = (),
    seeds: int = 1,
) -> Comparisons:
    """Comparisons at all points of a sweep; nothing is on file yet.

    Args:
      experiment: its name.
      path: of the configuration.
      overrides: of all points.
      options: as of :func:`.policy_options`.
      axes: of the sweep.
      seeds: number of seeds.

    Raises:
      InputError: naming all that is wrong at any point.
    """
    params = []

    def check(config: Config) -> None:
        if seeds > 1 and config.network.seed >= 0:
            problem = f"every {SEED} would draw these networks"
            raise InputError("network.seed", config.network.seed, problem, "Leave it out")
        params.append(build_system_params(config))
        check_budgets(config, params[-1])

    sweep = read_sweep(path, overrides, axes, seeds, check)
    return Comparisons(experiment, sweep, dict(options), params)


def open_comparisons(workdir: str | os.PathLike, made: Comparisons) -> Results:
    """Take possession of a workdir, or go on there.

    Raises:
      InputError: if the folder holds something else.
    """
    swept, config = sweep_settings(made.sweep)
    options = made.options | (swept if made.sweep.axes else {})
    places = coordinates(options)
    return Results.create(workdir, made.experiment, options, config, places)


def run_comparisons(
    results: Results, made: Comparisons, console: Console, shard: Shard = WHOLE
) -> int:
    """Simulate the parts of a shard that are not on file; the number that all shards lack."""
    return run_policies(results, made.params, networks, per_round, console, shard)


def missing_by_shard(results: Results, parts: Sequence[str], count: int) -> dict[int, int]:
    """Missing parts of the shards that lack some, by their number."""
    missing = {index: len(results.missing(Shard(index, count).of(parts))) for index in range(count)}
    return {index: number for index, number in missing.items() if number}
