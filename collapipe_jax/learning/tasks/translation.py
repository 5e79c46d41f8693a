"""Translation: parallel text, an encoder-decoder, scored by BLEU and chrF."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jax import Array

from collapipe_jax.core.errors import InputError, under_keys
from collapipe_jax.core.io.atomic import write_text
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.learning.models import counts
from collapipe_jax.learning.models.config import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    Ids,
    TransformerConfig,
    encoder_sizes,
)
from collapipe_jax.learning.models.decoding import beam_search
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.transformer import TranslationBatch, Translator
from collapipe_jax.learning.models.translator_files import save_translator
from collapipe_jax.learning.tasks.bleu_tokenizers import AUTO, LATIN, likely_tokenizer
from collapipe_jax.learning.tasks.parallel_text import (
    Pair,
    SourceSplit,
    read_parallel_text,
    read_split,
    split_by_source,
)
from collapipe_jax.learning.tasks.scores import Score, bleu, chrf
from collapipe_jax.learning.tasks.subwords import BpeTokenizer, pad_rows, train_bpe
from collapipe_jax.learning.tasks.synthetic import generate_parallel_text
from collapipe_jax.learning.tasks.task import (
    TASK_KEY,
    Config,
    ModelCounts,
    Objective,
    Predictor,
    Task,
    held_out_loss,
    in_batches,
)

SYNTHETIC = "synthetic"
MAX_LABELS = 8


class ParallelSentences(NamedTuple):
    """The n sentence pairs of a set, normalised."""

    sources: tuple[str, ...]
    references: tuple[str, ...]


class TranslationData(NamedTuple):
    """Arrays and vocabulary of a translation task."""

    tokenizer: BpeTokenizer
    # padded token ids, NumPy leaves ``[n, ...]``: tokens and end of the source; begin, tokens and
    # end of the target
    train: TranslationBatch
    validation: TranslationBatch
    test: TranslationBatch
    # the sentences, row by row
    validation_text: ParallelSentences
    test_text: ParallelSentences
    # Class of every training source by length, see ``length_labels``, ``[n]``
    split_keys: np.ndarray
    dropped: dict[str, int]  # number of pairs left out: empty ones, and too long ones by set
    bleu_tokenizer: str  # of ``likely_tokenizer`` for the training targets


def length_labels(lengths: np.ndarray) -> np.ndarray:
    """Classes 0, 1, ... ``[n]`` of samples by length ``[n]``, short sentences first, without gaps.

    The bounds are the quantiles of the lengths, 8 classes of about equal size. Samples of equal
    length share a class, so where few lengths occur neighbouring classes merge: mostly 5 to 8
    remain, at least 1.
    """
    bounds = np.quantile(lengths, np.arange(1, MAX_LABELS) / MAX_LABELS, method="lower")
    _, labels = np.unique(np.searchsorted(bounds, lengths, side="left"), return_inverse=True)
    return labels.astype(np.int32)


def pair_arrays(
    tokenizer: BpeTokenizer, pairs: Sequence[Pair], lengths: tuple[int, int]
) -> tuple[TranslationBatch, ParallelSentences]:
    """Padded ids of the pairs that fit, and these pairs."""
    sources = tokenizer.encode_batch([source for source, _ in pairs])
    targets = tokenizer.encode_batch([target for _, target in pairs])
    # Both lengths include the end id; begin has the extra place of the target.
    fits = [
        i
        for i in range(len(pairs))
        if len(sources[i]) < lengths[0] and len(targets[i]) < lengths[1]
    ]
    source_ids = pad_rows([[*sources[i], EOS_ID] for i in fits], lengths[0], PAD_ID)
    target_ids = pad_rows([[BOS_ID, *targets[i], EOS_ID] for i in fits], lengths[1] + 1, PAD_ID)
    kept = ParallelSentences(tuple(pairs[i][0] for i in fits), tuple(pairs[i][1] for i in fits))
    return TranslationBatch(source_ids, target_ids), kept


def translate(
    params: Params,
    sizes: TransformerConfig,
    tokenizer: BpeTokenizer,
    source_ids: np.ndarray,
    *,
    beams: int,
    length_penalty: float,
    batch: int | None = None,
) -> list[str]:
    """Translations of sources ``[n, source_length]``, greedy for one beam."""
    options = {"beams": beams, "length_penalty": length_penalty if beams > 1 else 0.0}

    def decode(ids: Ids) -> Array:
        return beam_search(params, sizes, ids, **options)[0]

    return tokenizer.decode_batch(in_batches(decode, source_ids, batch))


_OF_FILES = ("train", "validation", "test", "samples", "validation_samples")


def _split_sizes(task: Config) -> tuple[int | None, int, int]:
    """Sizes of the sets of one corpus; None is all that is left to train on."""
    pairs, held_out = task["pairs"], task["validation_pairs"] + task["test_pairs"]
    if 0 < pairs <= held_out:
        problem = f"validation and test take {held_out} of them, none are left to train on"
        remedy = "Raise it, or lower task.validation_pairs and task.test_pairs"
        raise InputError("task.pairs", pairs, problem, remedy)
    return pairs - held_out if pairs else None, task["validation_pairs"], task["test_pairs"]


def _split(config: Config, text: Sequence[Pair], sizes: tuple[int | None, int, int]) -> SourceSplit:
    """Sets of one corpus, in the direction of the configuration."""
    if config["task"]["reverse"]:
        text = [(target, source) for source, target in text]
    return split_by_source(text, sizes, seed_of(config, "task"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translation(Objective):
    """The objective of translating, with the settings of the beam search on the test set."""

    headline: ClassVar[str] = "test_bleu_greedy"
    baseline: ClassVar[str] = "test_bleu_copy"

    model: Translator
    data: TranslationData
    beams: int
    length_penalty: float
    reverse: bool = False  # whether pairs on file are read from target to source
    bleu_tokenizer: str = LATIN

    @classmethod
    def from_config(
        cls, config: Config, corpus: tuple[SourceSplit, int] | None = None
    ) -> "Translation":
        """Read the corpus, unless it is given, or generate it."""
        options = {key: config["evaluation"][key] for key in ("beams", "length_penalty")}
        options["reverse"] = config["task"]["reverse"]
        data, model = cls.load_data(config, corpus), Translator(make_sizes(config))
        tokenizer = config["evaluation"]["bleu_tokenizer"]
        options["bleu_tokenizer"] = data.bleu_tokenizer if tokenizer == AUTO else tokenizer
        return cls(kind=config["task"]["kind"], model=model, data=data, **options)

    @classmethod
    def read_corpus(cls, config: Config) -> tuple[SourceSplit, int] | None:
        """Sets and number of pairs left out; None where the text is to be generated.

        Raises:
          InputError: a missing or broken corpus, or sizes that it cannot serve; or all of these.
        """
        task = config["task"]
        corpus, files = task["corpus"], [key for key in _OF_FILES if task.get(key)]
        if corpus and corpus != SYNTHETIC and files:
            problem = f"task.{files[0]} is of separate files, and this is one that is split"
            raise InputError("task.corpus", corpus, problem, "Clear one of them")
        if files or not corpus:
            return read_split(config)
        if corpus == SYNTHETIC:
            return None
        sizes = _split_sizes(task)
        text, left_out = read_parallel_text(corpus)
        return _split(config, text, sizes), left_out

    @classmethod
    def load_data(
        cls, config: Config, corpus: tuple[SourceSplit, int] | None = None
    ) -> TranslationData:
        """Turn a corpus into arrays; a deterministic function. Without one, read or generate it.

        The vocabulary is learnt from the training text alone. Lengths include the end id. A pair
        that does not fit them is dropped and counted, never cut.

        Raises:
          InputError: a missing or broken corpus, sizes that it cannot serve, or lengths that
            leave a set empty.
        """
        task = config["task"]
        lengths = task["source_length"], task["target_length"]
        corpus = corpus or cls.read_corpus(config)
        if corpus is None:
            sizes = _split_sizes(task)
            if not task["pairs"]:
                raise InputError("task.pairs", 0, "none to generate", "Give their number")
            text = generate_parallel_text(seed_of(config, "task"), task["pairs"])
            corpus = _split(config, text, sizes), 0
        split, left_out = corpus
        lines = (line for pair in split.train for line in pair)
        tokenizer = train_bpe(lines, task["vocabulary_size"])
        arrays, texts, dropped = {}, {}, {"empty": left_out}
        for name, chosen in split._asdict().items():
            arrays[name], texts[name] = pair_arrays(tokenizer, chosen, lengths)
            dropped[name] = len(chosen) - len(arrays[name].source_ids)
            if dropped[name] == len(chosen):
                ends = "task.source_length, task.target_length"
                problem = f"none of the {len(chosen)} pairs for {name} fits these numbers of tokens"
                remedy = f"Raise {ends} or task.vocabulary_size, or give shorter sentences"
                raise InputError(f"({ends})", lengths, problem, remedy)
        return TranslationData(
            tokenizer=tokenizer,
            **arrays,
            validation_text=texts["validation"],
            test_text=texts["test"],
            split_keys=length_labels(np.sum(arrays["train"].source_ids != PAD_ID, axis=1)),
            dropped=dropped,
            bleu_tokenizer=likely_tokenizer(target for _, target in split.train),
        )

    def validation_score(self, params: Params) -> float:
        """BLEU of greedy translations."""
        said = self.translate(params, self.data.validation.source_ids)
        return self._bleu(said, self.data.validation_text.references).value

    def baseline_score(self) -> float:
        """BLEU of copying the source."""
        return self._bleu(*self.data.validation_text).value

    def test(self, params: Params) -> dict[str, Any]:
        """BLEU and chrF of greedy search, of beam search with several beams, and of copying.

        The tokenizer of BLEU is in its signature.
        """
        data = self.data
        sources, references = data.test.source_ids, data.test_text.references
        answers = {"greedy": self.translate(params, sources)}
        if self.beams > 1:
            answers["beam"] = self.translate(params, sources, self.beams)
        answers["copy"] = list(data.test_text.sources)
        scores: dict[str, Any] = {}
        for name, score_of in {"bleu": self._bleu, "chrf": chrf}.items():
            found = {search: score_of(said, references) for search, said in answers.items()}
            scores |= {f"test_{name}_{search}": score.value for search, score in found.items()}
            scores[f"{name}_signature"] = found["greedy"].signature
        return {
            **scores,
            "test_loss": held_out_loss(params, self.model, data.test),
            "dropped_pairs": data.dropped,
        }

    def _bleu(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        return bleu(hypotheses, references, self.bleu_tokenizer)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the tokenizer."""
        write_text(Path(folder) / "tokenizer.json", self.data.tokenizer.model.to_str(pretty=True))

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write parameters, sizes and tokenizer in a layout of their own."""
        self.save(folder)
        settings = {
            key: getattr(self, key) for key in ("length_penalty", "reverse", "bleu_tokenizer")
        }
        save_translator(Path(folder), self.model.sizes, params, {TASK_KEY: self.kind, **settings})

    def translate(self, params: Params, source_ids: np.ndarray, beams: int = 1) -> list[str]:
        """Translations of sources ``[n, source_length]``, greedy for one beam."""
        options = {"beams": beams, "length_penalty": self.length_penalty}
        return translate(params, self.model.sizes, self.data.tokenizer, source_ids, **options)


_SIZES = ("vocabulary_size", "source_length", "target_length")


def make_sizes(config: Config) -> TransformerConfig:
    """Sizes of the encoder-decoder."""
    task, model = config["task"], config["model"]
    for key in ("source_length", "target_length"):
        if task[key] < 2:
            problem = "no room for a token beside the end id"
            raise InputError(f"task.{key}", task[key], problem, "Use 2 or more")
    with under_keys({f"model.{key}": f"task.{key}" for key in _SIZES}):
        return TransformerConfig(
            **{key: task[key] for key in _SIZES},
            **encoder_sizes(model),
            decoder_blocks=model["decoder_blocks"],
            label_smoothing=model["label_smoothing"],
        )


def count_work(config: Config) -> ModelCounts:
    """Table of tokens in front of the encoder, decoder with tied weights behind it."""
    task, model = config["task"], config["model"]
    vocabulary_size, source, target = (task[key] for key in _SIZES)
    width, inner, blocks = (model[k] for k in ("width", "feed_forward_width", "decoder_blocks"))
    return ModelCounts(
        sequence=source,
        target_tokens=target,
        embedding_parameters=counts.embedding_parameters(vocabulary_size, width),
        decoder_parameters=counts.decoder_parameters(vocabulary_size, width, inner, blocks),
        embed_flops=counts.embedding_flops(source, width),
        decoder_flops=counts.decoder_flops(
            source_length=source,
            target_length=target,
            width=width,
            feed_forward_width=inner,
            blocks=blocks,
            vocabulary_size=vocabulary_size,
            rematerialise=model["rematerialise"],
        ),
    )


def load(folder: Path) -> Predictor:
    """A trained translator."""
    from collapipe_jax.learning.tasks import translator  # which needs this module

    return translator.Translator(folder)


TRANSLATION = Task(
    score_name="BLEU",
    make_sizes=make_sizes,
    make_objective=Translation.from_config,
    read_corpus=Translation.read_corpus,
    count_work=count_work,
    load=load,
    reads=frozenset(
        {"task.reverse", "evaluation.bleu_tokenizer", *(f"task.{key}" for key in _OF_FILES)}
    ),
)
