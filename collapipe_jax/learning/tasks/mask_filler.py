"""A trained masked language model in use."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.masked_lm import MaskedBatch, MaskedBert, predict_pieces
from collapipe_jax.learning.models.pretrained import load_masked_bert
from collapipe_jax.learning.tasks.bert_predictor import load_wordpiece, split_params
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.masked_lm import hidden_windows, masked_accuracy
from collapipe_jax.learning.tasks.masking import Masking
from collapipe_jax.learning.tasks.ngrams import WordNgrams
from collapipe_jax.learning.tasks.plain_text import read_texts
from collapipe_jax.learning.tasks.subwords import MASK, bucket, pad_rows
from collapipe_jax.learning.tasks.task import PREDICTED, Predictor, held_out_loss, in_batches

_SHARE = 0.15
"""Of the pieces that ``evaluate`` hides, as in BERT."""


class Filled(NamedTuple):
    """The likeliest piece of every ``[MASK]`` of a text, and its probability."""

    pieces: tuple[str, ...]
    probabilities: tuple[float, ...]


class MaskFiller(Predictor):
    """Texts with ``[MASK]`` to the pieces in its place. A text of too many pieces is cut."""

    def __init__(self, folder: Path):
        sizes, params = load_masked_bert(folder)
        self.wordpiece, self.length = load_wordpiece(folder, sizes)
        if MASK not in self.wordpiece.pieces:
            path, remedy = str(folder / "vocab.txt"), "Take the original file"
            raise InputError("file", path, f"has no {MASK}", remedy)
        self.with_ngrams = WordNgrams(self.wordpiece, sizes).added
        self.model, self.params = MaskedBert(sizes=sizes), split_params(params)

    def predict(self, texts: Sequence[str]) -> list[Filled]:
        """The likeliest pieces; none of a text without ``[MASK]``."""
        if not texts:
            return []
        pieces = self.wordpiece.pieces
        hidden = pieces.index(MASK)
        rows = [self._row(text, hidden) for text in texts]
        places = [[i for i, piece in enumerate(row) if piece == hidden] for row in rows]
        token_ids = pad_rows(rows, self.length, 0)
        positions = pad_rows(places, bucket(max(1, *map(len, places))), 0)
        batch = self.with_ngrams(MaskedBatch(token_ids, positions, positions))

        def likeliest(part: MaskedBatch) -> tuple[jax.Array, jax.Array]:
            # The model may have more numbers than the vocabulary has pieces.
            scores = predict_pieces(self.model, self.params, part)[..., : len(pieces)]
            chances = jax.nn.softmax(scores)
            return chances.argmax(-1), chances.max(-1)

        found = in_batches(likeliest, batch, PREDICTED)
        return [
            Filled(
                tuple(pieces[i] for i in best[: len(own)].tolist()),
                tuple(chances[: len(own)].tolist()),
            )
            for best, chances, own in zip(*found, places, strict=True)
        ]

    def evaluate(
        self, file: str | os.PathLike[str], *, text_column: str = "", tagged: bool = False
    ) -> dict[str, Any]:
        """Masked accuracy and loss on texts, on file as in ``read_texts``, 15 % hidden."""
        texts = read_texts(TextFile("data", str(file)), text_column=text_column, tagged=tagged)
        rows = pad_rows(self.wordpiece.encode_windows(texts, self.length), self.length, 0)
        batch = self.with_ngrams(hidden_windows(Masking(self.wordpiece, _SHARE), rows))
        return {
            "masked_accuracy": masked_accuracy(self.model, self.params, batch),
            "loss": held_out_loss(self.params, self.model, batch),
            "texts": len(texts),
        }

    def line(self, prediction: Filled) -> str:
        """Pieces, each with its probability, between tabs."""
        pairs = zip(prediction.pieces, prediction.probabilities, strict=True)
        return "\t".join(f"{piece} {chance:.4f}" for piece, chance in pairs)

    def _row(self, text: str, hidden: int) -> list[int]:
        """Ids of a text, the mask between its parts."""
        parts = self.wordpiece.pieces_of(" ".join(text.split()).split(MASK))
        ids = [i for part in parts for i in (*part, hidden)][:-1]
        return self.wordpiece.enclose(ids[: self.length - 2])
