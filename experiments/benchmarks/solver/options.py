"""How much ``dssra`` searches, as options of the benchmarks."""

import argparse

from collapipe_jax.command_line import require_positive
from collapipe_jax.errors import InputError
from collapipe_jax.partition.joint_search import SearchConfig

_DEFAULT = SearchConfig()


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Options named like the fields of :class:`SearchConfig`, with its defaults."""
    search = parser.add_argument_group("search of dssra")
    search.add_argument(
        "--allocation-steps",
        default=",".join(map(str, _DEFAULT.allocation_steps)),
        help="gradient steps of all clusters together, by iteration (default %(default)s)",
    )
    for name, text in (
        ("candidates", "candidates of all clusters together"),
        ("cluster_candidates", "candidates of a cluster"),
        ("cluster_steps", "gradient steps on each of these"),
    ):
        option = f"--{name.replace('_', '-')}"
        default = getattr(_DEFAULT, name)
        search.add_argument(option, type=int, default=default, help=f"{text} (default {default})")


def search_config(options: argparse.Namespace) -> SearchConfig:
    """The search that the options ask for.

    Raises:
      InputError: if a number is not whole or below 1, or ``--candidates`` is below 2.
    """
    steps = options.allocation_steps.split(",")
    if not all(count.isascii() and count.isdigit() and int(count) > 0 for count in steps):
        remedy = "Give whole numbers from 1 with commas between them"
        raise InputError("--allocation-steps", options.allocation_steps, "no numbers", remedy)
    require_positive(
        cluster_candidates=options.cluster_candidates, cluster_steps=options.cluster_steps
    )
    if options.candidates < 2:
        problem = "the incumbent has nothing to be compared with"
        raise InputError("--candidates", options.candidates, problem, "Give 2 or more")
    return SearchConfig(
        allocation_steps=tuple(int(count) for count in steps),
        candidates=options.candidates,
        cluster_candidates=options.cluster_candidates,
        cluster_steps=options.cluster_steps,
    )
