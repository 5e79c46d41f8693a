"""Translation: an encoder-decoder on parallel text, scored by BLEU."""

import dataclasses
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jax import Array

from collapipe_jax.cost import model_counts
from collapipe_jax.errors import under_keys
from collapipe_jax.models.config import Ids, TransformerConfig, encoder_sizes
from collapipe_jax.models.decoding import beam_search, greedy_decode
from collapipe_jax.models.layers import Params
from collapipe_jax.models.transformer import TranslationBatch, Translator
from collapipe_jax.tasks.scores import Score, bleu
from collapipe_jax.tasks.subwords import BpeTokenizer
from collapipe_jax.tasks.task import Config, ModelCounts, Objective, Task, held_out_loss, in_batches
from collapipe_jax.tasks.translation_data import (
    ParallelSentences,
    TranslationData,
    load_translation,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(Objective):
    """The objective of translating, with the settings of the beam search on the test set."""

    headline: ClassVar[str] = "test_bleu_greedy"
    baseline: ClassVar[str] = "test_bleu_copy"

    model: Translator
    data: TranslationData
    beams: int
    length_penalty: float

    def validation_score(self, params: Params) -> float:
        """BLEU of greedy translations."""
        return self._score(params, self.data.validation, self.data.validation_text).value

    def baseline_score(self) -> float:
        """BLEU of copying the source."""
        return bleu(*self.data.validation_text).value

    def test(self, params: Params) -> dict[str, Any]:
        """BLEU of greedy search, of beam search if there are several beams, and of copying."""
        data = self.data
        greedy = self._score(params, data.test, data.test_text)
        scores = {"test_bleu_greedy": greedy.value}
        if self.beams > 1:
            beam = self._score(params, data.test, data.test_text, self.beams)
            scores["test_bleu_beam"] = beam.value
        return {
            **scores,
            "test_bleu_copy": bleu(*data.test_text).value,
            "bleu_signature": greedy.signature,
            "test_loss": held_out_loss(params, self.model, data.test),
            "dropped_pairs": data.dropped,
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the tokenizer."""
        self.data.tokenizer.model.save(str(Path(folder) / "tokenizer.json"))

    def _score(
        self, params: Params, arrays: TranslationBatch, text: ParallelSentences, beams: int = 1
    ) -> Score:
        sizes, ids = self.model.sizes, arrays.source_ids
        said = translate(params, sizes, self.data.tokenizer, ids, beams, self.length_penalty)
        return bleu(said, text.references)


def translate(
    params: Params,
    config: TransformerConfig,
    tokenizer: BpeTokenizer,
    source_ids: np.ndarray,
    beams: int = 1,
    length_penalty: float = 0.0,
) -> list[str]:
    """Translations of sources ``[n, source_length]``, greedy for one beam."""

    def decode(ids: Ids) -> Array:
        if beams == 1:
            return greedy_decode(params, config, ids)
        return beam_search(params, config, ids, beams=beams, length_penalty=length_penalty)[0]

    return tokenizer.decode_batch(in_batches(decode, source_ids))


_SIZES = ("vocabulary_size", "source_length", "target_length")


def make_sizes(config: Config) -> TransformerConfig:
    """Sizes of the encoder-decoder."""
    task, model = config["task"], config["model"]
    with under_keys({f"model.{key}": f"task.{key}" for key in _SIZES}):
        return TransformerConfig(
            **{key: task[key] for key in _SIZES},
            **encoder_sizes(model),
            decoder_blocks=model["decoder_blocks"],
            label_smoothing=model["label_smoothing"],
        )


def make_objective(config: Config) -> Translation:
    """Read or generate the corpus."""
    return Translation(
        model=Translator(make_sizes(config)),
        data=load_data(config),
        beams=config["evaluation"]["beams"],
        length_penalty=config["evaluation"]["length_penalty"],
    )


def load_data(config: Config) -> TranslationData:
    """Parallel text of the configuration, tokenised and split."""
    keys = ("corpus", "pairs", "validation_pairs", "test_pairs", "reverse", *_SIZES)
    return load_translation(seed=config["seed"], **{key: config["task"][key] for key in keys})


def count_work(config: Config) -> ModelCounts:
    """Table of tokens in front of the encoder, decoder with tied weights behind it."""
    task, model = config["task"], config["model"]
    vocabulary_size, width = task["vocabulary_size"], model["width"]
    inner, blocks = model["feed_forward_width"], model["decoder_blocks"]
    return ModelCounts(
        sequence=task["source_length"],
        target_tokens=task["target_length"],
        embedding_parameters=model_counts.embedding_parameters(vocabulary_size, width),
        decoder_parameters=model_counts.decoder_parameters(vocabulary_size, width, inner, blocks),
        embed_flops=model_counts.embedding_flops(task["source_length"], width),
        decoder_flops=model_counts.decoder_flops(
            source_length=task["source_length"],
            target_length=task["target_length"],
            width=width,
            feed_forward_width=inner,
            blocks=blocks,
            vocabulary_size=vocabulary_size,
            rematerialise=model["rematerialise"],
        ),
    )


TRANSLATION = Task(
    score_name="BLEU",
    make_sizes=make_sizes,
    make_objective=make_objective,
    count_work=count_work,
    reads=frozenset({"task.reverse"}),
)
