"""Figures of all that ``collapipe figures`` draws, and of the studies.

    python -m figures --workdir=DIR [--workdir=DIR2 ...] [--out=DIR]
    python -m figures NAME --workdir=DIR [--out=DIR]

A folder of a study has one figure: ``bound``, ``convergence`` and ``stability`` of the studies of
these names, ``tradeoff`` of a closed loop with several V, ``gap`` of the solver's benchmark.
"""

from collections.abc import Sequence
from functools import partial

from collapipe_jax.cli import figures as command
from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.runs.figures.draw import KINDS, Drawing, Kind
from collapipe_jax.runs.results.realisations import load_realisations
from experiments.studies.convergence import load_study
from figures import bound, convergence, gap, stability, tradeoff

STUDIES: dict[str, Kind] = {
    "closed_loop": Kind(
        partial(load_realisations, experiment="closed_loop"),
        (Drawing("tradeoff", tradeoff.draw, tradeoff.describe),),
    ),
    "bound": Kind(bound.load, (Drawing("bound", bound.draw),)),
    "convergence": Kind(load_study, (Drawing("convergence", convergence.draw),)),
    "stability": Kind(stability.load, (Drawing("stability", stability.draw),)),
    "gap": Kind(gap.load, (Drawing("gap", gap.draw),), file=gap.FILE),
}


def main(argv: Sequence[str]) -> None:
    """Draw figures from the folders on file."""
    command.main(argv, KINDS | STUDIES, __doc__)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
