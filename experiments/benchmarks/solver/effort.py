"""How much work a decision of ``dssra`` may take, as options of the benchmarks."""

import argparse

from collapipe_jax.command_line import require_positive
from collapipe_jax.errors import InputError
from collapipe_jax.policies.dssra import DEFAULT_EFFORT, Effort


def add_effort_options(parser: argparse.ArgumentParser) -> None:
    """Options named like the fields of :class:`Effort`, with its defaults."""
    effort = parser.add_argument_group("effort of dssra")
    effort.add_argument(
        "--joint-steps",
        default=",".join(map(str, DEFAULT_EFFORT.joint_steps)),
        help="descents of all clusters together, by turn (default %(default)s)",
    )
    for name, help_text in (
        ("plans", "plans at a time"),
        ("layouts", "candidates of a cluster"),
        ("cluster-steps", "on every candidate"),
    ):
        default = getattr(DEFAULT_EFFORT, name.replace("-", "_"))
        help_text += " (default %(default)s)"
        effort.add_argument(f"--{name}", type=int, default=default, help=help_text)


def effort_of(options: argparse.Namespace) -> Effort:
    """What the options say.

    Raises:
      InputError: if something is not a whole number from 1, or ``--plans`` is below 2.
    """
    steps = options.joint_steps.split(",")
    if not all(count.isascii() and count.isdigit() and int(count) > 0 for count in steps):
        remedy = "Give whole numbers from 1 with commas between them"
        raise InputError("--joint-steps", options.joint_steps, "no numbers of steps", remedy)
    require_positive(layouts=options.layouts, cluster_steps=options.cluster_steps)
    if options.plans < 2:
        problem = "the best so far has nothing to be compared with"
        raise InputError("--plans", options.plans, problem, "Give 2 or more")
    return Effort(
        tuple(int(count) for count in steps), options.plans, options.layouts, options.cluster_steps
    )
