"""The convergence bound with noise of differential privacy against descents.

    python -m experiments.studies.private_bound --workdir=runs/private_bound

The descents of ``bound``, with the clipping and the noise that training has: local steps, losses,
weights, and noise whose term of the bound, docs/theory.md (T24), is a part of the start's or a
multiple of it. The clipping norm is so large that it leaves every step as it is: the table has the
longest. The bound without its term is set beside it. Takes a minute or two.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import make_table
from collapipe_jax.edge.cost import convergence
from collapipe_jax.learning.federated.privacy import ClusterPrivacy, seed_words, sensitivity
from collapipe_jax.runs.results.experiment import Results, as_columns, as_rows
from experiments.studies.bound import STEP, DescentCase, compared, constants, factors, start_gap
from experiments.studies.bound_descents import (
    DIMENSIONS,
    Problem,
    Setting,
    Trace,
    check_lengths,
    descend_all,
    make_problems,
)

CLIP_NORM = 1.0
"""Steps of these descents are shorter."""
NOISES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Term of the noise over that of the start."""
DESCENTS = ((1, 0.0, 4), (1, 0.3, 8), (4, 0.0, 4), (4, 0.3, 8), (16, 0.3, 8))
"""Local steps, losses and micro-batches."""


class PrivateCase(NamedTuple):
    """A descent and its noise."""

    descent: DescentCase
    noise: float  # one of NOISES

    def deviation(self, problem: Problem) -> float:
        """``s`` of every coordinate: ``L_s d s^2 / (eta H)`` is the noise's part of the start."""
        gap = start_gap(problem, self.descent.weight)
        spread = float(problem.smoothness) * DIMENSIONS * self.descent.rounds
        return math.sqrt(self.noise * 2.0 * gap / spread)

    def setting(self, problem: Problem) -> Setting:
        """The array values."""
        largest = self.descent.weight.max()
        privacy = ClusterPrivacy(
            noise_multiplier=self.deviation(problem) / sensitivity(CLIP_NORM, largest),
            clip_norm=CLIP_NORM,
            decoder_clip_norm=CLIP_NORM,  # there is no decoder
            largest_share=largest,
            seed=seed_words(0),
        )
        return self.descent.setting.replace(privacy=jax.tree.map(jnp.asarray, privacy))


def cases(rounds: int) -> list[PrivateCase]:
    """Every combination."""
    return [
        PrivateCase(
            DescentCase(
                "independent", problem, steps, loss, 0.0, count, weights, rounds, STEP / steps
            ),
            noise,
        )
        for problem, (steps, loss, count), weights, noise in itertools.product(
            ("quadratic", "logistic"), DESCENTS, ("equal", "unequal"), NOISES
        )
    ]


def main(argv: Sequence[str]) -> None:
    """Run all descents, print the table and write the results."""
    parser = make_parser(
        __doc__,
        workdir="runs/private_bound",
        repeats=(32, "of every descent"),
        rounds=(200, "of every descent"),
        seed=0,
    )
    given, console = parser.parse_args(argv), Console()
    check_lengths(given.repeats, given.rounds)
    options = {"repeats": given.repeats, "rounds": given.rounds, "seed": given.seed}
    results = Results.create(given.workdir, "private_bound", options)
    for name in results.missing(["settings"]):
        rows = list(measure(cases(given.rounds), given.repeats, given.seed))
        results.write(name, as_columns(rows, "case"))
    summary = summarise(as_rows(results.read("settings")))
    path = results.write_summary({**options, "summary": summary})
    console.print(_table(summary))
    print(f"written: {path}")


def measure(some: Sequence[PrivateCase], repeats: int, seed: int) -> Iterator[dict[str, Any]]:
    """Rows of cases, as on file; those of one problem and length together."""
    problems = make_problems()
    groups = itertools.groupby(some, lambda case: (case.descent.problem, case.descent.local_steps))
    for (name, local_steps), members in groups:
        problem, group = problems[name], list(members)
        settings = [case.setting(problem) for case in group]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *settings)
        keys = jax.random.split(jax.random.key(seed), (len(group), repeats))
        lengths = {"rounds": group[0].descent.rounds, "local_steps": local_steps}
        traces = jax.device_get(descend_all(problem, stacked, keys, **lengths))
        for place, case in enumerate(group):
            yield _row(case, problem, jax.tree.map(lambda leaf, at=place: leaf[at], traces))


def _row(case: PrivateCase, problem: Problem, trace: Trace) -> dict[str, Any]:
    """Measured and bounded mean squared gradient of a case, as on file."""
    plain, most = (bound(case, problem, trace, factor) for factor in (0.0, 1.0))
    return {
        **case.descent._asdict(),
        "noise": case.noise,
        "deviation": case.deviation(problem),
        "longest_step": float(np.max(trace.longest_step)),
        **compared(trace, most),
        "bound_without": plain,
    }


def bound(case: PrivateCase, problem: Problem, trace: Trace, factor: float = 1.0) -> float:
    """The theorem for a case, with this multiple of the noise's variance."""
    learning, descent = constants(case.descent, problem, trace)
    variance = factor * DIMENSIONS * case.deviation(problem) ** 2
    steps = case.descent.local_steps
    if steps > 1:
        return float(convergence.local_steps_bound(learning, descent, steps, variance))
    return float(convergence.one_step_bound(learning, descent, variance))


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the bound holds, by the size of the noise and in all."""
    groups = {f"{noise:g}": [row for row in rows if row["noise"] == noise] for noise in NOISES}
    return {name: _part(some) for name, some in (groups | {"all": list(rows)}).items() if some}


def _part(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return factors(rows) | {
        "holds_without": sum(row["measured_high"] <= row["bound_without"] for row in rows),
        "longest_step": max(row["longest_step"] for row in rows),
    }


def _table(summary: Mapping[str, Any]) -> Any:
    rows = []
    for name, part in summary.items():
        ends = (f"{part[f'factor_{which}']:.1f}" for which in ("median", "min", "max"))
        holds = (f"{part[which]} of {part['settings']}" for which in ("holds", "holds_without"))
        rows.append((name, *holds, *ends, f"{part['longest_step']:.2f} of {CLIP_NORM:g}"))
    headings = ("noise", "holds", "without its term", "median", "least", "largest", "step")
    return make_table(headings, rows, left=0, title="bound over measured")


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
