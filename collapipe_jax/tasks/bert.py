"""What tagging and classification with BERT share: sizes, start, predictions, export."""

import abc
import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from collapipe_jax.cost import model_counts
from collapipe_jax.errors import InputError, under_keys
from collapipe_jax.files.atomic import write_text
from collapipe_jax.models.bert import BertWithHead, LabelledBatch, predict
from collapipe_jax.models.config import BertConfig, encoder_sizes
from collapipe_jax.models.layers import Params
from collapipe_jax.models.pretrained import load_bert, save_bert
from collapipe_jax.tasks.objective import Objective, in_batches
from collapipe_jax.tasks.piece_dropout import PieceDropout
from collapipe_jax.tasks.task import Config, ModelCounts

READS = frozenset(
    {
        "model.pretrained",
        "task.labels",
        "task.piece_dropout",
        "task.samples",
        "task.test",
        "task.train",
        "task.validation",
        "task.vocabulary",
    }
)
NEEDS = {
    "task.train": "Give a file",
    "task.test": "Give a file",
    "task.labels": "Give the number of labels",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertObjective(Objective):
    """The objective of BERT with a head.

    Attributes:
      model, data, headline, baseline: as in ``Objective``.
      pretrained: parameters of BERT to start from, as of ``load_bert``, or None.
      piece_dropout: random segmentation of training words, or None.
    """

    pools: ClassVar[bool]

    model: BertWithHead
    pretrained: Params | None = None
    piece_dropout: PieceDropout | None = None

    @classmethod
    def from_config(cls, config: Config) -> "BertObjective":
        """Read corpus and pretrained parameters, and check that they fit the configuration."""
        task, model = config["task"], config["model"]
        sizes, pretrained = make_sizes(config), None
        if model["pretrained"]:
            sizes, pretrained = _load_pretrained(model["pretrained"], sizes)
        data = cls.load_data(config)
        _check_labels(task["labels"], data.labels)
        _check_vocabulary(task["vocabulary_size"], data.wordpiece.vocabulary_size)
        rate = task["piece_dropout"]
        return cls(
            model=BertWithHead(
                sizes=sizes,
                labels=task["labels"],
                pools=cls.pools,
                label_smoothing=model["label_smoothing"],
            ),
            data=data,
            pretrained=pretrained,
            piece_dropout=PieceDropout(data.wordpiece.pieces, rate) if rate else None,
        )

    @classmethod
    @abc.abstractmethod
    def load_data(cls, config: Config) -> Any:
        """Samples of the configuration as subwords."""

    def draw(self, rows: np.ndarray, seed: Sequence[int]) -> LabelledBatch:
        """Training texts, with random segmentation where there is piece dropout."""
        batch = super().draw(rows, seed)
        if self.piece_dropout is None:
            return batch
        rng = np.random.Generator(np.random.Philox(seed))
        if self.pools:
            return batch._replace(token_ids=self.piece_dropout(batch.token_ids, None, rng)[0])
        return LabelledBatch(*self.piece_dropout(batch.token_ids, batch.labels, rng))

    def starting_params(self, fresh: Params) -> Params:
        """Pretrained parameters where there are any; the head is fresh."""
        return start_from(self.pretrained, fresh)

    def predict(self, params: Params, arrays: LabelledBatch) -> np.ndarray:
        """Likeliest labels of all samples: ``[n, S]`` of tokens, or ``[n]`` of texts."""
        return in_batches(functools.partial(_predict, params, model=self.model), arrays)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``vocab.txt`` and ``labels.txt``, one name a line, in order."""
        self.data.wordpiece.save(Path(folder) / "vocab.txt")
        names = "".join(f"{label}\n" for label in self.data.labels)
        write_text(Path(folder) / "labels.txt", names)

    def export(self, params: Params, folder: str | os.PathLike[str]) -> None:
        """Write BERT as Hugging Face lays it out; the head stays in the checkpoint."""
        body = {name: params[name] for name in ("embedding", "encoder")}
        if "pooler" in params["decoder"]:
            body["pooler"] = params["decoder"]["pooler"]
        # The layout needs the deviation of fresh weights; LeCun's law states none.
        sizes, pieces = self.model.sizes, self.data.wordpiece
        deviation = sizes.initial_deviation or sizes.width**-0.5
        sizes = dataclasses.replace(sizes, initial_deviation=deviation)
        save_bert(folder, sizes, body, vocabulary=pieces.pieces, lowercase=pieces.lowercase)


@functools.partial(jax.jit, static_argnames="model")
def _predict(params, batch, *, model):
    return predict(model, params, batch)


def start_from(pretrained: Params | None, fresh: Params) -> Params:
    """Pretrained parameters where there are any, else fresh ones; the head is always fresh."""
    if pretrained is None:
        return fresh
    decoder = dict(fresh["decoder"])
    if "pooler" in decoder and "pooler" in pretrained:
        decoder["pooler"] = pretrained["pooler"]
    body = {name: pretrained[name] for name in ("embedding", "encoder")}
    return body | {"decoder": decoder}


def make_sizes(config: Config) -> BertConfig:
    """Sizes of BERT without its head."""
    task = config["task"]
    ends = {"vocabulary_size": "vocabulary_size", "positions": "source_length"}
    with under_keys({f"model.{ours}": f"task.{theirs}" for ours, theirs in ends.items()}):
        return BertConfig(
            vocabulary_size=task["vocabulary_size"],
            positions=task["source_length"],
            **encoder_sizes(config["model"]),
        )


def count_work(config: Config, *, pools: bool) -> ModelCounts:
    """Tables before the encoder; after it a linear map of every token, or of the pooled text."""
    task, width = config["task"], config["model"]["width"]
    sequence, labels = task["source_length"], task["labels"]
    predictions = 1 if pools else sequence
    tables = (task["vocabulary_size"] + sequence + 1) * width  # texts are all of one type
    pooler_flops = 2 * width**2 if pools else 0
    return ModelCounts(
        sequence=sequence,
        target_tokens=predictions,
        embedding_parameters=tables + 2 * width,
        decoder_parameters=model_counts.head_parameters(width, labels, not pools),
        embed_flops=10.0 * sequence * width,  # two sums, then the norm's eight operations
        decoder_flops=3.0 * (pooler_flops + 2 * predictions * width * labels),
    )


def data_settings(config: Config) -> dict[str, Any]:
    """Arguments that both loaders of data take from the configuration."""
    task = config["task"]
    keys = ("train", "validation", "test", "samples", "vocabulary_size", "lowercase")
    vocabulary = task["vocabulary"]
    if config["model"]["pretrained"] and not vocabulary:
        vocabulary = str(Path(config["model"]["pretrained"]) / "vocab.txt")
    return {
        **{key: task[key] for key in keys},
        "vocabulary": vocabulary,
        "length": task["source_length"],
        "seed": config["seed"],
    }


def _load_pretrained(directory: str, wanted: BertConfig) -> tuple[BertConfig, Params]:
    """Sizes and parameters on file; training may choose dropout, precision and recomputation."""
    with under_keys({"directory": "model.pretrained"}):
        found, params = load_bert(directory)
    for field in ("width", "heads", "feed_forward_width", "encoder_blocks", "vocabulary_size"):
        section = "task" if field == "vocabulary_size" else "model"
        ours, theirs = getattr(wanted, field), getattr(found, field)
        if ours != theirs:
            problem = f"the model in {directory} has {theirs}"
            raise InputError(f"{section}.{field}", ours, problem, f"Set it to {theirs}")
    if found.positions < wanted.positions:
        problem = f"the model in {directory} has {found.positions} positions"
        remedy = f"Lower it to {found.positions} or less"
        raise InputError("task.source_length", wanted.positions, problem, remedy)
    chosen = ("dropout_rate", "rematerialise", "compute_dtype")
    return dataclasses.replace(found, **{key: getattr(wanted, key) for key in chosen}), params


def _check_labels(stated: int, found: Sequence[str]) -> None:
    if stated != len(found):
        names = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        problem = f"the corpus has {len(found)}: {names}"
        raise InputError("task.labels", stated, problem, f"Set it to {len(found)}")


def _check_vocabulary(stated: int, found: int) -> None:
    if found > stated:
        problem = f"the vocabulary has {found}"
        raise InputError("task.vocabulary_size", stated, problem, f"Set it to {found}")
