"""Tokens a second of a training step of BERT blocks, and of PyTorch's on the same machine.

    python -m experiments.benchmarks.learning --out=learning.json

Forward and backward pass and AdamW's update in single precision, on texts of 128 tokens,
some of them padded, with a head of two classes: blocks of width 768 and of width 256, 8 and
32 texts at a time, with dropout of 0.1 and without. Ours is one compiled step; PyTorch runs
``transformers.BertForSequenceClassification`` with the fused AdamW, as it is and through
``torch.compile``, with the same weights, texts and number of threads, in the same process,
which keeps freed memory as our training programs do (``collapipe_jax.core.compilation``). They take
turns, so that other load of the machine affects all alike; the medians are compared.

    python -m experiments.benchmarks.learning --mfu

needs no PyTorch and is meant for an accelerator: the share of the rate of a large 16-bit
matrix product, measured in the same run, that the blocks of BERT-base reach in 16 bits.
"""

import argparse
import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

from collapipe_jax.cli.options import make_parser, read_counts, read_numbers, run_training
from collapipe_jax.core.compilation import cores
from collapipe_jax.core.console import make_table
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.learning.models.bert import bert_encode, init_bert
from collapipe_jax.learning.models.bert_files import load_bert
from collapipe_jax.learning.models.config import BertConfig
from collapipe_jax.learning.models.counts import block_flops
from collapipe_jax.learning.models.layers import Params, example_keys
from experiments.benchmarks.timing import in_turns, timed

CLASSES = 2
THREADS = cores()  # XLA takes as many
LEARNING_RATE = 1e-5
WEIGHT_DECAY = 0.01

_SIZES = {"widths": [768, 256], "blocks": [2, 4], "batches": [8, 32]}
_MFU_SIZES = {"widths": [768], "blocks": [12], "batches": [64, 256]}  # BERT-base
_LOSS_TOLERANCE = 1e-3  # of the first step, as rounding is not the same
_MATRIX_PRODUCTS = 20  # in a row, so that one call lasts


Texts = Mapping[str, np.ndarray]
"""A batch of texts to classify, by the peer's names: arrays ``[B, S]``, and ``labels [B]``."""


def main(argv: Sequence[str]) -> None:
    """Time the steps, print and, if asked, write the figures."""
    options = _options(argv)
    console = Console()
    report: dict[str, Any] = {"device": jax.devices()[0].device_kind}
    if options.mfu:
        rate = matrix_flops_per_s(options.matrix, options.repeats)
        report["mfu"] = [_mfu(*case, options, rate) for case in _cases(options)]
        console.print_json(data=report)
    else:
        report |= {"threads": THREADS, "options": vars(options)}
        report["rows"] = [compare(*case, options) for case in _cases(options)]
        console.print(_table(report["rows"]))
    if options.out:
        write_json(Path(options.out), report)
        console.print(f"written: {options.out}")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(
        __doc__,
        widths=(None, "768,256; with --mfu 768"),
        blocks=(None, "one a width; 2,4; with --mfu 12"),
        batches=(None, "8,32; with --mfu 64,256"),
        dropout=("0.1,0", "rates"),
        sequence=128,
        vocabulary=30522,
        head_width=64,
        repeats=7,
        matrix=(8192, "rows of the large matrices"),
        out=(None, "where to write the figures as JSON"),
    )
    parser.add_argument("--mfu", action="store_true", help="in 16 bits and without PyTorch")
    options = parser.parse_args(argv)
    for name, values in (_MFU_SIZES if options.mfu else _SIZES).items():
        words = getattr(options, name)
        setattr(options, name, values if words is None else read_counts(f"--{name}", words))
    options.dropout = read_numbers("--dropout", options.dropout)
    if len(options.widths) != len(options.blocks):
        raise InputError("--blocks", options.blocks, "not one a width", "Give as many as --widths")
    counts = ("repeats", "sequence", "matrix", "head_width")
    require_positive(**{name: getattr(options, name) for name in counts})
    return options


