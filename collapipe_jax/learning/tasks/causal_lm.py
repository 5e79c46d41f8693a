"""Language modelling: plain text, a decoder-only model, scored by perplexity."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from collapipe_jax.core.errors import InputError, collect, rename_error_keys
from collapipe_jax.core.files import read_object
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.learning.models import counts
from collapipe_jax.learning.models.adapters import (
    ADAPTER_CONFIG,
    load_adapted_causal_lm,
    save_adapters,
)
from collapipe_jax.learning.models.causal_files import (
    load_causal_lm,
    model_type,
    read_causal_config,
    save_causal_lm,
)
from collapipe_jax.learning.models.causal_lm import (
    NOTHING,
    CausalBatch,
    CausalLM,
    scored_targets,
)
from collapipe_jax.learning.models.config import (
    KEYS_OF_TASK,
    PAD_ID,
    CausalConfig,
    check_pretrained_sizes,
    encoder_sizes,
    pretrained_sizes,
)
from collapipe_jax.learning.models.decoding import Sampling, generate
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.published import FURTHER_SIZES
from collapipe_jax.learning.models.tensor_files import CONFIG
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.instructions import (
    USER,
    Exchange,
    Message,
    Sample,
    learnt_text,
    text_of,
)
from collapipe_jax.learning.tasks.packing import first_fit_decreasing, packed
from collapipe_jax.learning.tasks.plain_text import TextSets, read_text_sets, read_texts
from collapipe_jax.learning.tasks.scores import perplexity
from collapipe_jax.learning.tasks.subwords import (
    ByteTokenizer,
    bucket,
    check_entries,
    check_pieces,
    check_room,
    pad_rows,
    train_byte_pieces,
)
from collapipe_jax.learning.tasks.synthetic import generate_parallel_text
from collapipe_jax.learning.tasks.task import (
    PREDICTED,
    TASK_KEY,
    Config,
    ModelCounts,
    ScoredSet,
    Task,
    TaskData,
    in_batches,
)
from collapipe_jax.learning.tasks.translation import SYNTHETIC, length_labels

_OF_FILES = ("train", "validation", "test", "samples", "validation_samples", "text_column")
_USUAL_TOKENS = 32  # of a continuation
_CUT = "exchanges_cut"  # what a summary calls exchanges that are longer than a row
_ANSWERS = "collapipe_answers"  # key of ``config.json`` for ``answers``


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelling(Task):
    """Texts to their continuations; of a text that is too long the end is read."""

    score_name: ClassVar[str] = "perplexity"
    score_key: ClassVar[str] = "perplexity"
    trivial_key: ClassVar[str] = "perplexity_unigram"
    score_unit: ClassVar[str] = "–"
    lower_is_better: ClassVar[bool] = True
    reads: ClassVar = frozenset(
        {
            "model.pretrained",
            *(f"model.{key}" for key in FURTHER_SIZES),
            *(f"task.{key}" for key in (*_OF_FILES, "skip_broken", "packing")),
        }
    )

    model: CausalLM
    # Parameters to start from, as of ``load_causal_lm``, or None
    pretrained: Params | None = None
    pretrained_folder: str = ""  # where they are from
    answers: bool = False  # whether texts to continue are prompts, which are answered

    @classmethod
    def make_sizes(cls, config: Config) -> CausalConfig:
        """Sizes of the model; a head is ``width / heads`` wide where no size of it is given."""
        task, model = config["task"], config["model"]
        if not model["pretrained"]:
            check_room(task["vocabulary_size"])
        with rename_error_keys(KEYS_OF_TASK):
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

    @classmethod
    def count_work(cls, config: Config) -> ModelCounts:
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

    @classmethod
    def check_pretrained(cls, config: Config) -> None:
        """Refuse sizes other than a pretrained language model has."""
        if folder := config["model"]["pretrained"]:
            with rename_error_keys({"directory": "model.pretrained"}):
                found, _ = read_causal_config(Path(folder) / CONFIG)
            check_pretrained_sizes(config, cls.make_sizes, found, FURTHER_SIZES)

    @classmethod
    def read_corpus(cls, config: Config) -> TextSets[Sample] | None:
        """Texts of the files; None where they are to be generated.

        Raises:
          InputError: a missing or broken file, or a number out of its range, or all of these; or
            packing of texts that are no exchanges.
        """
        task, sets = config["task"], None
        given = {key: task[key] for key in (*_OF_FILES, "skip_broken") if task.get(key)}
        if given or task.get("corpus") != SYNTHETIC:
            if "train" not in given:
                remedy = "Give a file with a text a line"
                raise InputError("task.train", "", "causal_lm needs it with others", remedy)
            sets = read_text_sets(**given, seed=seed_of(config, "task"))
            _check_forms(sets, given)
        if task.get("packing") and not (sets and isinstance(sets.train[0], Exchange)):
            problem = "the training texts are no prompts with answers, which it is for"
            raise InputError("task.packing", True, problem, "Give False")
        return sets

    @classmethod
    def load_data(
        cls,
        config: Config,
        corpus: TextSets[Sample] | None = None,
        tokenizer: ByteTokenizer | None = None,
    ) -> TaskData:
        """Turn texts into arrays; a deterministic function. Without any, read or generate them.

        The vocabulary, unless it is given, is learnt from the training texts alone. The split key
        of a training row is its class by length.
        """
        task = config["task"]
        sets = corpus or cls.read_corpus(config) or _generate(config)
        if tokenizer is None:
            tokenizer = train_byte_pieces(map(text_of, sets.train), task["vocabulary_size"])
        train, validation, test = (
            _encode(tokenizer, texts, task["source_length"]) if texts else None for texts in sets
        )
        assert train is not None  # a file without a text is refused
        lengths = np.sum(train.arrays.token_ids != NOTHING, axis=1)
        cut = [each.counts.get(_CUT, 0) for each in (train, validation, test) if each is not None]
        return TaskData(
            tokenizer=tokenizer,
            train=train.arrays,
            validation=validation,
            test=test,
            split_keys=length_labels(lengths),
            counts={_CUT: sum(cut)} if _CUT in train.counts else {},
        )

    @classmethod
    def from_config(
        cls, config: Config, corpus: TextSets[Sample] | None = None
    ) -> "LanguageModelling":
        """Read the corpus, unless it is given, or generate it; read pretrained parameters."""
        sizes, pretrained, tokenizer = cls.make_sizes(config), None, None
        if folder := config["model"]["pretrained"]:
            with rename_error_keys({"directory": "model.pretrained"}):
                on_file, pretrained, document = load_causal_lm(folder)
            sizes = pretrained_sizes(folder, sizes, on_file, FURTHER_SIZES)
            tokenizer = ByteTokenizer.from_folder(Path(folder), document)
        data = cls.load_data(config, corpus, tokenizer)
        check_entries(sizes.vocabulary_size, data.tokenizer.size)
        smoothing = config["model"]["label_smoothing"]
        model = CausalLM(sizes=sizes, label_smoothing=smoothing)
        kind = config["task"]["kind"]
        return cls(
            kind=kind,
            model=model,
            data=data,
            pretrained=pretrained,
            pretrained_folder=folder,
            answers=data.train.scored is not None,
        )

    def pack(self, cluster_indices: Sequence[np.ndarray]) -> tuple[Self, list[np.ndarray]]:
        """As ``Task.pack``; each cluster packs its exchanges by ``first_fit_decreasing``."""
        apart = self.data.train if self.data.unpacked is None else self.data.unpacked
        lengths = np.sum(apart.token_ids != NOTHING, axis=1)
        row_of_text, rows = np.empty(len(lengths), np.int64), [0]
        for indices in cluster_indices:
            own = first_fit_decreasing(lengths[indices], apart.token_ids.shape[1])
            row_of_text[indices] = rows[-1] + own
            rows.append(rows[-1] + int(own.max()) + 1)
        data = self.data._replace(train=packed(apart, row_of_text), unpacked=apart)
        return dataclasses.replace(self, data=data), list(map(np.arange, rows[:-1], rows[1:]))

    def starting_params(self, fresh: Params) -> Params:
        """Pretrained parameters where there are any, else fresh ones."""
        return fresh if self.pretrained is None else self.pretrained

    def score(self, params: Params, samples: ScoredSet) -> dict[str, Any]:
        """Perplexity, bits a byte and loss; and the number of tokens that are predicted."""
        loss, tokens = self.loss(params, samples), count_targets(samples.arrays)
        return {
            "perplexity": perplexity(loss),
            "bits_per_byte": bits_per_byte(loss, tokens, count_bytes(samples.text)),
            "loss": loss,
            "tokens": tokens,
        }

    def trivial(self, samples: ScoredSet) -> dict[str, Any]:
        """Perplexity of add-one frequencies of the training tokens."""
        entries, seen = self.model.sizes.vocabulary_size, _targets(self.data.train)
        frequency = np.bincount(seen, minlength=entries) + 1.0
        loss = -np.log(frequency / frequency.sum())[_targets(samples.arrays)].mean()
        return {"perplexity_unigram": perplexity(float(loss))}

    def predict(
        self,
        params: Params,
        texts: Sequence[str],
        *,
        tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        start: int = 0,
    ) -> list[str]:
        """The continuation of each text, or the answer, until it ends or has enough tokens.

        Args:
          params: of the model.
          texts: any, also empty ones.
          tokens: most new tokens; None is 32, or half of the model's positions if that is less.
          temperature: 0 takes the likeliest token; others draw, the more widely the higher.
          top_p: share of the probability, of the likeliest tokens, that draws are from.
          seed: of the draws; a text's also depend on its place among the texts.
          start: place of the first text, where the others come in other calls.
        """
        sizes, tokenizer = self.model.sizes, self.data.tokenizer
        positions = sizes.positions
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
        if self.answers:
            encoded = [tokenizer.asked([Message(USER, text)]) for text in texts]
            prompts = [ids[-(positions - tokens) :] for ids in encoded]
        else:
            encoded = tokenizer.encode(texts)
            prompts = tokenizer.prompts(encoded, positions - tokens)
        length, options = bucket(max(map(len, prompts))), Sampling(temperature, top_p)
        ends, key = jnp.asarray(tokenizer.ends), jax.random.key(seed)
        is_piece = jnp.asarray(tokenizer.is_piece(sizes.vocabulary_size))

        def run(part: tuple[np.ndarray, np.ndarray]) -> jax.Array:
            rows, numbers = part
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
            given = {"room": bucket(tokens), "most": tokens, "sampling": options}
            given |= {"is_piece": is_piece}
            return generate(params, sizes, jnp.asarray(rows), keys, ends, **given)

        rows = pad_rows(prompts, length, NOTHING), np.arange(start, start + len(prompts))
        new = in_batches(run, rows, PREDICTED)
        pairs = zip(encoded, new, strict=True)
        return [tokenizer.continuation(ids, row[row != NOTHING]) for ids, row in pairs]

    def evaluate(
        self, params: Params, file: str | os.PathLike[str], *, text_column: str = ""
    ) -> dict[str, Any]:
        """Scores on texts, on file as in ``read_texts``."""
        samples = read_texts(TextFile("data", str(file)), text_column=text_column)
        longest = max(self.data.tokenizer.lengths(samples))
        length = min(self.model.sizes.positions, bucket(longest))
        return self.report(params, _encode(self.data.tokenizer, samples, length))

    def record(self, answer: str) -> dict[str, Any]:
        """The continuation under its name."""
        return {"continuation": answer}

    def line(self, answer: str) -> str:
        """The continuation, its line breaks as spaces."""
        return " ".join(answer.splitlines())

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the vocabulary."""
        self.data.tokenizer.save(Path(folder), self.model.sizes.positions)

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write model and vocabulary as Hugging Face lays them out."""
        self.save(folder)
        save_causal_lm(folder, self.model.sizes.on_file, params, self._settings)

    def export_adapters(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write adapters and vocabulary as PEFT lays them out, and a decoder that was trained."""
        if self.pretrained is not None:
            self.save(folder)
            base, sizes = Path(self.pretrained_folder).absolute(), self.model.sizes
            settings = self._settings | {"model_type": model_type(sizes)}
            decoder = self.pretrained["decoder"]
            save_adapters(Path(folder), sizes, params, base, settings, same_decoder=decoder)

    @property
    def _settings(self) -> dict[str, Any]:
        """Keys of ``config.json`` that are no sizes."""
        tokenizer = self.data.tokenizer
        ends = list(tokenizer.ends)
        settings = {"bos_token_id": tokenizer.begin, "eos_token_id": ends if ends[1:] else ends[0]}
        if self.pretrained is None:
            settings["pad_token_id"] = PAD_ID
        return settings | {TASK_KEY: self.kind, _ANSWERS: self.answers}

    @classmethod
    def load(cls, folder: Path) -> tuple["LanguageModelling", Params]:
        """A trained language model.

        Args:
          folder: with ``config.json``, ``model.safetensors`` and ``tokenizer.json``; or with
            adapters of another model in place of the second.

        Raises:
          InputError: a missing or damaged file.
        """
        is_adapted = (folder / ADAPTER_CONFIG).exists()
        read = load_adapted_causal_lm if is_adapted else load_causal_lm
        sizes, params, document = read(folder)
        tokenizer = ByteTokenizer.from_folder(folder, document)
        check_pieces(folder / "tokenizer.json", tokenizer.size, sizes.vocabulary_size)
        own = (read_object(folder / CONFIG) or {}) if is_adapted else document
        answers = own.get(_ANSWERS) is True
        return cls(model=CausalLM(sizes=sizes), data=TaskData(tokenizer), answers=answers), params


