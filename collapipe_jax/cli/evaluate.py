"""Score a trained model on a labelled file.

    collapipe evaluate --model=runs/clinc150 --data=texts.csv
    collapipe evaluate --model=runs/bc5cdr --data=sentences.tsv --out=scores.json
    collapipe evaluate --model=runs/tatoeba --data=pairs.txt --beams=4

Formats and scores are those of training: accuracy and macro F1 of labelled texts (.csv, .tsv,
.jsonl, .parquet or .json), span F1 of tagged sentences (CoNLL, .jsonl or .parquet), BLEU and chrF
of pairs of sentences (source<TAB>target, .csv, .jsonl or .parquet, or two files as A|B), masked
accuracy or perplexity of texts without labels.
"""

from collections.abc import Sequence
from pathlib import Path

from collapipe_jax.cli.options import make_parser, options_of
from collapipe_jax.core.console import value_text
from collapipe_jax.core.errors import rename_error_keys
from collapipe_jax.core.files import write_json
from collapipe_jax.learning.tasks.registry import load


def main(argv: Sequence[str]) -> None:
    """Load the model, score it, print the scores and write them where asked to."""
    offered = {
        "beams": (int, "beams of the search for translations (default: 1)"),
        "text_column": (str, "column or key of texts; else text"),
        "label_column": (str, "classification: likewise of the labels; else category or label"),
    }
    parser = make_parser(__doc__, "model", "data", out="", **offered)
    words = "masked_lm: the file is one of tagging"
    parser.add_argument("--tagged", action="store_true", help=words)
    options = parser.parse_args(argv)
    model = load(options.model)
    given = {name: getattr(options, name) for name in (*offered, "tagged")}
    chosen = options_of(model.task.evaluate, **given)
    with rename_error_keys({"data": "--data"}):
        scores = model.evaluate(options.data, **chosen)
    for name, value in scores.items():
        print(f"{name:16} {value_text(value)}")
    if options.out:
        write_json(Path(options.out), scores)
        print(f"written: {options.out}")
