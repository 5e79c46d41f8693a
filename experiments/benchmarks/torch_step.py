"""The training step of :mod:`bert_step` as PyTorch's `transformers` has it."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.models.config import BertConfig
from collapipe_jax.models.layers import Params
from collapipe_jax.models.pretrained import load_bert
from experiments.benchmarks.bert_step import CLASSES, LEARNING_RATE, Texts


def threads() -> int:
    """Cores that this process may use; XLA takes as many threads."""
    return len(os.sched_getaffinity(0))


def peer_model(config: BertConfig) -> tuple[Any, Any]:
    """PyTorch and its model with fresh weights.

    Args:
      config: Sizes, and what dropout there is.

    Raises:
      InputError: If PyTorch or transformers is not installed.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        remedy = 'Run pip install -e ".[bench]", or measure with --mfu alone'
        raise InputError("peer", "PyTorch", f"is not there ({error})", remedy) from None
    torch.set_num_threads(threads())
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
    )
    return torch, transformers.BertForSequenceClassification(sizes).train()


def our_params(model: Any) -> Params:
    """The peer's weights as ours, by way of a checkpoint, with its head.

    Args:
      model: From `peer_model`.
    """
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        _, params = load_bert(directory)
    weight, bias = (part.detach().numpy() for part in model.classifier.parameters())
    return params | {"head": {"kernel": jnp.array(weight.T), "bias": jnp.array(bias)}}


def peer_step(torch: Any, model: Any, run: Any, texts: Texts) -> Callable[[], float]:
    """One training step of PyTorch's, which returns the loss.

    Args:
      torch: PyTorch.
      model: Whose weights are trained.
      run: The model, or what it was compiled to.
      texts: A batch.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    inputs = {
        "input_ids": torch.tensor(texts.token_ids),
        "attention_mask": torch.tensor(texts.mask.astype(np.int64)),
        "token_type_ids": torch.tensor(texts.token_types),
        "labels": torch.tensor(texts.labels),
    }

    def step() -> float:
        optimizer.zero_grad()
        loss = run(**inputs).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
