"""Use a trained model on texts, one a line.

    collapipe predict --model=runs/clinc150 texts.txt
    collapipe predict --model=runs/bc5cdr --json < texts.txt > entities.jsonl
    collapipe predict --model=runs/english --tokens=20 --temperature=0.8 --top-p=0.9 starts.txt

Every text gives one line, an empty one too: label and probability (classification), entities
as START-END TYPE TEXT (tagging), the pieces in place of each [MASK] (masked_lm), all between
tabs, the translation, or the continuation. With --json it is an object that has the text too. Texts
longer than those of training are cut; tagging cuts them into parts, and drops nothing.
"""

import json
import sys
from collections.abc import Sequence
from inspect import signature

from collapipe_jax.cli.options import make_parser, options_of
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.registry import load

_AT_A_TIME = 1_000


def main(argv: Sequence[str]) -> None:
    """Load the model, read the texts, print what it says of them."""
    offered = {
        "beams": (int, "beams of the search for translations (default: 1)"),
        "tokens": (int, "most tokens of a continuation (default: 32, or half of the positions)"),
        "temperature": (float, "of drawn continuations (default: 0, the likeliest tokens)"),
        "top_p": (float, "share of the probability that they are drawn from (default: 1)"),
        "seed": (int, "of the draws (default: 0)"),
    }
    parser = make_parser(__doc__, "model", **offered)
    parser.add_argument("file", metavar="FILE", nargs="?", help="texts in UTF-8; else from stdin")
    parser.add_argument("--json", action="store_true", help="print a JSON object a text")
    words = "classification: print those of all labels"
    parser.add_argument("--probabilities", action="store_true", help=words)
    options = parser.parse_args(argv)

    model = load(options.model)
    given = {name: getattr(options, name) for name in (*offered, "probabilities")}
    chosen = options_of(model.task.predict, **given)
    texts, draws = _read_texts(options.file), "start" in signature(model.task.predict).parameters
    for start in range(0, len(texts), _AT_A_TIME):
        part = texts[start : start + _AT_A_TIME]
        place = {"start": start} if draws else {}
        for text, prediction in zip(part, model.predict(part, **place, **chosen), strict=True):
            if options.json:
                record = {"text": text, **model.task.record(prediction)}
                print(json.dumps(record, ensure_ascii=False, allow_nan=False))
            else:
                print(model.task.line(prediction))


def _read_texts(name: str | None) -> list[str]:
    """Lines of a file, or of stdin."""
    if name is not None:
        lines = TextFile("FILE", name).lines()
    else:
        try:
            lines = sys.stdin.buffer.read().decode("utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            remedy = "Convert it, e.g. with iconv -f latin1 -t utf-8"
            raise InputError("FILE", "stdin", "holds bytes that are not UTF-8", remedy) from error
        lines = lines[:-1] if lines[-1] == "" else lines
    return [line.removesuffix("\r") for line in lines]
