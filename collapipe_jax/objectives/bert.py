"""What tagging and classification with BERT share: where it starts, predicts, and goes."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from collapipe_jax.files.atomic import write_text
from collapipe_jax.models.bert_heads import (
    BertClassifier,
    BertTagger,
    ClassificationBatch,
    TaggingBatch,
    predict,
)
from collapipe_jax.models.config import BertConfig
from collapipe_jax.models.layers import Params
from collapipe_jax.models.pretrained import save_bert
from collapipe_jax.objectives.held_out import in_batches
from collapipe_jax.tasks.piece_dropout import PieceDropout
from collapipe_jax.tasks.wordpiece import WordPiece


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertObjective:
    """What the objectives of both heads have in common.

    Attributes:
      model: what is trained.
      data: texts as subwords, their labels, and sets.
      pretrained: parameters of BERT to start from, as of ``load_bert``, or None.
      piece_dropout: how the texts of mini-batches are cut anew, or None.
    """

    model: Any
    data: Any
    pretrained: Params | None = None
    piece_dropout: PieceDropout | None = None

    def draw(self, rows: np.ndarray, seed: Sequence[int]) -> TaggingBatch | ClassificationBatch:
        """Training texts, cut anew at random where there is piece dropout."""
        batch = jax.tree.map(lambda leaf: leaf[rows], self.train)
        if self.piece_dropout is None:
            return batch
        rng = np.random.Generator(np.random.Philox(seed))
        if batch.labels.shape != batch.token_ids.shape:  # a label a text, whatever its pieces
            return batch._replace(token_ids=self.piece_dropout(batch.token_ids, None, rng)[0])
        return type(batch)(*self.piece_dropout(batch.token_ids, batch.labels, rng))

    @property
    def split_keys(self) -> np.ndarray:
        """What the data says that a split may go by."""
        return self.data.keys

    def starting_params(self, fresh: Params) -> Params:
        """The pretrained parameters where there are any, a fresh head."""
        return start_from(self.pretrained, fresh)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``vocab.txt`` and ``labels.txt``, one name a line in the order of their numbers."""
        self.data.wordpiece.save(Path(folder) / "vocab.txt")
        names = "".join(f"{label}\n" for label in self.data.labels)
        write_text(Path(folder) / "labels.txt", names)

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write BERT as Hugging Face lays it out; the head stays in the checkpoint."""
        export_bert(folder, self.model.sizes, params, self.data.wordpiece)


def start_from(pretrained: Params | None, fresh: Params) -> Params:
    """Parameters to train from: pretrained where there are any, else fresh.

    Args:
      pretrained: ``{"embedding", "encoder"}`` and perhaps "pooler", or None.
      fresh: ``{"embedding", "encoder", "decoder"}``; the head is always its own.
    """
    if pretrained is None:
        return fresh
    decoder = dict(fresh["decoder"])
    if "pooler" in decoder and "pooler" in pretrained:
        decoder["pooler"] = pretrained["pooler"]
    return {
        "embedding": pretrained["embedding"],
        "encoder": pretrained["encoder"],
        "decoder": decoder,
    }


def predicted_labels(
    model: BertTagger | BertClassifier, params: Params, arrays: TaggingBatch | ClassificationBatch
) -> np.ndarray:
    """The likeliest labels of all samples: ``[n, S]`` of tokens, or ``[n]`` of texts.

    Args:
      model: which head.
      params: ``{"embedding", "encoder", "decoder"}``.
      arrays: NumPy leaves ``[n, ...]``; the labels are not read.
    """
    return in_batches(functools.partial(_predict, params, model=model), arrays)


@functools.partial(jax.jit, static_argnames="model")
def _predict(params, batch, *, model):
    return predict(model, params, batch)


def export_bert(
    folder: str | os.PathLike[str], sizes: BertConfig, params: Params, wordpiece: WordPiece
) -> None:
    """Write BERT and its vocabulary as ``save_bert`` does; the head stays in the checkpoint.

    Args:
      folder: made where it is missing.
      sizes: of BERT.
      params: ``{"embedding", "encoder", "decoder"}``.
      wordpiece: the vocabulary, and whether its text is lowercase.
    """
    body = {"embedding": params["embedding"], "encoder": params["encoder"]}
    if "pooler" in params["decoder"]:
        body["pooler"] = params["decoder"]["pooler"]
    # The layout has a deviation of fresh weights, which LeCun's law has by another name.
    deviation = sizes.initial_deviation or sizes.width**-0.5
    sizes = dataclasses.replace(sizes, initial_deviation=deviation)
    save_bert(folder, sizes, body, vocabulary=wordpiece.pieces, lowercase=wordpiece.lowercase)
