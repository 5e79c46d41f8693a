"""Masked language modelling: texts without labels, BERT learns to find hidden pieces.

The trained BERT is a start for the other tasks (``model.pretrained``). No test set is read: there
is no key for one, and validation has the final scores.
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
from collapipe_jax.learning.models.bert import UNLABELLED, MaskedBatch, MaskedBert, predict_pieces
from collapipe_jax.learning.models.bert_files import MASKED_LM_SETTINGS, load_masked_bert
from collapipe_jax.learning.models.config import PAD_ID, BertConfig
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.tasks import bert_tasks
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.instructions import text_of
from collapipe_jax.learning.tasks.plain_text import TextSets, read_text_sets, read_texts
from collapipe_jax.learning.tasks.sampling import seeded_generator
from collapipe_jax.learning.tasks.scores import perplexity
from collapipe_jax.learning.tasks.subwords import (
    CONTINUES,
    MASK,
    WordPiece,
    bucket,
    is_special,
    pad_rows,
)
from collapipe_jax.learning.tasks.task import (
    PREDICTED,
    Config,
    ModelCounts,
    ScoredSet,
    TaskData,
    in_batches,
)
from collapipe_jax.learning.tasks.translation import length_labels

_MASKED, _RANDOM = 0.8, 0.1
"""Shares of hidden pieces that become the mask, and another piece; the others stay."""


def _most_hidden(length: int, share: float) -> int:
    """Most hidden pieces of a row of this length, two of which are the ends."""
    return max(1, round(share * (length - 2)))


class Hidden(NamedTuple):
    """Texts ``[n, S]`` with hidden pieces; these and their places ``[n, P]``."""

    token_ids: np.ndarray
    positions: np.ndarray  # increasing, 0 where a text has fewer
    labels: np.ndarray  # UNLABELLED where a text has fewer


@dataclasses.dataclass(frozen=True, eq=False)
class Masking:
    """How pieces are hidden.

    Special pieces, such as unknown words, never are.

    Args:
      wordpiece: the vocabulary, with ``[MASK]``.
      share: of a text's pieces that are hidden, rounded, one at least.
      whole_words: draw words in place of pieces. A word that exceeds the share is left out,
        unless it is the first to be drawn: then its first pieces are hidden.
    """

    wordpiece: WordPiece
    share: float
    whole_words: bool = False

    def hide(self, token_ids: np.ndarray, rng: np.random.Generator) -> Hidden:
        """Hide pieces of texts ``[n, S]``, padded behind."""
        positions = self._draw(token_ids, rng)
        taken, rows = positions < token_ids.shape[1], np.arange(len(token_ids))[:, None]
        positions = np.where(taken, positions, 0)
        labels = np.where(taken, token_ids[rows, positions], UNLABELLED)
        lot, others = rng.random(positions.shape), rng.choice(self._kinds[2], positions.shape)
        shown = np.where(lot < _MASKED + _RANDOM, others, labels)
        shown = np.where(lot < _MASKED, self.wordpiece.pieces.index(MASK), shown)
        hidden = token_ids.copy()
        hidden[np.nonzero(taken)[0], positions[taken]] = shown[taken]
        as_ids = (each.astype(np.int32) for each in (hidden, positions, labels))
        return Hidden(*as_ids)

    def _draw(self, token_ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Increasing places to hide ``[n, P]``, the length of a row where there are fewer."""
        can_hide, continues, _ = self._kinds
        length, open_to = token_ids.shape[1], can_hide[token_ids]
        most, there = _most_hidden(length, self.share), open_to.sum(1)
        counts = np.minimum(np.clip(np.rint(self.share * there).astype(int), 1, most), there)
        # A word is the place of its first piece, or every piece is one.
        words = np.broadcast_to(np.arange(length), token_ids.shape)
        if self.whole_words:
            words = np.maximum.accumulate(np.where(continues[token_ids], 0, words), axis=1)
        turn = np.take_along_axis(rng.random(token_ids.shape), words, axis=1)
        order = np.argsort(np.where(open_to, turn, 2.0), axis=1, kind="stable")[:, : most + 1]
        drawn = np.take_along_axis(words, order, axis=1)
        beyond = np.take_along_axis(drawn, counts[:, None], axis=1)
        is_whole = (drawn != beyond) | (drawn == drawn[:, :1])
        chosen = (np.arange(most + 1) < counts[:, None]) & is_whole
        return np.sort(np.where(chosen, order, length), axis=1)[:, :most]

    @functools.cached_property
    def _kinds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each piece whether it may be hidden and whether it continues; ordinary pieces."""
        pieces = self.wordpiece.pieces
        special = np.array([is_special(piece) for piece in pieces])
        continues = np.array([piece.startswith(CONTINUES) for piece in pieces])
        return ~special, continues, np.flatnonzero(~special)


_SCORED_SHARE = 0.15
"""Of the pieces that ``evaluate`` hides, as in BERT."""

_HELD_OUT_SEED = 0
"""Of the pieces that are hidden in validation, the same in every run."""


class Filled(NamedTuple):
    """The likeliest piece of every ``[MASK]`` of a text, and its probability."""

    pieces: tuple[str, ...]
    probabilities: tuple[float, ...]


_TASK_KEYS = ("train", "validation", "samples", "validation_samples", "text_column", "vocabulary")
_FURTHER_KEYS = ("skip_broken", "piece_dropout", "tagged", "masked_share", "whole_words")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelling(bert_tasks.BertTask):
    """Texts with hidden pieces, drawn anew in every pass. A text of too many pieces is cut."""

    score_name: ClassVar[str] = "masked accuracy"
    score_key: ClassVar[str] = "masked_accuracy"
    trivial_key: ClassVar[str] = "masked_accuracy_majority"
    reads: ClassVar = bert_tasks.MODEL_READS | {
        f"task.{key}" for key in (*_TASK_KEYS, *_FURTHER_KEYS)
    }
    needs: ClassVar = {"task.train": "Give a file"}

    model: MaskedBert
    masking: Masking

    @classmethod
    def count_work(cls, config: Config) -> ModelCounts:
        """Tables before the encoder; after it the head at the hidden pieces."""
        task, width = config["task"], config["model"]["width"]
        vocabulary_size = task["vocabulary_size"]
        predictions = _most_hidden(task["source_length"], task["masked_share"])
        return ModelCounts(
            sequence=task["source_length"],
            target_tokens=2 * predictions,  # with their places
            decoder_parameters=counts.masked_lm_parameters(vocabulary_size, width),
            decoder_flops=6.0 * predictions * width * (width + vocabulary_size),
            **bert_tasks.embedding_work(config),
        )

    @classmethod
    def read_corpus(cls, config: Config) -> TextSets[str]:
        """Read the texts; report all that is wrong with the files at once."""
        tagged = config["task"].get("tagged", False)

        def read(**given: Any) -> TextSets[str]:
            sets = read_text_sets(**given, tagged=tagged)
            return TextSets(*(list(map(text_of, each)) for each in sets))

        names = ("train", "validation", "text_column")
        return bert_tasks.read_corpus(
            config, read, names, ("samples", "validation_samples", "skip_broken")
        )

    @classmethod
    def load_data(cls, config: Config, corpus: TextSets[str] | None = None) -> TaskData:
        """Turn texts into arrays; a deterministic function.

        A text longer than a row is cut into consecutive windows. The split key of a training
        window is its class by length; ``train_text`` has the windows with nothing hidden.
        """
        sets, length = corpus or cls.read_corpus(config), config["task"]["source_length"]
        wordpiece = bert_tasks.make_wordpiece(config, sets.train)
        masking = _make_masking(config, wordpiece)
        train, validation = (
            pad_rows(wordpiece.encode_windows(texts, length), length, PAD_ID)
            for texts in (sets.train, sets.validation)
        )
        return TaskData(
            tokenizer=wordpiece,
            train=_hidden_windows(masking, train),
            validation=ScoredSet(_hidden_windows(masking, validation)),
            split_keys=length_labels((train != PAD_ID).sum(1)),
            train_text=train,
        )

    @classmethod
    def further_fields(cls, config: Config, sizes: BertConfig, data: TaskData) -> dict[str, Any]:
        """The model and how pieces are hidden."""
        smoothing = config["model"]["label_smoothing"]
        model = MaskedBert(sizes=sizes, label_smoothing=smoothing)
        return {"model": model, "masking": _make_masking(config, data.tokenizer)}

    def draw(self, rows: np.ndarray, seed: Sequence[int]) -> MaskedBatch:
        """Training windows with pieces hidden at random: a function of the seed."""
        rng, ids = seeded_generator(seed), self.data.train_text[rows.reshape(-1)]
        if self.piece_dropout:
            wordpiece = self.data.tokenizer
            ids, _ = wordpiece.drop_pieces(ids, np.zeros_like(ids), self.piece_dropout, rng)
        batch = self.with_ngrams(MaskedBatch(*self.masking.hide(ids, rng)))
        return jax.tree.map(lambda leaf: leaf.reshape(*rows.shape, *leaf.shape[1:]), batch)

    def score(self, params: Params, samples: ScoredSet) -> dict[str, Any]:
        """Share of the hidden pieces that are the likeliest, in percent; loss and perplexity."""

        def likeliest(batch: MaskedBatch) -> jax.Array:
            return predict_pieces(self.model, params, batch).argmax(-1)

        labels, loss = samples.arrays.labels, self.loss(params, samples)
        right = (in_batches(likeliest, samples.arrays) == labels)[labels != UNLABELLED]
        return {
            "masked_accuracy": 100 * float(np.mean(right)),
            "loss": loss,
            "masked_perplexity": perplexity(loss),
        }

    def trivial(self, samples: ScoredSet) -> dict[str, Any]:
        """Accuracy of always naming the most frequent of the pieces hidden in training."""
        known, wanted = (
            batch.labels[batch.labels != UNLABELLED] for batch in (self.data.train, samples.arrays)
        )
        accuracy = 100 * float(np.mean(wanted == np.bincount(known).argmax()))
        return {"masked_accuracy_majority": accuracy}

    def predict(self, params: Params, texts: Sequence[str]) -> list[Filled]:
        """The likeliest pieces; none of a text without ``[MASK]``."""
        if not texts:
            return []
        pieces = self.data.tokenizer.pieces
        hidden = pieces.index(MASK)
        rows = [self._row(text, hidden) for text in texts]
        places = [[i for i, piece in enumerate(row) if piece == hidden] for row in rows]
        token_ids = pad_rows(rows, self.length, 0)
        positions = pad_rows(places, bucket(max(1, *map(len, places))), 0)
        batch = self.with_ngrams(MaskedBatch(token_ids, positions, positions))

        def likeliest(part: MaskedBatch) -> tuple[jax.Array, jax.Array]:
            # The model may have more numbers than the vocabulary has pieces.
            scores = predict_pieces(self.model, params, part)[..., : len(pieces)]
            chances = jax.nn.softmax(scores)
            return chances.argmax(-1), chances.max(-1)

        answers = []
        for best, chances, masks in zip(
            *in_batches(likeliest, batch, PREDICTED), places, strict=True
        ):
            names = tuple(pieces[i] for i in best[: len(masks)].tolist())
            answers.append(Filled(names, tuple(chances[: len(masks)].tolist())))
        return answers

    def _row(self, text: str, hidden: int) -> list[int]:
        """Ids of a text, the mask between its parts."""
        wordpiece = self.data.tokenizer
        parts = wordpiece.pieces_of(" ".join(text.split()).split(MASK))
        ids = [i for part in parts for i in (*part, hidden)][:-1]
        return wordpiece.enclose(ids[: self.length - 2])

    def evaluate(
        self,
        params: Params,
        file: str | os.PathLike[str],
        *,
        text_column: str = "",
        tagged: bool = False,
    ) -> dict[str, Any]:
        """Scores on texts, on file as in ``read_texts``, 15 % of the pieces hidden."""
        samples = read_texts(TextFile("data", str(file)), text_column=text_column, tagged=tagged)
        texts = list(map(text_of, samples))
        rows = self.data.tokenizer.encode_windows(texts, self.length)
        arrays = _hidden_windows(self.masking, pad_rows(rows, self.length, PAD_ID))
        scored = ScoredSet(arrays, counts={"texts": len(texts)})
        return self.report(params, self.prepared(scored))

    def line(self, answer: Filled) -> str:
        """Pieces, each with its probability, between tabs."""
        pairs = zip(answer.pieces, answer.probabilities, strict=True)
        return "\t".join(f"{piece} {chance:.4f}" for piece, chance in pairs)

    def layout_settings(self) -> Mapping[str, Any]:
        """Keys of ``config.json``."""
        return MASKED_LM_SETTINGS

    @classmethod
    def load(cls, folder: Path) -> tuple["MaskedLanguageModelling", Params]:
        """A trained masked language model from its folder."""
        sizes, params = load_masked_bert(folder)
        wordpiece, length = bert_tasks.load_wordpiece(folder, sizes)
        if MASK not in wordpiece.pieces:
            path, remedy = str(folder / "vocab.txt"), "Take the original file"
            raise InputError("file", path, f"has no {MASK}", remedy)
        task = cls(
            model=MaskedBert(sizes=sizes),
            data=TaskData(wordpiece),
            length=length,
            masking=Masking(wordpiece, _SCORED_SHARE),
        )
        return task, bert_tasks.split_params(params)


def _make_masking(config: Config, wordpiece: WordPiece) -> Masking:
    """How a configuration hides pieces.

    Raises:
      InputError: a vocabulary without the mask.
    """
    task = config["task"]
    if MASK not in wordpiece.pieces:
        remedy = f"Add a line {MASK}, or leave it empty to learn one"
        raise InputError("task.vocabulary", task["vocabulary"], f"it has no {MASK}", remedy)
    return Masking(wordpiece, task["masked_share"], task["whole_words"])


def _hidden_windows(masking: Masking, token_ids: np.ndarray) -> MaskedBatch:
    """Windows ``[n, S]`` with pieces hidden once and for all."""
    return MaskedBatch(*masking.hide(token_ids, seeded_generator(_HELD_OUT_SEED)))
