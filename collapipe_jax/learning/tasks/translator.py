"""A trained model for translation in use."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.config import EOS_ID, PAD_ID
from collapipe_jax.learning.models.tensor_files import CONFIG
from collapipe_jax.learning.models.transformer import Translator as Model
from collapipe_jax.learning.models.translator_files import load_translator
from collapipe_jax.learning.tasks.bleu_tokenizers import LATIN, TOKENIZERS, check_installed
from collapipe_jax.learning.tasks.parallel_text import normalise, read_parallel_text
from collapipe_jax.learning.tasks.scores import bleu, chrf
from collapipe_jax.learning.tasks.subwords import BpeTokenizer, pad_rows
from collapipe_jax.learning.tasks.task import PREDICTED, Predictor, held_out_loss
from collapipe_jax.learning.tasks.translation import pair_arrays, translate

# Keys of config.json besides the sizes, with their types and what is wrong with others
_SETTINGS = (
    ("length_penalty", float | int, "no number"),
    ("reverse", bool, "neither true nor false"),
)


class Translator(Predictor):
    """Texts to their translations; a text of too many tokens is cut, and its end ignored.

    Args:
      folder: with ``config.json``, ``model.safetensors`` and ``tokenizer.json``.

    Raises:
      InputError: a missing or damaged file.
    """

    def __init__(self, folder: Path):
        self.sizes, self.params, settings = load_translator(folder)
        self.length_penalty, self.reverse = settings.get("length_penalty"), settings.get("reverse")
        for key, kind, problem in _SETTINGS:
            if not isinstance(found := settings.get(key), kind):
                place = f"{folder / CONFIG}: {key}"
                raise InputError(place, found, problem, "Take the original file")
        # Models of older versions were scored by the one tokenizer that there was.
        self.bleu_tokenizer = settings.get("bleu_tokenizer", LATIN)
        if self.bleu_tokenizer not in TOKENIZERS:
            place = f"{folder / CONFIG}: bleu_tokenizer"
            remedy = f"Use one of {', '.join(TOKENIZERS)}"
            raise InputError(place, self.bleu_tokenizer, "unknown name", remedy)
        path = folder / "tokenizer.json"
        try:
            self.tokenizer = BpeTokenizer(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library has no error of its own
            problem = f"cannot be read ({error})"
            raise InputError("file", str(path), problem, "Take the original file") from None
        if (found := self.tokenizer.model.get_vocab_size()) > self.sizes.vocabulary_size:
            problem = f"has {found} pieces, the model {self.sizes.vocabulary_size}"
            raise InputError("file", str(path), problem, "Take the original file")

    def predict(self, texts: Sequence[str], *, beams: int = 1) -> list[str]:
        """The translation of each text, greedy for one beam; an empty text stays empty."""
        _check_beams(beams)
        sources = self.tokenizer.encode_batch([normalise(text) for text in texts])
        room = self.sizes.source_length - 1
        rows = [[*source[:room], EOS_ID] for source in sources if source]
        said = iter(self._translate(rows, beams))
        return [next(said) if source else "" for source in sources]

    def evaluate(self, file: str | os.PathLike[str], *, beams: int = 1) -> dict[str, Any]:
        """BLEU, chrF and loss on sentence pairs, on file as in ``read_parallel_text``.

        As in training, they are turned round where ``task.reverse`` was set, and those of too
        many tokens are left out and counted. BLEU has the tokenizer of training.
        """
        _check_beams(beams)
        check_installed("bleu_tokenizer", self.bleu_tokenizer)
        lengths = self.sizes.source_length, self.sizes.target_length
        pairs, empty = read_parallel_text(str(file), "data")
        if self.reverse:
            pairs = [(target, source) for source, target in pairs]
        arrays, text = pair_arrays(self.tokenizer, pairs, lengths)
        if not text.sources:
            problem = f"none of the {len(pairs)} pairs fits {lengths[0]} and {lengths[1]} tokens"
            raise InputError("data", str(file), problem, "Give shorter sentences")
        said = self._translate(arrays.source_ids, beams)
        by_words = bleu(said, text.references, self.bleu_tokenizer)
        by_characters = chrf(said, text.references)
        return {
            "bleu": by_words.value,
            "chrf": by_characters.value,
            "signatures": [by_words.signature, by_characters.signature],
            "loss": held_out_loss(self.params, Model(self.sizes).unsmoothed, arrays),
            "pairs": len(text.sources),
            "dropped_pairs": {"empty": empty, "long": len(pairs) - len(text.sources)},
        }

    def record(self, prediction: str) -> dict[str, Any]:
        """The translation under its name."""
        return {"translation": prediction}

    def line(self, prediction: str) -> str:
        """The translation."""
        return prediction

    def _translate(self, rows: Sequence[Sequence[int]], beams: int) -> list[str]:
        """Translations of rows of ids with the end id, padded or not."""
        if not len(rows):
            return []
        source_ids = pad_rows(rows, self.sizes.source_length, PAD_ID)
        options = {"beams": beams, "length_penalty": self.length_penalty, "batch": PREDICTED}
        return translate(self.params, self.sizes, self.tokenizer, source_ids, **options)


def _check_beams(beams: int) -> None:
    if beams < 1:
        raise InputError("--beams", beams, "not positive", "Give 1 or more")
