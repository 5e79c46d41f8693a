"""Translation: an encoder-decoder, parallel text, and BLEU."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from collapipe_jax.models.config import TransformerConfig
from collapipe_jax.models.decoding import beam_decode, greedy_decode
from collapipe_jax.models.layers import Params
from collapipe_jax.models.transformer import TranslationBatch, Translator
from collapipe_jax.objectives.held_out import held_out_loss, in_batches
from collapipe_jax.objectives.objective import SCORE_NAMES, Validation
from collapipe_jax.tasks.scores import Score, bleu, copy_baseline
from collapipe_jax.tasks.tokenizer import Tokenizer
from collapipe_jax.tasks.translation import ParallelArrays, ParallelSentences, TranslationData


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation:
    """The ``Objective`` of translating.

    Attributes:
      model: what is trained.
      data: corpus, tokenizer and sets.
      beams: of the beam search on the test set.
      length_penalty: of the beam search.
    """

    model: Translator
    data: TranslationData
    beams: int
    length_penalty: float
    score_name: str = SCORE_NAMES["translation"]
    headline: str = "test_bleu_greedy"
    baseline: str = "test_bleu_copy"

    @property
    def train(self) -> TranslationBatch:
        """Token numbers of all training pairs."""
        return TranslationBatch(*self.data.train)

    def draw(self, rows: np.ndarray, seed: Sequence[int]) -> TranslationBatch:
        """Training pairs as they are."""
        return jax.tree.map(lambda leaf: leaf[rows], self.train)

    @property
    def split_keys(self) -> np.ndarray:
        """Classes of the sources by length."""
        return self.data.keys

    def starting_params(self, fresh: Params) -> Params:
        """Fresh ones: every run learns a vocabulary of its own."""
        return fresh

    def validate(self, params: Params) -> Validation:
        """Loss and BLEU of greedy translations."""
        data = self.data
        loss = held_out_loss(params, self.model, TranslationBatch(*data.validation))
        score = self._score(params, data.validation, data.validation_text)
        return Validation(loss, score.value)

    def baseline_score(self) -> float:
        """BLEU of handing the source back."""
        return copy_baseline(*self.data.validation_text).value

    def test(self, params: Params) -> dict[str, Any]:
        """BLEU, greedy and with several beams by their search, of copying, and the loss."""
        data = self.data
        greedy = self._score(params, data.test, data.test_text)
        scores = {"test_bleu_greedy": greedy.value}
        if self.beams > 1:
            beam = self._score(params, data.test, data.test_text, self.beams, self.length_penalty)
            scores["test_bleu_beam"] = beam.value
        return {
            **scores,
            "test_bleu_copy": copy_baseline(*data.test_text).value,
            "bleu_signature": greedy.signature,
            "test_loss": held_out_loss(params, self.model, TranslationBatch(*data.test)),
            "dropped_pairs": data.dropped._asdict(),
        }

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write nothing: such models have no common layout, the checkpoint holds all of it."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the tokenizer."""
        self.data.tokenizer.save(Path(folder) / "tokenizer.json")

    def _score(
        self,
        params: Params,
        arrays: ParallelArrays,
        text: ParallelSentences,
        beams: int = 1,
        length_penalty: float = 0.0,
    ) -> Score:
        sizes, tokenizer = self.model.sizes, self.data.tokenizer
        said = translate(params, sizes, tokenizer, arrays.source_ids, beams, length_penalty)
        return bleu(said, text.references)


def translate(
    params: Params,
    config: TransformerConfig,
    tokenizer: Tokenizer,
    source_ids: np.ndarray,
    beams: int = 1,
    length_penalty: float = 0.0,
) -> list[str]:
    """Translations of sources ``[n, source_length]``, greedy for one beam."""
    if beams == 1:
        decode = functools.partial(greedy_decode, params, config)
    else:
        decode = functools.partial(
            beam_decode, params, config, beams=beams, length_penalty=length_penalty
        )
    return tokenizer.decode_batch(in_batches(decode, source_ids))
