"""What the tasks with BERT share: sizes, start, n-grams, predictions, export."""

import abc
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np

from collapipe_jax.core.errors import InputError, ValidValues, collect, rename_error_keys
from collapipe_jax.core.files import write_text
from collapipe_jax.core.seeds import seed_of
from collapipe_jax.learning.models import counts
from collapipe_jax.learning.models.adapters import ADAPTER_CONFIG, load_adapted_bert, save_adapters
from collapipe_jax.learning.models.bert import POOLINGS, BertWithHead, LabelledBatch, predict
from collapipe_jax.learning.models.bert_files import (
    is_distilled,
    label_settings,
    load_bert,
    load_labelling_bert,
    read_bert_config,
    save_bert,
)
from collapipe_jax.learning.models.config import (
    KEYS_OF_TASK,
    NGRAM_SIZES,
    BertConfig,
    check_pretrained_sizes,
    encoder_sizes,
    pretrained_sizes,
)
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.models.split_model import SplitModel
from collapipe_jax.learning.models.tensor_files import CONFIG
from collapipe_jax.learning.tasks.corpora import forbidden_pairs
from collapipe_jax.learning.tasks.sampling import seeded_generator
from collapipe_jax.learning.tasks.subwords import (
    CONTINUES,
    WordPiece,
    check_entries,
    check_pieces,
    is_special,
    train_wordpiece,
)
from collapipe_jax.learning.tasks.task import (
    TASK_KEY,
    Config,
    ModelCounts,
    ScoredSet,
    Task,
    TaskData,
    by_length,
    in_batches,
)

# Hashed n-grams of characters and of words, as fastText has them.
#
# Sources: Bojanowski, Grave, Joulin and Mikolov, Enriching word vectors with subword
# information (TACL 2017, arXiv:1607.04606), section 3.2, for characters; Joulin, Grave,
# Bojanowski and Mikolov, Bag of tricks for efficient text classification (EACL 2017,
# arXiv:1607.01759), for words.

_SHORTEST, _LONGEST = 3, 6
"""Lengths of n-grams in characters, boundary marks included."""
MOST = 48
"""Most n-grams of characters of a word. A word of up to 13 characters has no more."""


def _most_ngrams(word_ngrams: int) -> int:
    """Most n-grams of a word, those of words included, which end with it."""
    return MOST + word_ngrams - 1


class WordNgrams:
    """Buckets of the n-grams of words, a function of the ids of their pieces alone.

    A word is a piece and those that continue it. It is put into lower case and between the marks
    ``<`` and ``>``. The whole of it counts as an n-gram too. N-grams of words count at their last
    one. A special piece, such as an unknown or masked word, has none, but is in those of the words
    after it.

    Args:
      wordpiece: the vocabulary.
      sizes: number of rows that n-grams are hashed to, 0 for a model without n-grams, and longest
        n-gram of words.
    """

    def __init__(self, wordpiece: WordPiece, sizes: BertConfig):
        self.buckets, self.word_ngrams = sizes.ngram_buckets, sizes.word_ngrams
        self._pieces = wordpiece.pieces
        self._continues = np.array([piece.startswith(CONTINUES) for piece in self._pieces])
        self._begins = ~self._continues & ~np.array([is_special(piece) for piece in self._pieces])
        self._known: dict[tuple[int, ...], _Word] = {}

    def added(self, batch: Any) -> Any:
        """A batch with the n-grams of its ``token_ids`` as ``ngrams``; unchanged without any."""
        return batch._replace(ngrams=self.of(batch.token_ids)) if self.buckets else batch

    def of(self, token_ids: np.ndarray) -> np.ndarray:
        """Buckets ``[..., S, G]`` of texts ``[..., S]``, from 1 on, and 0 for none.

        Those of a word are at its first piece.
        """
        rows = token_ids.reshape(-1, token_ids.shape[-1])
        most = _most_ngrams(self.word_ngrams)
        found = np.zeros((*rows.shape, most), np.min_scalar_type(self.buckets))
        for row, begins, continues, own in zip(
            rows.tolist(), self._begins[rows], self._continues[rows], found, strict=True
        ):
            starts = np.flatnonzero(~continues).tolist()
            cuts = itertools.pairwise([*starts, len(row)])
            words = [self._word(tuple(row[start:end])) for start, end in cuts]
            for number, start in enumerate(starts):
                if begins[start]:
                    own[start, :MOST] = words[number].buckets
                    for n in range(2, min(self.word_ngrams, number + 1) + 1):
                        last = words[number + 1 - n : number + 1]
                        own[start, MOST + n - 2] = self._bucket(" ".join(w.text for w in last))
        return found.reshape(*token_ids.shape, most)

    def _word(self, ids: tuple[int, ...]) -> "_Word":
        if ids not in self._known:
            text = "".join(self._pieces[i].removeprefix(CONTINUES) for i in ids).lower()
            hashed = [self._bucket(each) for each in ngrams(text)]
            self._known[ids] = _Word(text, np.pad(hashed, (0, MOST - len(hashed))))
        return self._known[ids]

    def _bucket(self, text: str) -> int:
        return 1 + fnv1a(text) % self.buckets


