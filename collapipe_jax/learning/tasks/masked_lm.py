"""Masked language modelling: texts without labels, BERT learns to find hidden pieces.

The trained BERT is a start for the other tasks (``model.pretrained``). No test set is read: there
is no key for one, and the scores are those of the validation set.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models import counts
from collapipe_jax.learning.models.bert import UNLABELLED
from collapipe_jax.learning.models.config import PAD_ID, BertConfig
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.masked_lm import MaskedBatch, MaskedBert, predict_pieces
from collapipe_jax.learning.models.pretrained import MASKED_LM_SETTINGS
from collapipe_jax.learning.tasks import bert
from collapipe_jax.learning.tasks.masking import Masking, most_hidden
from collapipe_jax.learning.tasks.plain_text import TextSets, read_text_sets
from collapipe_jax.learning.tasks.sampling import seeded_generator
from collapipe_jax.learning.tasks.scores import perplexity
from collapipe_jax.learning.tasks.subwords import MASK, WordPiece, pad_rows
from collapipe_jax.learning.tasks.task import (
    Config,
    ModelCounts,
    Predictor,
    Task,
    held_out_loss,
    in_batches,
)
from collapipe_jax.learning.tasks.translation import length_labels

_HELD_OUT_SEED = 0
"""Of the pieces that are hidden in validation, the same in every run."""


class MaskedData(NamedTuple):
    """Arrays and vocabulary of masked language modelling."""

    wordpiece: WordPiece
    # Windows of the texts, with pieces hidden once and for all, NumPy leaves ``[n, ...]``
    train: MaskedBatch
    validation: MaskedBatch
    whole: np.ndarray  # training windows without anything hidden, ``[n, S]``
    split_keys: np.ndarray  # class of length of every training window, ``[n]``


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelling(bert.BertObjective):
    """The objective of finding hidden pieces, drawn anew in every pass."""

    headline: ClassVar[str] = "validation_masked_accuracy"
    baseline: ClassVar[str] = "validation_masked_accuracy_majority"
    sets: ClassVar[tuple[str, ...]] = ("train", "validation")

    model: MaskedBert
    data: MaskedData
    masking: Masking

    @classmethod
    def read_corpus(cls, config: Config) -> TextSets:
        """Read the texts; report all that is wrong with the files at once."""
        read = functools.partial(read_text_sets, tagged=config["task"].get("tagged", False))
        names = ("train", "validation", "text_column")
        return bert.read_corpus(config, read, names, ("samples", "validation_samples"))

    @classmethod
    def load_data(cls, config: Config, corpus: TextSets | None = None) -> MaskedData:
        """Turn texts into arrays; a deterministic function.

        A text longer than a row is cut into consecutive windows.
        """
        sets, length = corpus or cls.read_corpus(config), config["task"]["source_length"]
        wordpiece = bert.make_wordpiece(config, sets.train)
        masking, ids, hidden = make_masking(config, wordpiece), {}, {}
        for name in cls.sets:
            rows = wordpiece.encode_windows(getattr(sets, name), length)
            ids[name] = pad_rows(rows, length, PAD_ID)
            hidden[name] = hidden_windows(masking, ids[name])
        keys = length_labels((ids["train"] != PAD_ID).sum(1))
        return MaskedData(wordpiece, **hidden, whole=ids["train"], split_keys=keys)

    @classmethod
    def further_fields(cls, config: Config, sizes: BertConfig, data: MaskedData) -> dict[str, Any]:
        """The model and how pieces are hidden."""
        smoothing = config["model"]["label_smoothing"]
        model = MaskedBert(sizes=sizes, label_smoothing=smoothing)
        return {"model": model, "masking": make_masking(config, data.wordpiece)}

    def draw(self, rows: np.ndarray, seed: Sequence[int]) -> MaskedBatch:
        """Training windows with pieces hidden at random: a function of the seed."""
        rng, ids = seeded_generator(seed), self.data.whole[rows.reshape(-1)]
        if self.piece_dropout:
            wordpiece = self.data.wordpiece
            ids, _ = wordpiece.drop_pieces(ids, np.zeros_like(ids), self.piece_dropout, rng)
        batch = self.with_ngrams(MaskedBatch(*self.masking.hide(ids, rng)))
        return jax.tree.map(lambda leaf: leaf.reshape(*rows.shape, *leaf.shape[1:]), batch)

    def validation_score(self, params: Params) -> float:
        """Share of the hidden pieces that are found, in percent."""
        return masked_accuracy(self.model, params, self.data.validation)

    def baseline_score(self) -> float:
        """The same of always naming the most frequent of those hidden in training."""
        known, wanted = (
            batch.labels[batch.labels != UNLABELLED]
            for batch in (self.data.train, self.data.validation)
        )
        return 100 * float(np.mean(wanted == np.bincount(known).argmax()))

    def test(self, params: Params) -> dict[str, Any]:
        """Scores on the validation set. There is no test set."""
        loss = held_out_loss(params, self.model, self.data.validation)
        return {
            self.headline: self.validation_score(params),
            self.baseline: self.baseline_score(),
            "validation_loss": loss,
            "validation_masked_perplexity": perplexity(loss),
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``vocab.txt``."""
        self.data.wordpiece.save(Path(folder) / "vocab.txt")

    def layout_settings(self) -> Mapping[str, Any]:
        """Keys of ``config.json``."""
        return MASKED_LM_SETTINGS


