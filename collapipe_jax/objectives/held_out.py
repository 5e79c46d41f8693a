"""Loss and score of a model on held-out text."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.models.config import TransformerConfig
from collapipe_jax.models.decoding import beam_decode, greedy_decode
from collapipe_jax.models.layers import Params
from collapipe_jax.models.transformer import TranslationBatch, token_losses
from collapipe_jax.tasks.scores import Score, bleu
from collapipe_jax.tasks.tokenizer import Tokenizer
from collapipe_jax.tasks.translation import ParallelArrays, ParallelSentences

_BATCH = 100


def held_out_loss(params: Params, config: TransformerConfig, arrays: ParallelArrays) -> float:
    """Negative log-likelihood in nats a token over all pairs: no dropout, no smoothing."""
    config = dataclasses.replace(config, label_smoothing=0.0)
    total, tokens = 0.0, 0.0
    for rows in _batches(len(arrays.source_ids)):
        batch = TranslationBatch(arrays.source_ids[rows], arrays.target_ids[rows])
        loss_sum, token_count = _token_losses(params, config, batch)
        total += float(np.sum(loss_sum))
        tokens += float(np.sum(token_count))
    return total / tokens


@functools.partial(jax.jit, static_argnames="config")
def _token_losses(params, config, batch):
    return token_losses(params, config, batch)


def translate(
    params: Params,
    config: TransformerConfig,
    tokenizer: Tokenizer,
    source_ids: np.ndarray,
    beams: int = 1,
    length_penalty: float = 0.0,
) -> list[str]:
    """Translations of sources ``[n, source_length]``, greedy for one beam."""
    texts: list[str] = []
    for rows in _batches(len(source_ids)):
        source = jnp.asarray(source_ids[rows])
        if beams == 1:
            ids = greedy_decode(params, config, source)
        else:
            ids = beam_decode(params, config, source, beams=beams, length_penalty=length_penalty)
        texts += tokenizer.decode_batch(np.asarray(ids))
    return texts


def held_out_score(
    params: Params,
    config: TransformerConfig,
    tokenizer: Tokenizer,
    arrays: ParallelArrays,
    text: ParallelSentences,
    beams: int = 1,
    length_penalty: float = 0.0,
) -> Score:
    """BLEU of the translations of held-out sources."""
    hypotheses = translate(params, config, tokenizer, arrays.source_ids, beams, length_penalty)
    return bleu(hypotheses, text.references)


def _batches(count: int) -> Sequence[np.ndarray]:
    """Rows in batches of at most ``_BATCH``: one or two shapes, so as many compilations."""
    return np.split(np.arange(count), range(_BATCH, count, _BATCH))
