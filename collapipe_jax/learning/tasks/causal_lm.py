"""Language modelling: plain text, a decoder-only model, scored by perplexity."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from collapipe_jax.core.errors import InputError, under_keys
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.learning.models import counts
from collapipe_jax.learning.models.causal_files import load_causal_lm, save_causal_lm
from collapipe_jax.learning.models.causal_lm import NOTHING, CausalBatch, CausalLM
from collapipe_jax.learning.models.config import PAD_ID, CausalConfig, encoder_sizes
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.tasks.byte_pieces import ByteTokenizer, check_room, train_byte_pieces
from collapipe_jax.learning.tasks.plain_text import TextSets, read_text_sets
from collapipe_jax.learning.tasks.pretrained_sizes import pretrained_sizes
from collapipe_jax.learning.tasks.scores import perplexity
from collapipe_jax.learning.tasks.synthetic import generate_parallel_text
from collapipe_jax.learning.tasks.task import (
    TASK_KEY,
    Config,
    ModelCounts,
    Objective,
    Predictor,
    Task,
    held_out_loss,
)
from collapipe_jax.learning.tasks.translation import SYNTHETIC, length_labels

_OF_FILES = ("train", "validation", "test", "samples", "validation_samples", "text_column")
_OWN_SIZES = ("key_value_heads", "head_size", "query_bias", "query_key_norm")


class CausalData(NamedTuple):
    """Arrays and vocabulary of language modelling."""

    tokenizer: ByteTokenizer
    # rows of ``ByteTokenizer.rows``, NumPy leaves
    train: CausalBatch
    validation: CausalBatch
    test: CausalBatch
    split_keys: np.ndarray  # class of every training row by length, see ``length_labels``, ``[n]``
    test_bytes: int  # of the test texts in UTF-8


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelling(Objective):
    """The objective of predicting the next token."""

    headline: ClassVar[str] = "test_perplexity"
    baseline: ClassVar[str] = "test_perplexity_unigram"

    model: CausalLM
    data: CausalData
    # Parameters to start from, as of ``load_causal_lm``, or None
    pretrained: Params | None = None

    @classmethod
    def from_config(cls, config: Config, corpus: TextSets | None = None) -> "LanguageModelling":
        """Read the corpus, unless it is given, or generate it; read pretrained parameters."""
        sizes, pretrained, tokenizer = make_sizes(config), None, None
        if folder := config["model"]["pretrained"]:
            with under_keys({"directory": "model.pretrained"}):
                found, pretrained, document = load_causal_lm(folder)
            sizes = pretrained_sizes(folder, sizes, found, _OWN_SIZES)
            tokenizer = ByteTokenizer.from_folder(Path(folder), document)
        data = cls.load_data(config, corpus, tokenizer)
        if (entries := sizes.vocabulary_size) < data.tokenizer.size:
            problem = f"the vocabulary has {data.tokenizer.size}"
            remedy = f"Set it to {data.tokenizer.size}"
            raise InputError("task.vocabulary_size", entries, problem, remedy)
        smoothing = config["model"]["label_smoothing"]
        model = CausalLM(sizes=sizes, label_smoothing=smoothing)
        kind = config["task"]["kind"]
        return cls(kind=kind, model=model, data=data, pretrained=pretrained)

    @classmethod
    def read_corpus(cls, config: Config) -> TextSets | None:
        """Texts of the files; None where they are to be generated.

        Raises:
          InputError: a missing or broken file, or a number out of its range; or all of these.
        """
        task = config["task"]
        given = {key: task[key] for key in _OF_FILES if task.get(key)}
        if not given and task.get("corpus") == SYNTHETIC:
            return None
        for key in ("train", "test"):
            if key not in given:
                remedy = "Give a file with a text a line"
                raise InputError(f"task.{key}", "", "causal_lm needs it with others", remedy)
        return read_text_sets(**given, seed=seed_of(config, "task"))

    @classmethod
    def load_data(
        cls,
        config: Config,
        corpus: TextSets | None = None,
        tokenizer: ByteTokenizer | None = None,
    ) -> CausalData:
        """Turn texts into arrays; a deterministic function. Without any, read or generate them.

        The vocabulary, unless it is given, is learnt from the training texts alone.
        """
        task = config["task"]
        sets = corpus or cls.read_corpus(config) or _generate(config)
        tokenizer = tokenizer or train_byte_pieces(sets.train, task["vocabulary_size"])
        length = task["source_length"]
        arrays = {n: CausalBatch(tokenizer.rows(t, length)) for n, t in sets._asdict().items()}
        lengths = np.sum(arrays["train"].token_ids != NOTHING, axis=1)
        return CausalData(
            tokenizer=tokenizer,
            **arrays,
            split_keys=length_labels(lengths),
            test_bytes=count_bytes(sets.test),
        )

    def starting_params(self, fresh: Params) -> Params:
        """Pretrained parameters where there are any, else fresh ones."""
        return fresh if self.pretrained is None else self.pretrained

    def validate(self, params: Params) -> tuple[float, float]:
        """Loss and perplexity on the validation set."""
        loss = held_out_loss(params, self.model, self.data.validation)
        return loss, perplexity(loss)

    def validation_score(self, params: Params) -> float:
        """Perplexity."""
        return self.validate(params)[1]

    def baseline_score(self) -> float:
        """Perplexity of the frequencies of tokens in training."""
        return perplexity(self._unigram_loss(self.data.validation))

    def test(self, params: Params) -> dict[str, Any]:
        """Perplexity, that of token frequencies, bits a byte and loss."""
        data = self.data
        loss, tokens = held_out_loss(params, self.model, data.test), count_targets(data.test)
        return {
            "test_perplexity": perplexity(loss),
            "test_perplexity_unigram": perplexity(self._unigram_loss(data.test)),
            "test_bits_per_byte": bits_per_byte(loss, tokens, data.test_bytes),
            "test_loss": loss,
            "test_tokens": tokens,
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the vocabulary."""
        self.data.tokenizer.save(Path(folder), self.model.sizes.positions)

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write model and vocabulary as Hugging Face lays them out."""
        self.save(folder)
        sizes, tokenizer = self.model.sizes, self.data.tokenizer
        # The layout needs the deviation of fresh weights; LeCun's law states none.
        deviation = sizes.table_deviation
        ends = list(tokenizer.ends)
        settings = {"bos_token_id": tokenizer.begin, "eos_token_id": ends if ends[1:] else ends[0]}
        if self.pretrained is None:
            settings["pad_token_id"] = PAD_ID
        sizes = dataclasses.replace(sizes, initial_deviation=deviation)
        save_causal_lm(folder, sizes, params, settings | {TASK_KEY: self.kind})

    def _unigram_loss(self, batch: CausalBatch) -> float:
        """Nats a token of add-one frequencies of the training tokens."""
        entries, seen = self.model.sizes.vocabulary_size, _targets(self.data.train)
        frequency = np.bincount(seen, minlength=entries) + 1.0
        return float(-np.log(frequency / frequency.sum())[_targets(batch)].mean())


def bits_per_byte(loss: float, tokens: int, size_bytes: int) -> float:
    """Bits per byte of text, ends of texts included, which compares models of any vocabulary."""
    return loss * tokens / math.log(2) / size_bytes


def _targets(batch: CausalBatch) -> np.ndarray:
    """All tokens that are predicted."""
    ids = np.asarray(batch.token_ids)[:, 1:]
    return ids[ids != NOTHING]


def count_targets(batch: CausalBatch) -> int:
    """Number of tokens that are predicted."""
    return len(_targets(batch))


def count_bytes(texts: list[str]) -> int:
    """Bytes of texts in UTF-8."""
    return sum(len(text.encode()) for text in texts)


def _generate(config: Config) -> TextSets:
    """Invented sentences; those of validation and test come first."""
    task = config["task"]
    pairs, validation, test = (task[key] for key in ("pairs", "validation_pairs", "test_pairs"))
    if pairs <= (held_out := validation + test):
        problem = f"validation and test take {held_out} of them, none are left to train on"
        raise InputError("task.pairs", pairs, problem, "Raise it")
    texts = [source for source, _ in generate_parallel_text(seed_of(config, "task"), pairs)]
    return TextSets(texts[held_out:], texts[:validation], texts[validation:held_out])


def make_sizes(config: Config) -> CausalConfig:
    """Sizes of the model; a head is ``width / heads`` wide where it has no size of its own."""
    task, model = config["task"], config["model"]
    if not model["pretrained"]:
        check_room(task["vocabulary_size"])
    ends = {"vocabulary_size": "vocabulary_size", "positions": "source_length"}
    with under_keys({f"model.{ours}": f"task.{theirs}" for ours, theirs in ends.items()}):
        if not model["head_size"] and model["width"] % model["heads"]:
            problem = f"does not divide width {model['width']}"
            remedy = "Choose a divisor of model.width, or give model.head_size"
            raise InputError("model.heads", model["heads"], problem, remedy)
        return CausalConfig(
            **encoder_sizes(model, CausalConfig.linear_layers),
            vocabulary_size=task["vocabulary_size"],
            positions=task["source_length"],
            key_value_heads=model["key_value_heads"] or model["heads"],
            head_size=model["head_size"] or model["width"] // model["heads"],
            query_bias=model["query_bias"],
            query_key_norm=model["query_key_norm"],
        )


def count_work(config: Config) -> ModelCounts:
    """A look-up in front of the blocks; behind them a norm, and the product with all words."""
    task, width = config["task"], config["model"]["width"]
    sequence = task["source_length"]
    table = counts.embedding_parameters(task["vocabulary_size"], width)
    return ModelCounts(
        sequence=sequence,
        target_tokens=sequence,
        embedding_parameters=table,
        decoder_parameters=table + width,
        embed_flops=0.0,
        decoder_flops=3.0 * 2 * sequence * table,
    )


def load(folder: Path) -> Predictor:
    """A trained language model."""
    from collapipe_jax.learning.tasks.text_generator import TextGenerator  # which needs this module

    return TextGenerator(folder)


CAUSAL_LM = Task(
    score_name="perplexity",
    score_unit="–",
    lower_is_better=True,
    make_sizes=make_sizes,
    make_objective=LanguageModelling.from_config,
    read_corpus=LanguageModelling.read_corpus,
    count_work=count_work,
    load=load,
    reads=frozenset(
        {
            "model.pretrained",
            *(f"model.{key}" for key in _OWN_SIZES),
            *(f"task.{key}" for key in _OF_FILES),
        }
    ),
)
