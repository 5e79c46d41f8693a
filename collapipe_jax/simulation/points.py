"""Comparisons at several points of a configuration, each on file."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from collapipe_jax.config.default import Config
from collapipe_jax.config.system import build_system_params
from collapipe_jax.files.realisations import point_folder
from collapipe_jax.files.results import Results
from collapipe_jax.simulation.comparison import compare
from collapipe_jax.simulation.montecarlo import policy_options


class Point(NamedTuple):
    """A comparison to make."""

    label: str  # what is shown as it starts
    config: Config
    options: Mapping[str, Any]  # of policy_options


def make_point(label: str, config: Config, policies: Sequence[str], **sizes: int) -> Point:
    """A point, checked; the networks of a policy are one chunk.

    Args:
      label: for the console.
      config: of the networks.
      policies: their names.
      **sizes: numbers of ``rounds`` and ``realisations``.

    Raises:
      InputError: naming the key or option that is wrong.
    """
    build_system_params(config)
    chunk = sizes["realisations"]
    options = policy_options(policies, [config.control.v], chunk=chunk, **sizes)
    return Point(label, config, options)


def compare_points(
    workdir: str | os.PathLike,
    experiment: str,
    axes: Mapping[str, Any],
    points: Sequence[Point],
    console: Console,
) -> tuple[Results, list[dict[str, Any]]]:
    """Run what is missing at every point, in ``points/NN`` of a workdir.

    ``axes`` are options of the experiment besides the settings of the points.

    Returns:
      The workdir, and the summaries of the points as of :func:`.compare`.
    """
    settings = [{"options": own.options, "config": own.config.to_dict()} for own in points]
    results = Results.create(workdir, experiment, {**axes, "points": settings})
    summaries = []
    for index, (label, config, options) in enumerate(points):
        console.print(f"{index + 1}/{len(points)}  {label}")
        folder = point_folder(results.folder, index)
        summaries.append(compare(config, options, folder, console))
    return results, summaries
