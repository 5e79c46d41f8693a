"""How much ``dssra`` searches, as options of the benchmarks."""

import argparse

from collapipe_jax.cli.options import read_counts
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.edge.policies.dssra import MOST_STARTS
from collapipe_jax.edge.solver.joint_search import SearchConfig

_DEFAULT = SearchConfig()
_STEPS = ",".join(map(str, _DEFAULT.allocation_steps))
_WORDS = {
    "allocation_steps": (_STEPS, "gradient steps by iteration, the last on the best alone"),
    "candidates": (_DEFAULT.candidates, "candidates of all clusters together"),
    "cluster_candidates": (_DEFAULT.cluster_candidates, "candidates of a cluster"),
    "cluster_steps": (_DEFAULT.cluster_steps, "gradient steps on each of these"),
    "starts": (_DEFAULT.starts, f"starts, at least, of {MOST_STARTS}"),
}
SEARCH_OPTIONS = {
    name: (default, f"{words} (default {default})") for name, (default, words) in _WORDS.items()
}
"""Options named like the fields of :class:`SearchConfig`, for :func:`make_parser`."""


def search_config(options: argparse.Namespace) -> SearchConfig:
    """The search that the options ask for.

    Raises:
      InputError: if a number is not whole or below 1, ``--candidates`` is below 2, or
        ``--allocation-steps`` has a single number.
    """
    given = {name: getattr(options, name) for name in SEARCH_OPTIONS}
    steps = read_counts("--allocation-steps", given.pop("allocation_steps"))
    if len(steps) < 2:
        problem = "the best candidate needs steps of its own"
        raise InputError("--allocation-steps", steps[0], problem, "Give two numbers or more")
    require_positive(**given)
    if options.candidates < 2:
        problem = "the incumbent has nothing to be compared with"
        raise InputError("--candidates", options.candidates, problem, "Give 2 or more")
    return SearchConfig(allocation_steps=tuple(steps), **given)
