"""Tokens a second of a step of LoRA on SmolLM2-135M, and of PyTorch with ``peft`` beside it.

    python -m experiments.benchmarks.adapters --out=adapters.json
    python -m experiments.benchmarks.adapters --model=models/SmolLM2-135M

Forward and backward pass and AdamW's update of adapters of rank 8 on all linear maps of all
blocks, in single precision, on rows full of tokens. The base, its tables and its last norm are
frozen in both. Ours is one compiled step; PyTorch runs ``transformers.LlamaForCausalLM`` in
``peft``, as it is, with the same weights, adapters, tokens and number of threads, in the same
process. They take turns, so that other load of the machine affects both alike. ``--model``
takes weights and sizes of a folder; without it weights are fresh.
"""

import argparse
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_training
from collapipe_jax.core.compilation import cores
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.learning.models.adapters import add_adapters, join, split
from collapipe_jax.learning.models.block import encode
from collapipe_jax.learning.models.causal_files import load_causal_lm
from collapipe_jax.learning.models.causal_lm import CausalBatch, CausalLM
from collapipe_jax.learning.models.config import GATED_LAYERS, AdapterConfig, CausalConfig
from collapipe_jax.learning.models.layers import Params
from experiments.benchmarks.timing import in_turns, timed

SMOLLM2 = CausalConfig(
    width=576,
    heads=9,
    head_size=64,
    key_value_heads=3,
    feed_forward_width=1536,
    encoder_blocks=30,
    vocabulary_size=49_152,
    positions=8192,
    rotary_base=100_000,
    norm_epsilon=1e-5,
    initial_deviation=0.02,
)
"""Sizes of SmolLM2-135M (Ben Allal et al. 2502.02737)."""
ADAPTERS = AdapterConfig(rank=8, alpha=16.0, targets=GATED_LAYERS)
LEARNING_RATE = 1e-4
_LOSS_TOLERANCE = 1e-3  # of the first step, as rounding is not the same


def main(argv: Sequence[str]) -> None:
    """Time the steps, print and, if asked, write the figures."""
    parser = make_parser(
        __doc__,
        batch=(8, "rows at a time"),
        sequence=(256, "tokens of a row"),
        repeats=5,
        blocks=(30, "of fresh weights"),
        model=(None, "a folder of a Llama"),
        out=(None, "where to write the figures as JSON"),
    )
    options = parser.parse_args(argv)
    counts = ("batch", "sequence", "repeats", "blocks")
    require_positive(**{name: getattr(options, name) for name in counts})
    console, report = Console(), compare(options)
    console.print_json(data=report)
    if options.out:
        write_json(Path(options.out), report)
        console.print(f"written: {options.out}")


def draw_tokens(config: CausalConfig, batch: int, sequence: int) -> np.ndarray:
    """Random rows ``[B, S + 1]``."""
    rng = np.random.default_rng(0)
    return rng.integers(0, config.vocabulary_size, (batch, sequence + 1))


def make_step(config: CausalConfig, params: Params, tokens: np.ndarray) -> Callable[[], float]:
    """One training step of ours, compiled, which keeps its state and returns the loss.

    ``params`` are of the model with adapters; all but these are frozen.
    """
    model, tx = CausalLM(sizes=config), optax.adamw(LEARNING_RATE, weight_decay=0.0)

    def loss_of(adapters: Params, frozen: Params, batch: CausalBatch) -> jax.Array:
        params = join({"encoder": adapters}, frozen)
        x, mask = model.embed(params["embedding"], batch, None)
        encoded = encode(params["encoder"], config, x, mask)
        losses, counts = model.losses(params["decoder"], encoded, batch, None)
        return losses.sum() / counts.sum()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: tuple, frozen: Params, batch: CausalBatch) -> tuple[tuple, jax.Array]:
        adapters, moments = state
        loss, gradient = jax.value_and_grad(loss_of)(adapters, frozen, batch)
        updates, moments = tx.update(gradient, moments, adapters)
        return (optax.apply_updates(adapters, updates), moments), loss

    trained, base = split(params)
    adapters, frozen = trained["encoder"], {**base, "decoder": params["decoder"]}
    batch = CausalBatch(jnp.asarray(tokens, jnp.int32))
    state = adapters, tx.init(adapters)

    def run() -> float:
        nonlocal state
        state, loss = step(state, frozen, batch)
        return float(loss)

    return run


