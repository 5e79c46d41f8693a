"""Tokens a second of a training step of BERT blocks, and of PyTorch's on the same machine.

    python -m experiments.benchmarks.training --out=training.json

Forward and backward pass and Adam's update in single precision, on texts of 128 tokens,
some of them padded, with a head that tells two classes apart: blocks of width 768 and of
width 256, 8 and 32 texts at a time, with dropout of 0.1 and without. Ours is one compiled
step; PyTorch runs `transformers.BertForSequenceClassification` with the fused Adam, as it
is and through `torch.compile`, with the same weights, texts and number of threads, in the
same process, which keeps what is freed as our training programs do
(`collapipe_jax.host_memory`). They take turns, so that whatever else the machine does meets
all of them; the medians are compared.

    python -m experiments.benchmarks.training --mfu

needs no PyTorch and is meant for an accelerator: the share of the rate of a large 16-bit
matrix product, measured in the same run, that the blocks of BERT-base reach in 16 bits.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from collapipe_jax.command_line import require_positive, run_training
from collapipe_jax.errors import InputError
from collapipe_jax.files.atomic import write_text
from collapipe_jax.models.config import BertConfig
from experiments.benchmarks.bert_step import draw_texts, in_turns, make_step
from experiments.benchmarks.mfu import measure_mfu
from experiments.benchmarks.torch_step import our_params, peer_model, peer_step, threads

_SIZES = {"widths": [768, 256], "blocks": [2, 4], "batches": [8, 32]}
_MFU_SIZES = {"widths": [768], "blocks": [12], "batches": [64, 256]}  # BERT-base

# Losses of the first step may differ by this much, as rounding is not the same.
_LOSS_TOLERANCE = 1e-3


def main(argv: Sequence[str]) -> None:
    """Time the steps, print and, if asked, write the figures."""
    options = _options(argv)
    console = Console()
    if options.mfu:
        rows = measure_mfu(_cases(options), options.sequence, options.matrix, options.repeats)
        report = {"device": jax.devices()[0].device_kind, "mfu": rows}
        console.print_json(data=report)
    else:
        report = {"device": jax.devices()[0].device_kind, "rows": []}
        report |= {"threads": threads(), "options": vars(options)}
        for config, batch in _cases(options):
            report["rows"].append(compare(config, batch, options))
        console.print(_table(report["rows"]))
    if options.out:
        write_text(Path(options.out), json.dumps(report, indent=1) + "\n")
        console.print(f"written: {options.out}")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mfu", action="store_true", help="in 16 bits and without PyTorch")
    parser.add_argument("--widths", type=_numbers(int), help="768,256; with --mfu 768")
    parser.add_argument("--blocks", type=_numbers(int), help="one a width; 2,4; with --mfu 12")
    parser.add_argument("--batches", type=_numbers(int), help="8,32; with --mfu 64,256")
    parser.add_argument("--dropout", type=_numbers(float), default=[0.1, 0.0])
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--matrix", type=int, default=8192, help="rows of the large matrices")
    parser.add_argument("--out", help="where to write the figures as JSON")
    options = parser.parse_args(argv)
    for name, values in (_MFU_SIZES if options.mfu else _SIZES).items():
        setattr(options, name, getattr(options, name) or values)
    if len(options.widths) != len(options.blocks):
        raise InputError("--blocks", options.blocks, "not one a width", "Give as many as --widths")
    require_positive(
        repeats=options.repeats,
        sequence=options.sequence,
        matrix=options.matrix,
        head_width=options.head_width,
    )
    return options


def _numbers(kind: type) -> Callable[[str], list]:
    return lambda text: [kind(part) for part in text.split(",")]


def _cases(options: argparse.Namespace) -> Iterator[tuple[BertConfig, int]]:
    """All combinations of sizes, texts at a time, and dropout."""
    shapes = list(zip(options.widths, options.blocks, strict=True))
    for (width, blocks), batch, rate in itertools.product(shapes, options.batches, options.dropout):
        yield _sizes(options, width, blocks, rate), batch


def _sizes(options: argparse.Namespace, width: int, blocks: int, rate: float) -> BertConfig:
    return BertConfig(
        width=width,
        heads=max(width // options.head_width, 1),
        feed_forward_width=4 * width,
        encoder_blocks=blocks,
        vocabulary_size=options.vocabulary,
        positions=max(512, options.sequence),
        dropout_rate=rate,
    )


def compare(config: BertConfig, batch: int, options: argparse.Namespace) -> dict:
    """Tokens a second of ours and of PyTorch's, in turns, on the same texts.

    Raises:
      RuntimeError: If the first losses differ without dropout: not the same model then.
    """
    texts = draw_texts(config, batch, options.sequence)
    torch, model = peer_model(config)
    # Parameters are fetched before PyTorch trains.
    works = {"ours": make_step(config, our_params(model), texts)}
    works["eager"] = peer_step(torch, model, model, texts)
    works["compiled"] = peer_step(torch, model, torch.compile(model), texts)
    losses = [works["ours"](), works["eager"]()]
    if config.dropout_rate == 0.0 and abs(losses[0] - losses[1]) > _LOSS_TOLERANCE:
        raise RuntimeError(f"the models differ: losses {losses}")
    works["compiled"]()  # compiles
    times_s = in_turns(works, options.repeats)
    tokens = batch * options.sequence
    rates = {name: tokens / float(np.median(seconds)) for name, seconds in times_s.items()}
    return {
        "width": config.width,
        "blocks": config.encoder_blocks,
        "batch": batch,
        "dropout": config.dropout_rate,
        "tokens_per_s": rates,
        "ours_over": {name: rates["ours"] / rate for name, rate in rates.items() if name != "ours"},
        "seconds": times_s,
    }


def _table(rows: list[dict]) -> Table:
    table = Table(title="tokens a second of a training step, ours and PyTorch's")
    names = list(rows[0]["tokens_per_s"])
    headings = ["width", "blocks", "batch", "dropout", *names]
    for heading in [*headings, *(f"ours / {name}" for name in names[1:])]:
        table.add_column(heading, justify="right")
    for row in rows:
        sizes = [str(row[name]) for name in ("width", "blocks", "batch", "dropout")]
        rates = [f"{rate:.0f}" for rate in row["tokens_per_s"].values()]
        table.add_row(*sizes, *rates, *(f"{ratio:.2f}" for ratio in row["ours_over"].values()))
    return table


if __name__ == "__main__":
    sys.exit(run_training(main, sys.argv[1:]))
