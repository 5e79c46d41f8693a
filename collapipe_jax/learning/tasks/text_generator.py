"""A trained language model in use."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.causal_files import load_causal_lm
from collapipe_jax.learning.models.causal_lm import NOTHING, CausalBatch, CausalLM
from collapipe_jax.learning.models.generation import Sampling, generate
from collapipe_jax.learning.tasks.byte_pieces import ByteTokenizer
from collapipe_jax.learning.tasks.causal_lm import (
    bits_per_byte,
    count_bytes,
    count_targets,
)
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.plain_text import read_texts
from collapipe_jax.learning.tasks.scores import perplexity
from collapipe_jax.learning.tasks.subwords import bucket, pad_rows
from collapipe_jax.learning.tasks.task import PREDICTED, Predictor, held_out_loss, in_batches

_USUAL_TOKENS = 32


class TextGenerator(Predictor):
    """Texts to their continuations; of a text that is too long the end is read.

    Args:
      folder: with ``config.json``, ``model.safetensors`` and ``tokenizer.json``.

    Raises:
      InputError: a missing or damaged file.
    """

    def __init__(self, folder: Path):
        self.sizes, self.params, document = load_causal_lm(folder)
        self.tokenizer = ByteTokenizer.from_folder(folder, document)
        if (found := self.tokenizer.size) > self.sizes.vocabulary_size:
            problem = f"has {found} pieces, the model {self.sizes.vocabulary_size}"
            remedy = "Take the original file"
            raise InputError("file", str(folder / "tokenizer.json"), problem, remedy)

    def predict(
        self,
        texts: Sequence[str],
        *,
        tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        start: int = 0,
    ) -> list[str]:
        """The continuation of each text, until it ends or has enough tokens.

        Args:
          texts: any, also empty ones.
          tokens: most new tokens; None is 32, or half of the model's positions if that is less.
          temperature: 0 takes the likeliest token; others draw, the more widely the higher.
          top_p: share of the probability, of the likeliest tokens, that draws are from.
          seed: of the draws; a text's also depend on its place among the texts.
          start: place of the first text, where the others come in other calls.
        """
        positions = self.sizes.positions
        if tokens is None:
            tokens = min(_USUAL_TOKENS, max(positions // 2, 1))
        for name, value, is_wrong, problem, remedy in (
            ("--tokens", tokens, not 0 < tokens < positions, "no number of tokens to add",
             f"Give 1 to {positions - 1}: the model has {positions} positions"),
            ("--temperature", temperature, not 0.0 <= temperature < np.inf, "no temperature",
             "Give 0 or more"),
            ("--top-p", top_p, not 0.0 < top_p <= 1.0, "no share", "Give more than 0, up to 1"),
            ("--seed", seed, seed < 0, "negative", "Give 0 or more"),
        ):  # fmt: skip
            if is_wrong:
                raise InputError(name, value, problem, remedy)
        if not texts:
            return []
        encoded, room = self.tokenizer.encode(texts), positions - tokens
        prompts = self.tokenizer.prompts(encoded, room)
        length, options = bucket(max(map(len, prompts))), Sampling(temperature, top_p)
        ends, key = jnp.asarray(self.tokenizer.ends), jax.random.key(seed)
        is_piece = jnp.asarray(self.tokenizer.is_piece(self.sizes.vocabulary_size))

        def run(part: tuple[np.ndarray, np.ndarray]) -> jax.Array:
            rows, numbers = part
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
            given = {"room": bucket(tokens), "most": tokens, "sampling": options}
            given |= {"is_piece": is_piece}
            return generate(self.params, self.sizes, jnp.asarray(rows), keys, ends, **given)

        rows = pad_rows(prompts, length, NOTHING), np.arange(start, start + len(prompts))
        new = in_batches(run, rows, PREDICTED)
        pairs = zip(encoded, new, strict=True)
        return [self.tokenizer.continuation(ids, row[row != NOTHING]) for ids, row in pairs]

    def evaluate(self, file: str | os.PathLike[str], *, text_column: str = "") -> dict[str, Any]:
        """Perplexity, bits a byte and loss on texts, on file as in ``read_texts``."""
        texts = read_texts(TextFile("data", str(file)), text_column=text_column)
        longest = max(map(len, self.tokenizer.encode(texts))) + 1
        length = min(self.sizes.positions, bucket(longest))
        batch = CausalBatch(self.tokenizer.rows(texts, length))
        loss = held_out_loss(self.params, CausalLM(sizes=self.sizes), batch)
        tokens = count_targets(batch)
        return {
            "perplexity": perplexity(loss),
            "bits_per_byte": bits_per_byte(loss, tokens, count_bytes(texts)),
            "loss": loss,
            "texts": len(texts),
            "tokens": tokens,
        }

    def record(self, prediction: str) -> dict[str, Any]:
        """The continuation under its name."""
        return {"continuation": prediction}

    def line(self, prediction: str) -> str:
        """The continuation, its line breaks as spaces."""
        return " ".join(prediction.splitlines())
