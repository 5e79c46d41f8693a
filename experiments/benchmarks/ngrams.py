"""An n-gram model with modified Kneser-Ney smoothing, on the tokens of a language model's run.

    python -m experiments.benchmarks.ngrams --run=runs/english

Reads the corpus and learns the vocabulary as the run did, so perplexities a token compare. The
n-gram model trains on all training texts. Needs the package knlm of the extra `bench`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collapipe_jax.cli.options import make_parser, read_counts, run_reporting_errors
from collapipe_jax.core.console import console_for_tables, make_table
from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import write_json
from collapipe_jax.learning.models.tensor_files import read_json
from collapipe_jax.learning.tasks.causal_lm import (
    LanguageModelling,
    bits_per_byte,
    count_bytes,
    count_targets,
    perplexity,
)
from collapipe_jax.learning.tasks.plain_text import TextSets
from collapipe_jax.learning.tasks.subwords import ByteTokenizer

_NUMBER_BYTES = 4  # of a token's number in the library


def main(argv: Sequence[str]) -> None:
    """Train and score a model of every order, and print one table."""
    orders = ("3,5", "orders from 2 on, with commas")
    out = ("", "file for the scores")
    options = make_parser(__doc__, "run", orders=orders, out=out).parse_args(argv)
    numbers = read_counts("--orders", options.orders)
    if min(numbers) < 2:
        problem = "smoothing needs a shorter history to fall back to"
        raise InputError("--orders", options.orders, problem, "Give 2 or more")
    config = read_json(Path(options.run) / "config.json", "Name the workdir of a run")
    if config.get("task", {}).get("kind") != "causal_lm":
        raise InputError("--run", options.run, "no run of causal_lm", "Name the workdir of one")
    sets = LanguageModelling.read_corpus(config)
    if sets is None:
        raise InputError("--run", options.run, "its sentences are invented", "Name a run on files")
    if not sets.test:
        problem, remedy = "has no test set", "Name a run with task.test"
        raise InputError("--run", options.run, problem, remedy)
    data = LanguageModelling.from_config(config, sets).data
    tokens, test_bytes = count_targets(data.test.arrays), count_bytes(data.test.text)
    scores = {}
    for order in numbers:
        loss = test_loss(data.tokenizer, sets, order)
        bits = bits_per_byte(loss, tokens, test_bytes)
        scores[str(order)] = {"perplexity": perplexity(loss), "bits_per_byte": bits}
    if options.out:
        write_json(Path(options.out), {"tokens": tokens, "orders": scores})
    rows = [
        (order, f"{own['perplexity']:.2f}", f"{own['bits_per_byte']:.3f}")
        for order, own in scores.items()
    ]
    headings = "order", "test perplexity", "bits a byte"
    title = f"{len(sets.train)} training texts, {tokens} test tokens"
    console_for_tables(60).print(make_table(headings, rows, left=0, title=title))


def test_loss(tokenizer: ByteTokenizer, sets: TextSets, order: int) -> float:
    """Nats a test token, ends of texts included and begins not.

    Source: Chen and Goodman, An empirical study of smoothing techniques for language modeling
    (1999).
    """
    from knlm import KneserNey

    def words(texts: list[str]) -> list[list[str]]:
        (begin,), end = tokenizer.prefix, tokenizer.ends[0]
        return [[str(n) for n in (begin, *ids, end)] for ids in tokenizer.encode(texts)]

    model: Any = KneserNey(order, _NUMBER_BYTES)
    for text in words(sets.train):
        model.train(text)
    model.optimize()
    log_shares = [model.evaluateEachWord(text)[1:] for text in words(sets.test)]
    return -float(np.mean(np.concatenate(log_shares)))


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
