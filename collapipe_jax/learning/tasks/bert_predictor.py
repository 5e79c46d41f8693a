"""A trained BERT with a head, and its vocabulary, in the folder that training wrote."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.adapter_files import ADAPTER_CONFIG, load_adapted_bert
from collapipe_jax.learning.models.bert import BertWithHead, LabelledBatch, logits, predict
from collapipe_jax.learning.models.config import BertConfig
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.pretrained import load_labelling_bert
from collapipe_jax.learning.tasks.corpora import forbidden_pairs
from collapipe_jax.learning.tasks.ngrams import WordNgrams
from collapipe_jax.learning.tasks.subwords import WordPiece
from collapipe_jax.learning.tasks.task import PREDICTED, Predictor, held_out_loss, in_batches


class BertPredictor(Predictor):
    """What classification and tagging share; products are of 32-bit numbers.

    Args:
      folder: with ``config.json``, ``model.safetensors``, ``vocab.txt`` and
        ``tokenizer_config.json``; or with adapters of another model in place of the second.
      pools: whether the model must label whole texts, or every token.

    Raises:
      InputError: a missing or damaged file, or a model of the other kind.
    """

    def __init__(self, folder: Path, *, pools: bool):
        read = load_adapted_bert if (folder / ADAPTER_CONFIG).exists() else load_labelling_bert
        sizes, params, self.labels, pooling, head = read(folder)
        if ("pooler" in params) != pools:
            problem = "holds a model for tags" if pools else "holds a model for classes of texts"
            remedy = "Correct collapipe_task in its config.json"
            raise InputError("model", str(folder), problem, remedy)
        self.wordpiece, self.length = load_wordpiece(folder, sizes)
        self.with_ngrams = WordNgrams(self.wordpiece, sizes).added
        self.model = BertWithHead(
            sizes=sizes,
            labels=len(self.labels),
            pools=pools,
            pooling=pooling,
            head=head,
            forbidden=() if head == "linear" else forbidden_pairs(self.labels),
        )
        self.params = split_params(params)

    def probabilities(self, token_ids: np.ndarray) -> np.ndarray:
        """Probabilities of the labels ``[n, labels]`` of n texts ``[n, S]``, 1 or more."""
        return self._map(_probabilities, LabelledBatch(token_ids, None))

    def likeliest(self, batch: LabelledBatch) -> np.ndarray:
        """Numbers of the likeliest labels, ``[n, S]`` of tokens or ``[n]`` of texts.

        The labels of a tagger's batch mark the first pieces of words.
        """
        return self._map(predict, batch)

    def loss(self, batch: LabelledBatch) -> float:
        """Nats a label over a batch."""
        return held_out_loss(self.params, self.model, self.with_ngrams(batch))

    def _map(self, function: Callable[..., Array], batch: LabelledBatch) -> np.ndarray:
        of_batch = functools.partial(function, self.model, self.params)
        return in_batches(of_batch, self.with_ngrams(batch), PREDICTED)


def load_wordpiece(folder: Path, sizes: BertConfig) -> tuple[WordPiece, int]:
    """The vocabulary of a trained BERT, and the length of a row; refused where they do not fit."""
    wordpiece, length = WordPiece.from_pretrained(folder)
    if (found := len(wordpiece.pieces)) > sizes.vocabulary_size:
        problem = f"has {found} pieces, the model {sizes.vocabulary_size}"
        raise InputError("file", str(folder / "vocab.txt"), problem, "Take the original file")
    if length > sizes.positions:
        problem = f"model_max_length is {length}, the model has {sizes.positions}"
        raise InputError("model", str(folder), problem, "Take the original files")
    return wordpiece, length


def split_params(params: Params) -> Params:
    """Parameters on file in the parts of a ``SplitModel``."""
    body = {name: params[name] for name in ("embedding", "encoder")}
    return body | {"decoder": {name: params[name] for name in params.keys() - body.keys()}}


@functools.partial(jax.jit, static_argnums=0)
def _probabilities(model: BertWithHead, params: Any, batch: LabelledBatch) -> Array:
    return jax.nn.softmax(logits(model, params, batch))