_FORMS = {str: "plain texts", Exchange: "prompts with answers"}


def _check_forms(sets: TextSets[Sample], files: Mapping[str, Any]) -> None:
    """Refuse sets of another form than training, whose scores would be of something else."""
    ours = _FORMS[type(sets.train[0])]
    with collect() as step:
        for name in ("validation", "test"):
            with step():
                texts = getattr(sets, name)
                if texts and (theirs := _FORMS[type(texts[0])]) != ours:
                    problem = f"it holds {theirs}, and the training file {ours}"
                    remedy = "Give a file of the same form"
                    raise InputError(f"task.{name}", files[name], problem, remedy)


def _encode(tokenizer: ByteTokenizer, samples: Sequence[Sample], length: int) -> ScoredSet:
    """Rows of texts, or of exchanges, and what is predicted in them."""
    learnt, counts = [learnt_text(sample) for sample in samples], {"texts": len(samples)}
    exchanges = [sample for sample in samples if isinstance(sample, Exchange)]
    if not exchanges:  # of a file all are, or none
        return ScoredSet(CausalBatch(tokenizer.rows(learnt, length)), learnt, counts)
    rows, is_answer, cut = tokenizer.exchange_rows(exchanges, length)
    return ScoredSet(CausalBatch(rows, is_answer), learnt, counts | {_CUT: cut})


def bits_per_byte(loss: float, tokens: int, size_bytes: int) -> float:
    """Bits per byte of text, ends of texts included, which compares models of any vocabulary."""
    return loss * tokens / math.log(2) / size_bytes


def _targets(batch: CausalBatch) -> np.ndarray:
    """All tokens that are predicted."""
    return np.asarray(batch.token_ids)[:, 1:][np.asarray(scored_targets(batch))]


def count_targets(batch: CausalBatch) -> int:
    """Number of tokens that are predicted."""
    return len(_targets(batch))


def count_bytes(texts: list[str]) -> int:
    """Bytes of texts in UTF-8."""
    return sum(len(text.encode()) for text in texts)


def _generate(config: Config) -> TextSets[Sample]:
    """Invented sentences; those of validation and test come first."""
    task = config["task"]
    pairs, validation, test = (task[key] for key in ("pairs", "validation_pairs", "test_pairs"))
    if pairs <= (held_out := validation + test):
        problem = f"validation and test take {held_out} of them, none are left to train on"
        raise InputError("task.pairs", pairs, problem, "Raise it")
    texts = [source for source, _ in generate_parallel_text(seed_of(config, "task"), pairs)]
    return TextSets(texts[held_out:], texts[:validation], texts[validation:held_out])
