"""Linear models and trivial answers on the corpora of the models: what has to be beaten.

    python -m experiments.benchmarks.linear_baselines --samples=2000

The models of ``collapipe_jax.learning.tasks.linear_baselines``, each trained on the whole
training set and on ``--samples`` texts or sentences of it, the ones that a model gets with the same
seed. Corpora are found through COLLAPIPE_DATA. About 10 minutes on 2 cores.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from collapipe_jax.cli.options import make_parser, run_reporting_errors
from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import write_json
from collapipe_jax.learning.tasks.classification import read_sets
from collapipe_jax.learning.tasks.linear_baselines import class_scores, tag_scores
from collapipe_jax.learning.tasks.scores import Score
from collapipe_jax.learning.tasks.tagging import read_tagged
from experiments.benchmarks.timing import timed


def _sets(folder: str, train: str, validation: str, test: str) -> dict[str, Any]:
    """Files of a corpus by set."""
    names = {"train": train, "validation": validation, "test": test}
    return {part: name and f"{folder}/{name}" for part, name in names.items()}


_CLINC150 = ("data_full.json#train", "data_full.json#val", "data_full.json#test")
_WNUT17 = ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
CLASSIFICATION = {
    "cls_clinc150": _sets("cls_clinc150", *_CLINC150),
    "cls_banking77": _sets("cls_banking77", "train.csv", "", "test.csv")
    | {"validation_samples": 1000},
}
TAGGING = {
    "ner_bc5cdr": _sets("ner_bc5cdr", "train.tsv", "devel.tsv", "test.tsv"),
    "ner_wnut17": _sets("ner_wnut17", *_WNUT17),
}

_WIDTH = 120


class Row(NamedTuple):
    """A line of the table: scores on the test set, in percent."""

    corpus: str
    samples: int
    method: str
    scores: tuple[Score, ...]  # accuracy and macro F1, or span F1 and recall of seen and unseen
    seconds: float


def main(argv: Sequence[str]) -> None:
    """Measure every baseline on every corpus and print one table."""
    known = [*CLASSIFICATION, *TAGGING]
    samples, seed = (0, "also on so many; 0: only on all"), (0, "of the draw of the samples")
    out = ("", "file for the scores")
    parser = make_parser(__doc__, samples=samples, seed=seed, out=out)
    parser.add_argument("--corpora", nargs="+", choices=known, default=known)
    options = parser.parse_args(argv)
    for name in ("samples", "seed"):
        if (number := getattr(options, name)) < 0:
            raise InputError(f"--{name}", number, "a negative number", "Use 0 or more")
    console, rows = console_for_tables(_WIDTH), []
    sizes = (0, options.samples) if options.samples else (0,)
    for name, samples in itertools.product(options.corpora, sizes):
        if name in CLASSIFICATION:
            sets = read_sets(**CLASSIFICATION[name], samples=samples, seed=options.seed)
            methods = class_scores(sets)
        else:
            sets = read_tagged(**TAGGING[name], samples=samples, seed=options.seed)
            methods = tag_scores(sets)
        for method, work in methods.items():
            run_s, scores = timed(work)
            rows.append(Row(name, len(sets.train), method, scores, run_s))
            texts = ", ".join(f"{score.value:.2f}" for score in scores)
            console.print(f"{name}, {len(sets.train)} samples, {method}: {texts}")
    if options.out:
        write_json(Path(options.out), {"rows": [_plain(row) for row in rows]})
    console.print(_table(rows))
    for signature in dict.fromkeys(score.signature for row in rows for score in row.scores):
        console.print(signature)


def _plain(row: Row) -> dict[str, Any]:
    return row._asdict() | {"scores": [score.value for score in row.scores]}


def _table(rows: Sequence[Row]) -> Table:
    cells = []
    for row in rows:
        scores = [f"{score.value:.1f}" for score in row.scores]
        scores = [*scores, *[""] * 3] if row.corpus in CLASSIFICATION else ["", "", *scores]
        cells.append((row.corpus, row.method, str(row.samples), *scores, f"{row.seconds:.1f}"))
    headings = ("trained on", "accuracy", "macro F1", "span F1", "seen", "unseen", "s")
    title = "test scores, %; seen and unseen: recall of entities that training has, and has not"
    return make_table(("corpus", "method", *headings), cells, left=2, title=title)


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