def make_masking(config: Config, wordpiece: WordPiece) -> Masking:
    """How a configuration hides pieces.

    Raises:
      InputError: a vocabulary without the mask.
    """
    task = config["task"]
    if MASK not in wordpiece.pieces:
        remedy = f"Add a line {MASK}, or leave it empty to learn one"
        raise InputError("task.vocabulary", task["vocabulary"], f"it has no {MASK}", remedy)
    return Masking(wordpiece, task["masked_share"], task["whole_words"])


def hidden_windows(masking: Masking, token_ids: np.ndarray) -> MaskedBatch:
    """Windows ``[n, S]`` with pieces hidden once and for all."""
    return MaskedBatch(*masking.hide(token_ids, seeded_generator(_HELD_OUT_SEED)))


def masked_accuracy(model: MaskedBert, params: Params, batch: MaskedBatch) -> float:
    """Share of the hidden pieces ``[n, P]`` that are the likeliest, in percent."""

    def likeliest(part: MaskedBatch) -> jax.Array:
        return predict_pieces(model, params, part).argmax(-1)

    scored = batch.labels != UNLABELLED
    return 100 * float(np.mean((in_batches(likeliest, batch) == batch.labels)[scored]))


def count_work(config: Config) -> ModelCounts:
    """Tables before the encoder; after it the head at the hidden pieces."""
    task, width = config["task"], config["model"]["width"]
    vocabulary_size = task["vocabulary_size"]
    predictions = most_hidden(task["source_length"], task["masked_share"])
    return ModelCounts(
        sequence=task["source_length"],
        target_tokens=2 * predictions,  # with their places
        decoder_parameters=counts.masked_lm_parameters(vocabulary_size, width),
        decoder_flops=6.0 * predictions * width * (width + vocabulary_size),
        **bert.embedding_work(config),
    )


def load(folder: Path) -> Predictor:
    """A trained masked language model."""
    from collapipe_jax.learning.tasks.mask_filler import MaskFiller  # which needs this module

    return MaskFiller(folder)


_TASK_KEYS = ("train", "validation", "samples", "validation_samples", "text_column", "vocabulary")
_OWN_KEYS = ("piece_dropout", "tagged", "masked_share", "whole_words")
MASKED_LM = Task(
    score_name="masked accuracy",
    make_sizes=bert.make_sizes,
    make_objective=MaskedLanguageModelling.from_config,
    read_corpus=MaskedLanguageModelling.read_corpus,
    count_work=count_work,
    load=load,
    reads=bert.MODEL_READS | {f"task.{key}" for key in (*_TASK_KEYS, *_OWN_KEYS)},
    needs={"task.train": "Give a file"},
)
