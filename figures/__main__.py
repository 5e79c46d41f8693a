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
from collapipe_jax.runs.figures.draw import KINDS, Kind
from collapipe_jax.runs.results.realisations import load_realisations
from collapipe_jax.runs.results.studies import load_study
from figures import bound, convergence, gap, stability, tradeoff

STUDIES: dict[str, Kind] = {
    "closed_loop": Kind(partial(load_realisations, experiment="closed_loop"), (tradeoff,)),
    "bound": Kind(bound.load, (bound,)),
    "convergence": Kind(load_study, (convergence,)),
    "stability": Kind(stability.load, (stability,)),
    "gap": Kind(gap.load, (gap,), file=gap.FILE),
}


def main(argv: Sequence[str]) -> None:
    """Draw figures from the folders on file."""
    command.main(argv, KINDS | STUDIES, __doc__)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