class _Word(NamedTuple):
    """A word, and the buckets ``[MOST]`` of its n-grams of characters."""

    text: str  # in lower case
    buckets: np.ndarray


def ngrams(word: str) -> list[str]:
    """At most ``MOST`` n-grams of characters of a word: the whole, then from both ends inwards."""
    marked = f"<{word.lower()}>"
    return list(dict.fromkeys([marked, *_from_ends(marked)]))[:MOST]


def _from_ends(text: str) -> Iterator[str]:
    for offset in range(len(text)):
        for length in range(_SHORTEST, min(_LONGEST, len(text) - offset) + 1):
            yield text[offset : offset + length]
            yield text[len(text) - offset - length : len(text) - offset]


def fnv1a(text: str) -> int:
    """The 32-bit hash FNV-1a of a text in UTF-8, which fastText uses.

    Source: Fowler, Noll, Vo and Eastlake, The FNV non-cryptographic hash algorithm (RFC 9923).
    """
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


_FILES = ("train", "validation", "test", "vocabulary")
_COUNTS = ("samples", "validation_samples", "labels", "skip_broken")
_Sets = TypeVar("_Sets")
MODEL_READS = frozenset({"model.pretrained", *(f"model.{size}" for size in NGRAM_SIZES)})
READS = MODEL_READS | {f"task.{key}" for key in ("piece_dropout", *_COUNTS, *_FILES)}
_NEEDS = {"task.train": "Give a file"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertTask(Task):
    """What the tasks with BERT share; a head for labels, where a task has no other."""

    pools: ClassVar[bool]  # whether a text has one label instead of one a token
    reads: ClassVar = READS
    needs: ClassVar = _NEEDS

    model: Any
    data: TaskData
    length: int  # pieces of a row
    # Parameters of BERT to start from, as of ``load_bert``, or None
    pretrained: Params | None = None
    pretrained_folder: str = ""  # where they were read
    piece_dropout: float = 0.0  # rate as in ``WordPiece.drop_pieces``, in training

    @classmethod
    def make_sizes(cls, config: Config) -> BertConfig:
        """Sizes of BERT without its head."""
        return make_sizes(config)

    @classmethod
    def count_work(cls, config: Config) -> ModelCounts:
        """Work of the tables and of the head."""
        return count_work(config, pools=cls.pools)

    @classmethod
    def check_pretrained(cls, config: Config) -> None:
        """Refuse sizes other than a pretrained BERT has."""
        if folder := config["model"]["pretrained"]:
            with rename_error_keys({"directory": "model.pretrained"}):
                found, _ = read_bert_config(Path(folder) / CONFIG)
            check_pretrained_sizes(config, make_sizes, found, NGRAM_SIZES)

    @classmethod
    def from_config(cls, config: Config, corpus: Any = None) -> Self:
        """Read pretrained parameters and, unless it is given, the corpus; check that they fit."""
        task, model = config["task"], config["model"]
        sizes, pretrained = make_sizes(config), None
        if model["pretrained"]:
            sizes, pretrained = _load_pretrained(model["pretrained"], sizes)
        data = cls.load_data(config, corpus)
        check_entries(task["vocabulary_size"], len(data.tokenizer.pieces))
        bare = cls(
            kind=task["kind"],
            data=data,
            length=task["source_length"],
            pretrained=pretrained,
            pretrained_folder=model["pretrained"],
            piece_dropout=task["piece_dropout"],
            **cls.further_fields(config, sizes, data),
        )
        sets: dict[str, Any] = {"train": bare.with_ngrams(data.train)}
        for name in ("validation", "test"):
            if (samples := getattr(data, name)) is not None:
                sets[name] = bare.prepared(samples)
        return dataclasses.replace(bare, data=data._replace(**sets))

    @classmethod
    def further_fields(cls, config: Config, sizes: BertConfig, data: TaskData) -> dict[str, Any]:
        """The model of these sizes, and what else the task has."""
        model = config["model"]
        choices = {"pooling": model["pooling"], "head": model["head"]}
        head = _with_head(sizes, data.labels, pools=cls.pools, **choices)
        return {"model": dataclasses.replace(head, label_smoothing=model["label_smoothing"])}

    @classmethod
    @abc.abstractmethod
    def load_data(cls, config: Config, corpus: Any = None) -> TaskData:
        """Turn the corpus, read here unless it is given, into arrays; a deterministic function."""

    def draw(self, rows: np.ndarray, seed: Sequence[int]) -> LabelledBatch:
        """Training texts, with random segmentation where there is piece dropout."""
        ids, labels, ngrams = super().draw(rows, seed)
        if self.piece_dropout:
            rng = seeded_generator(seed)
            marks = np.zeros_like(ids) if self.pools else labels
            ids, marks = self.data.tokenizer.drop_pieces(ids, marks, self.piece_dropout, rng)
            return self.with_ngrams(LabelledBatch(ids, labels if self.pools else marks))
        return LabelledBatch(ids, labels, ngrams)

    @functools.cached_property
    def with_ngrams(self) -> Callable[[Any], Any]:
        """Adds the n-grams of its words to a batch, where the model reads them."""
        return WordNgrams(self.data.tokenizer, self.model.sizes).added

    def prepared(self, samples: ScoredSet) -> ScoredSet:
        """A set as the model reads it."""
        return samples._replace(arrays=self.with_ngrams(samples.arrays))

    def starting_params(self, fresh: Params) -> Params:
        """Pretrained parameters where there are any, else fresh ones; the head is always fresh."""
        if self.pretrained is None:
            return fresh
        body = {name: self.pretrained[name] for name in ("embedding", "encoder")}
        decoder = {name: self.pretrained.get(name, part) for name, part in fresh["decoder"].items()}
        return body | {"decoder": decoder}

    def likeliest(self, params: Params, arrays: LabelledBatch, size: int | None = None) -> Any:
        """Likeliest labels, ``[n, S]`` of tokens or ``[n]`` of texts, ``size`` samples at a time.

        The labels of a tagger's batch mark the first pieces of words.
        """
        labels = np.zeros(arrays.token_ids.shape[: 1 if self.pools else 2], np.int32)
        for rows, batch in by_length(self.model, arrays, size):
            found = in_batches(functools.partial(predict, self.model, params), batch, size)
            labels[rows, *(slice(length) for length in found.shape[1:])] = found
        return labels

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``vocab.txt`` and, one name a line in order, ``labels.txt``."""
        self.data.tokenizer.save(Path(folder) / "vocab.txt")
        if self.data.labels:
            names = "".join(f"{label}\n" for label in self.data.labels)
            write_text(Path(folder) / "labels.txt", names)

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write BERT with its head and vocabulary as Hugging Face lays them out."""
        body = {name: params[name] for name in ("embedding", "encoder")} | params["decoder"]
        self.data.tokenizer.save_pretrained(Path(folder), self.length)
        save_bert(folder, self.model.sizes.on_file, body, self._settings)

    def export_adapters(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write adapters, head and vocabulary as PEFT lays them out, where it can read them."""
        folder_name = self.pretrained_folder
        if folder_name and _peft_reads(self.model) and not is_distilled(folder_name):
            self.data.tokenizer.save_pretrained(Path(folder), self.length)
            base = Path(folder_name).absolute()
            save_adapters(Path(folder), self.model.sizes, params, base, self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        """Keys of ``config.json`` that are no sizes."""
        return {**self.layout_settings(), TASK_KEY: self.kind}

    def layout_settings(self) -> Mapping[str, Any]:
        """Keys of ``config.json`` that describe the head."""
        choices = {"pooling": self.model.pooling, "head": self.model.head}
        return label_settings(self.data.labels, pools=self.pools, **choices)

    @classmethod
    def load(cls, folder: Path) -> tuple[Self, Params]:
        """A trained model from its folder; products are of 32-bit numbers.

        Args:
          folder: with ``config.json``, ``model.safetensors``, ``vocab.txt`` and
            ``tokenizer_config.json``; or with adapters of another model in place of the second.

        Raises:
          InputError: a missing or damaged file, or a model of the other kind.
        """
        read = load_adapted_bert if (folder / ADAPTER_CONFIG).exists() else load_labelling_bert
        sizes, params, labels, pooling, head = read(folder)
        if ("pooler" in params) != cls.pools:
            problem = "holds a model for " + ("tags" if cls.pools else "classes of texts")
            remedy = f"Correct {TASK_KEY} in its config.json"
            raise InputError("model", str(folder), problem, remedy)
        wordpiece, length = load_wordpiece(folder, sizes)
        model = _with_head(sizes, labels, pools=cls.pools, pooling=pooling, head=head)
        data = TaskData(wordpiece, labels=labels)
        return cls(model=model, data=data, length=length), split_params(params)


def _with_head(
    sizes: BertConfig, labels: Sequence[str], *, pools: bool, pooling: str, head: str
) -> BertWithHead:
    return BertWithHead(
        sizes=sizes,
        labels=len(labels),
        pools=pools,
        pooling=pooling,
        head=head,
        forbidden=() if head == "linear" else forbidden_pairs(labels),
    )


def load_wordpiece(folder: Path, sizes: BertConfig) -> tuple[WordPiece, int]:
    """The vocabulary of a trained BERT, and the length of a row; refused where they do not fit."""
    wordpiece, length = WordPiece.from_pretrained(folder, sizes.positions)
    check_pieces(folder / "vocab.txt", len(wordpiece.pieces), sizes.vocabulary_size)
    if length > sizes.positions:
        problem = f"model_max_length is {length}, the model has {sizes.positions}"
        raise InputError("model", str(folder), problem, "Take the original files")
    return wordpiece, length


def split_params(params: Params) -> Params:
    """Parameters on file in the parts of a ``SplitModel``."""
    body = {name: params[name] for name in ("embedding", "encoder")}
    return body | {"decoder": {name: params[name] for name in params.keys() - body.keys()}}


def _peft_reads(model: SplitModel) -> bool:
    """Whether the model is a head of ``transformers`` on a BERT that it can read."""
    if not isinstance(model, BertWithHead) or model.sizes.ngram_buckets:
        return False
    return model.pooling == POOLINGS[0] and model.head != "crf"


def make_sizes(config: Config) -> BertConfig:
    """Sizes of BERT without its head."""
    task = config["task"]
    if task["source_length"] < 3:
        problem = "no room for a piece between [CLS] and [SEP]"
        raise InputError("task.source_length", task["source_length"], problem, "Use 3 or more")
    if config["model"]["head"] == "crf" and (smoothing := config["model"]["label_smoothing"]):
        problem = "a sequence of tags has no target that could be smoothed"
        raise InputError("model.label_smoothing", smoothing, problem, "Use 0 with model.head=crf")
    with rename_error_keys(KEYS_OF_TASK):
        return BertConfig(
            vocabulary_size=task["vocabulary_size"],
            positions=task["source_length"],
            **{size: config["model"][size] for size in NGRAM_SIZES},
            **encoder_sizes(config["model"]),
        )


def count_work(config: Config, *, pools: bool) -> ModelCounts:
    """Tables before the encoder; after it a linear map of every token, or of the pooled text."""
    task, width = config["task"], config["model"]["width"]
    sequence, labels = task["source_length"], task["labels"]
    if not labels:
        problem = "the cost of the head is unknown, and no file is read here to count them"
        raise InputError("task.labels", labels, problem, "Give the number of labels")
    predictions = 1 if pools else sequence
    crf = config["model"]["head"] == "crf"
    chain_flops = 2 * sequence * labels**2 if crf else 0  # one sum of exponentials a pair
    pooler_flops = 2 * width**2 if pools else 0
    return ModelCounts(
        sequence=sequence,
        target_tokens=predictions,
        decoder_parameters=counts.head_parameters(width, labels, pools, crf),
        decoder_flops=3.0 * (pooler_flops + 2 * predictions * width * labels + chain_flops),
        **embedding_work(config),
    )


def embedding_work(config: Config) -> dict[str, Any]:
    """Counts of the embedding: two sums and the norm's eight operations, and those of n-grams.

    Every piece is priced with as many n-grams as a word may have.
    """
    task, width = config["task"], config["model"]["width"]
    sizes = task["vocabulary_size"], task["source_length"], width
    buckets = config["model"]["ngram_buckets"]
    most = _most_ngrams(config["model"]["word_ngrams"])
    operations = 10.0 + (most + 2.0 if buckets else 0.0)
    return {
        "embedding_parameters": counts.bert_embedding_parameters(*sizes, buckets),
        "embed_flops": operations * task["source_length"] * width,
    }


def read_corpus(
    config: Config,
    read: Callable[..., _Sets],
    names: Sequence[str] = ("train", "validation", "test"),
    counts: Sequence[str] = _COUNTS,
) -> _Sets:
    """Read the sets, and check the vocabulary on file.

    Args:
      config: the configuration; wrong keys of it may be missing.
      read: as ``read_tagged``, ``read_sets`` or ``read_text_sets``.
      names, counts: keys of the task that it takes: texts, and numbers.

    Raises:
      InputError: for what is wrong, or for all that is.
    """
    task, found = config["task"], ValidValues()
    files = {key: task.get(key, "") for key in names}
    sizes = {key: task.get(key, 0) for key in counts}
    with collect() as step:
        with step():
            found["sets"] = read(**files, **sizes, seed=seed_of(config, "task"))
        if vocabulary := task.get("vocabulary"):
            WordPiece.from_file(vocabulary, task["lowercase"])
    return found["sets"]


def make_wordpiece(config: Config, lines: Sequence[str]) -> WordPiece:
    """The vocabulary on file, or one learnt from the lines where there is none."""
    task, pretrained = config["task"], config["model"]["pretrained"]
    vocabulary = task["vocabulary"]
    if pretrained and not vocabulary:
        vocabulary = str(Path(pretrained) / "vocab.txt")
    if vocabulary:
        return WordPiece.from_file(vocabulary, task["lowercase"])
    return train_wordpiece(lines, task["vocabulary_size"], task["lowercase"])


def _load_pretrained(directory: str, wanted: BertConfig) -> tuple[BertConfig, Params]:
    """Sizes of the configuration that are on file, and the parameters."""
    with rename_error_keys({"directory": "model.pretrained"}):
        found, params = load_bert(directory)
    return pretrained_sizes(directory, wanted, found, NGRAM_SIZES), params