def _cases(options: argparse.Namespace) -> Iterator[tuple[BertConfig, int]]:
    """All combinations of sizes, texts at a time, and dropout."""
    shapes = list(zip(options.widths, options.blocks, strict=True))
    for (width, blocks), batch, rate in itertools.product(shapes, options.batches, options.dropout):
        config = BertConfig(
            width=width,
            heads=max(width // options.head_width, 1),
            feed_forward_width=4 * width,
            encoder_blocks=blocks,
            vocabulary_size=options.vocabulary,
            positions=max(512, options.sequence),
            dropout_rate=rate,
        )
        yield config, batch


def draw_texts(config: BertConfig, batch: int, sequence: int) -> Texts:
    """Random texts, the first of full length and the others of at least half of it."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(sequence // 2, sequence + 1, batch)
    lengths[0] = sequence
    mask = np.arange(sequence)[None] < lengths[:, None]
    return {
        "input_ids": np.where(mask, rng.integers(1, config.vocabulary_size, mask.shape), 0),
        "attention_mask": mask,
        "token_type_ids": np.zeros(mask.shape, np.int64),
        "labels": rng.integers(0, CLASSES, batch),
    }


def make_step(config: BertConfig, params: Params, texts: Texts) -> Callable[[], float]:
    """One training step of ours, compiled, which keeps its state and returns the loss.

    The ``params`` are those of BERT and the "head" ``{"kernel": [h, 2], "bias": [2]}``; used up.
    """
    tx = optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def loss_of(params: Params, key: jax.Array, batch: dict) -> jax.Array:
        inputs = (batch[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
        numbers = jnp.arange(len(batch["labels"]))
        keys = example_keys(key, numbers) if config.dropout_rate else None
        _, pooled = bert_encode(params, config, *inputs, keys)
        logits = pooled @ params["head"]["kernel"] + params["head"]["bias"][None]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: tuple, batch: dict) -> tuple[tuple, jax.Array]:
        params, moments, key = state
        key, dropout_key = jax.random.split(key)
        loss, gradient = jax.value_and_grad(loss_of)(params, dropout_key, batch)
        updates, moments = tx.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments, key), loss

    batch = {name: jnp.asarray(values) for name, values in texts.items()}
    state = params, tx.init(params), jax.random.key(0)

    def run() -> float:
        nonlocal state
        state, loss = step(state, batch)
        return float(loss)

    return run


def peer_model(config: BertConfig) -> tuple[Any, Any]:
    """PyTorch and its model with fresh weights.

    Raises:
      InputError: if PyTorch or transformers is not installed.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        remedy = 'Run pip install -e ".[bench]", or measure with --mfu alone'
        raise InputError("peer", "PyTorch", f"is not there ({error})", remedy) from None
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    sizes = transformers.BertConfig(
        vocab_size=config.vocabulary_size,
        hidden_size=config.width,
        num_hidden_layers=config.encoder_blocks,
        num_attention_heads=config.heads,
        intermediate_size=config.feed_forward_width,
        max_position_embeddings=config.positions,
        hidden_dropout_prob=config.dropout_rate,
        attention_probs_dropout_prob=config.dropout_rate,
        num_labels=CLASSES,
        attn_implementation="sdpa",  # PyTorch's fused attention
    )
    return torch, transformers.BertForSequenceClassification(sizes).train()


def our_params(model: Any) -> Params:
    """The peer's weights as ours, by way of a checkpoint, with its head."""
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        _, params = load_bert(directory)
    weight, bias = (part.detach().numpy() for part in model.classifier.parameters())
    return params | {"head": {"kernel": jnp.array(weight.T), "bias": jnp.array(bias)}}


def peer_step(
    torch: Any, model: Any, run: Any, texts: Texts, device: str = "cpu", in_16_bits: bool = False
) -> Callable[[], float]:
    """One training step of PyTorch's, which returns the loss.

    It trains the weights of ``model`` by ``run``, the model or what it was compiled to.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
    )
    inputs = {
        name: torch.tensor(np.asarray(each, np.int64), device=device)
        for name, each in texts.items()
    }

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=in_16_bits):
            loss = run(**inputs).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _sizes(config: BertConfig, batch: int) -> dict[str, Any]:
    sizes = {"width": config.width, "blocks": config.encoder_blocks, "batch": batch}
    return sizes | {"dropout": config.dropout_rate}


def compare(config: BertConfig, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of ours and of PyTorch's, in turns, on the same texts.

    Raises:
      RuntimeError: if the first losses differ without dropout: not the same model then.
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
        **_sizes(config, batch),
        "tokens_per_s": rates,
        "ours_over": {name: rates["ours"] / rate for name, rate in rates.items() if name != "ours"},
        "seconds": times_s,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    sizes, cells = ("width", "blocks", "batch", "dropout"), []
    for row in rows:
        rates = (f"{rate:.0f}" for rate in row["tokens_per_s"].values())
        ratios = (f"{ratio:.2f}" for ratio in row["ours_over"].values())
        cells.append((*(str(row[name]) for name in sizes), *rates, *ratios))
    headings = (*sizes, *rows[0]["tokens_per_s"], *(f"ours / {n}" for n in rows[0]["ours_over"]))
    title = "tokens a second of a training step, ours and PyTorch's"
    return make_table(headings, cells, left=0, title=title)


def matrix_flops_per_s(size: int, repeats: int) -> float:
    """FLOPs a second of products of square matrices of 16-bit numbers, median of the calls."""

    @jax.jit
    def products(x: jax.Array, weights: jax.Array) -> jax.Array:
        def product(_: jax.Array, x: jax.Array) -> jax.Array:
            # Scaled so that numbers keep their size.
            y = jnp.matmul(x, weights, preferred_element_type=jnp.float32) * size**-0.5
            return y.astype(x.dtype)

        return jax.lax.fori_loop(0, _MATRIX_PRODUCTS, product, x)

    keys = jax.random.split(jax.random.key(0))
    x, weights = (jax.random.normal(key, (size, size), jnp.bfloat16) for key in keys)
    run = {"products": lambda: jax.block_until_ready(products(x, weights))}
    seconds = float(np.median(in_turns(run, repeats)["products"]))
    return 2.0 * size**3 * _MATRIX_PRODUCTS / seconds


def _mfu(config: BertConfig, batch: int, options: argparse.Namespace, matrix_rate: float) -> dict:
    """As :func:`in_16_bits`, over the measured rate of a matrix product."""
    found = in_16_bits(config, batch, options.sequence, options.repeats)
    share = found["model_flops_per_s"] / matrix_rate
    return {**_sizes(config, batch), **found, "matrix_flops_per_s": matrix_rate, "mfu": share}


def in_16_bits(config: BertConfig, batch: int, sequence: int, repeats: int) -> dict[str, float]:
    """Time and rates of our training step in 16 bits, of fresh weights."""
    config = dataclasses.replace(config, compute_dtype="bfloat16")
    key, head_key = jax.random.split(jax.random.key(0))
    kernel = 0.02 * jax.random.normal(head_key, (config.width, CLASSES))
    params = jax.jit(lambda key: init_bert(key, config))(key)
    params |= {"head": {"kernel": kernel, "bias": jnp.zeros(CLASSES)}}
    step = make_step(config, params, draw_texts(config, batch, sequence))
    return _step_rates(config, batch, sequence, repeats, step)


def peer_in_16_bits(
    config: BertConfig, batch: int, sequence: int, repeats: int, compiled: bool
) -> dict[str, Any]:
    """The same of PyTorch's step, as it is or through ``torch.compile``.

    It computes in 16 bits by ``torch.autocast``, on a GPU where PyTorch has one.
    """
    torch, model = peer_model(config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, texts = model.to(device), draw_texts(config, batch, sequence)
    run = torch.compile(model) if compiled else model
    step = peer_step(torch, model, run, texts, device, in_16_bits=True)
    rates = _step_rates(config, batch, sequence, repeats, step)
    return {"peer_device": device, "attention": model.config._attn_implementation, **rates}


def _step_rates(
    config: BertConfig, batch: int, sequence: int, repeats: int, step: Callable[[], float]
) -> dict[str, float]:
    """Median time of a step after a first one, which compiles, and what follows from it.

    Model FLOPs are those of the blocks' matrix products, forward and twice that backward
    (``models.counts.block_flops``): what embedding, head, AdamW or recomputation cost counts
    as time alone.
    """
    first_s, _ = timed(step)
    seconds = float(np.median(in_turns({"step": step}, repeats)["step"]))
    per_block = block_flops(sequence, config.width, config.feed_forward_width)
    flops = 3.0 * batch * config.encoder_blocks * per_block
    return {
        "first_step_s": first_s,
        "step_s": seconds,
        "tokens_per_s": batch * sequence / seconds,
        "model_flops_per_s": flops / seconds,
    }


if __name__ == "__main__":
    raise SystemExit(run_training(main))
