"""A training step of BERT with a head that tells classes apart, and calls timed in turns."""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from collapipe_jax.models.bert import bert_encode
from collapipe_jax.models.config import BertConfig
from collapipe_jax.models.layers import Params

CLASSES = 2
LEARNING_RATE = 1e-5


class Texts(NamedTuple):
    """A batch of texts to classify.

    Attributes:
      token_ids, mask, token_types: `[B, S]`.
      labels: `[B]`.
    """

    token_ids: np.ndarray
    mask: np.ndarray
    token_types: np.ndarray
    labels: np.ndarray


def draw_texts(config: BertConfig, batch: int, sequence: int, seed: int = 0) -> Texts:
    """Random texts, the first of full length and the others of at least half of it.

    Args:
      config: Sizes.
      batch: How many.
      sequence: Tokens of the longest.
      seed: Of the draw.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(sequence // 2, sequence + 1, batch)
    lengths[0] = sequence
    mask = np.arange(sequence)[None] < lengths[:, None]
    return Texts(
        token_ids=np.where(mask, rng.integers(1, config.vocabulary_size, mask.shape), 0),
        mask=mask,
        token_types=np.zeros(mask.shape, np.int64),
        labels=rng.integers(0, CLASSES, batch),
    )


def make_step(config: BertConfig, params: Params, texts: Texts) -> Callable[[], float]:
    """One training step of ours, compiled, which keeps its state and returns the loss.

    Args:
      config: Sizes, and what dropout there is.
      params: Of BERT and the "head" `{"kernel": [h, 2], "bias": [2]}`; used up.
      texts: A batch.
    """
    tx = optax.adam(LEARNING_RATE)

    def loss_of(params: Params, key: jax.Array, batch: Texts) -> jax.Array:
        _, pooled = bert_encode(
            params,
            config,
            batch.token_ids,
            batch.mask,
            batch.token_types,
            dropout_key=key if config.dropout_rate else None,
        )
        logits = pooled @ params["head"]["kernel"] + params["head"]["bias"][None]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: tuple, batch: Texts) -> tuple[tuple, jax.Array]:
        params, moments, key = state
        key, dropout_key = jax.random.split(key)
        loss, gradient = jax.value_and_grad(loss_of)(params, dropout_key, batch)
        updates, moments = tx.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments, key), loss

    batch = jax.tree.map(jnp.asarray, texts)
    state = params, tx.init(params), jax.random.key(0)

    def run() -> float:
        nonlocal state
        state, loss = step(state, batch)
        return float(loss)

    return run


def in_turns(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every call, after one more to warm up.

    Args:
      works: What to call, by name.
      repeats: Calls of each that are timed.
    """
    times_s: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(repeats):
        for name, work in works.items():
            start_s = time.perf_counter()
            work()
            times_s[name].append(time.perf_counter() - start_s)
    return times_s