def peer_model(config: CausalConfig, folder: str | None) -> tuple[Any, Any]:
    """PyTorch and its Llama, of a folder or with fresh weights.

    Raises:
      InputError: if PyTorch, transformers or peft is not installed.
    """
    try:
        import peft  # noqa: F401
        import torch
        import transformers
    except ImportError as error:
        remedy = 'Run pip install -e ".[bench]"'
        raise InputError("peer", "peft", f"is not there ({error})", remedy) from None
    torch.set_num_threads(cores())  # XLA takes as many
    torch.manual_seed(0)
    if folder:
        model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return torch, model
    sizes = transformers.LlamaConfig(
        vocab_size=config.vocabulary_size,
        hidden_size=config.width,
        intermediate_size=config.feed_forward_width,
        num_hidden_layers=config.encoder_blocks,
        num_attention_heads=config.heads,
        num_key_value_heads=config.key_value_heads,
        max_position_embeddings=config.positions,
        rope_theta=float(config.rotary_base),
        rms_norm_eps=config.norm_epsilon,
        tie_word_embeddings=True,
    )
    return torch, transformers.LlamaForCausalLM(sizes)


def peer_step(
    torch: Any, model: Any, tokens: np.ndarray, device: str = "cpu", in_16_bits: bool = False
) -> Callable[[], float]:
    """One training step of ``peft``'s, which returns the loss."""
    import peft

    sizes = peft.LoraConfig(
        r=ADAPTERS.rank,
        lora_alpha=ADAPTERS.alpha,
        target_modules="all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(model, sizes).train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    ids = torch.tensor(np.asarray(tokens, np.int64), device=device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=in_16_bits):
            logits = model(input_ids=inputs, use_cache=False).logits
        logits = logits.float().reshape(-1, logits.shape[-1])
        loss = torch.nn.functional.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of ours and of ``peft``'s, in turns.

    Raises:
      RuntimeError: if the first losses differ: not the same model then.
    """
    config = dataclasses.replace(SMOLLM2, encoder_blocks=options.blocks)
    torch, model = peer_model(config, options.model)
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        config, params, _ = load_causal_lm(directory)
    config = dataclasses.replace(config, adapters=ADAPTERS)
    params = add_adapters(jax.random.key(0), params, ADAPTERS)
    tokens = draw_tokens(config, options.batch, options.sequence)
    works = {"ours": make_step(config, params, tokens), "peft": peer_step(torch, model, tokens)}
    # As ``B`` is 0, fresh adapters change nothing.
    losses = {name: work() for name, work in works.items()}
    if abs(losses["ours"] - losses["peft"]) > _LOSS_TOLERANCE:
        raise RuntimeError(f"the models differ: losses {losses}")
    times_s = in_turns(works, options.repeats)
    medians = {name: float(np.median(seconds)) for name, seconds in times_s.items()}
    tokens_of_step = options.batch * options.sequence
    return {
        "options": vars(options),
        "threads": cores(),
        "tokens_per_s": {name: tokens_of_step / seconds for name, seconds in medians.items()},
        "ours_over_peft": medians["peft"] / medians["ours"],
        "seconds": times_s,
    }


def in_16_bits(config: CausalConfig, batch: int, sequence: int, repeats: int) -> dict[str, Any]:
    """Time and tokens a second of our step in 16 bits, of fresh weights."""
    config = dataclasses.replace(config, compute_dtype="bfloat16", adapters=ADAPTERS)
    params = jax.jit(CausalLM(sizes=config).init)(jax.random.key(0))
    params = add_adapters(jax.random.key(1), params, ADAPTERS)
    step = make_step(config, params, draw_tokens(config, batch, sequence))
    return _rates(step, batch * sequence, repeats)


def peer_in_16_bits(
    config: CausalConfig, batch: int, sequence: int, repeats: int
) -> dict[str, Any]:
    """The same of ``peft``'s, by ``torch.autocast``, on a GPU where PyTorch has one."""
    torch, model = peer_model(config, None)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = draw_tokens(config, batch, sequence)
    step = peer_step(torch, model.to(device), tokens, device, in_16_bits=True)
    return {"peer_device": device, **_rates(step, batch * sequence, repeats)}


def _rates(step: Callable[[], float], tokens: int, repeats: int) -> dict[str, float]:
    first_s, _ = timed(step)
    step_s = float(np.median(in_turns({"step": step}, repeats)["step"]))
    return {"first_step_s": first_s, "step_s": step_s, "tokens_per_s": tokens / step_s}


if __name__ == "__main__":
    raise SystemExit(run_training(main))
