"""Score a trained model on a labelled file.

    collapipe evaluate --model=runs/clinc150 --data=texts.csv
    collapipe evaluate --model=runs/bc5cdr --data=sentences.tsv --out=scores.json
    collapipe evaluate --model=runs/tatoeba --data=pairs.txt --beams=4

Formats and scores are those of training: accuracy and macro F1 of labelled texts (.csv, .tsv or
.json), span F1 of CoNLL files, BLEU of pairs as source<TAB>target.
"""

from collections.abc import Sequence
from pathlib import Path

from collapipe_jax.cli.options import make_parser, options_of
from collapipe_jax.files.atomic import write_json
from collapipe_jax.tasks.loading import load


def main(argv: Sequence[str]) -> None:
    """Load the model, score it, print the scores and write them where asked to."""
    beams = (0, "beams of the search for translations (default: 1)")
    parser = make_parser(__doc__, "model", "data", out="", beams=beams)
    options = parser.parse_args(argv)
    model = load(options.model)
    scores = model.evaluate(options.data, **options_of(model.evaluate, beams=options.beams))
    for name, value in scores.items():
        print(f"{name:16} {value}")
    if options.out:
        write_json(Path(options.out), scores)
        print(f"written: {options.out}")
