"""From a configuration to an objective: sizes of the model, the corpus, and the score."""

import dataclasses
from pathlib import Path

from ml_collections import ConfigDict

from collapipe_jax.config.checks import under_keys
from collapipe_jax.errors import InputError
from collapipe_jax.models.bert_heads import BertClassifier, BertTagger
from collapipe_jax.models.config import BertConfig, TransformerConfig
from collapipe_jax.models.layers import Params
from collapipe_jax.models.pretrained import load_bert
from collapipe_jax.models.transformer import Translator
from collapipe_jax.objectives.classification import Classification
from collapipe_jax.objectives.objective import Objective
from collapipe_jax.objectives.tagging import Tagging
from collapipe_jax.objectives.translation import Translation
from collapipe_jax.tasks.classification import ClassificationData, load_classification
from collapipe_jax.tasks.piece_dropout import PieceDropout
from collapipe_jax.tasks.tagging import TaggingData, load_tagging
from collapipe_jax.tasks.translation import TranslationData, load_translation


def build_model(config: ConfigDict) -> TransformerConfig | BertConfig:
    """Sizes of the model.

    Raises:
      InputError: if they do not fit each other.
    """
    task, model = config.task, config.model.to_dict()
    of_translation = {key: model.pop(key) for key in ("decoder_blocks", "label_smoothing")}
    model.pop("pretrained")
    sizes = ("vocabulary_size", "source_length", "target_length")
    with under_keys({f"model.{key}": f"task.{key}" for key in sizes}):
        if task.kind == "translation":
            return TransformerConfig(**{key: task[key] for key in sizes}, **of_translation, **model)
        return BertConfig(
            vocabulary_size=task.vocabulary_size, positions=task.source_length, **model
        )


def build_objective(config: ConfigDict) -> Objective:
    """Model, corpus and score of the configured kind of task.

    Raises:
      InputError: if the corpus cannot be read or does not fit the configuration, or sizes do
        not fit each other or the pretrained model's.
    """
    sizes = build_model(config)
    if config.task.kind == "translation":
        return Translation(
            model=Translator(sizes),
            data=load_parallel(config),
            beams=config.evaluation.beams,
            length_penalty=config.evaluation.length_penalty,
        )
    pretrained = None
    if config.model.pretrained:
        sizes, pretrained = _load_pretrained(config.model.pretrained, sizes)
    objective, head, load = {
        "tagging": (Tagging, BertTagger, load_tags),
        "classification": (Classification, BertClassifier, load_classes),
    }[config.task.kind]
    data = load(config)
    _check_labels(config.task.labels, data.labels)
    _check_vocabulary(config.task.vocabulary_size, data.wordpiece.vocabulary_size)
    model = head(
        sizes=sizes, labels=config.task.labels, label_smoothing=config.model.label_smoothing
    )
    dropped = config.task.piece_dropout
    piece_dropout = PieceDropout(data.wordpiece.pieces, dropped) if dropped else None
    return objective(model=model, data=data, pretrained=pretrained, piece_dropout=piece_dropout)


def load_parallel(config: ConfigDict) -> TranslationData:
    """Parallel text, tokenised and split.

    Raises:
      InputError: if it cannot be read, or is too small.
    """
    task = config.task
    files = tuple(task.corpus.split("|"))
    if len(files) > 2:
        raise InputError("task.corpus", task.corpus, "more than two files", "Give one, or A|B")
    corpus = files if len(files) == 2 else task.corpus
    return load_translation(
        corpus=corpus,
        pairs=task.pairs,
        validation_pairs=task.validation_pairs,
        test_pairs=task.test_pairs,
        vocabulary_size=task.vocabulary_size,
        source_length=task.source_length,
        target_length=task.target_length,
        seed=config.seed,
        reverse=task.reverse,
    )


def load_tags(config: ConfigDict) -> TaggingData:
    """Tagged sentences in windows of subwords.

    Raises:
      InputError: if a file cannot be read, or does not fit the others.
    """
    task = config.task
    return load_tagging(
        train=task.train,
        validation=task.validation,
        test=task.test,
        vocabulary=_vocabulary(config),
        vocabulary_size=task.vocabulary_size,
        length=task.source_length,
        sentences=task.samples,
        seed=config.seed,
        lowercase=task.lowercase,
    )


def load_classes(config: ConfigDict) -> ClassificationData:
    """Labelled texts as subwords.

    Raises:
      InputError: if a file cannot be read, or does not fit the others.
    """
    task = config.task
    return load_classification(
        train=task.train,
        validation=task.validation,
        test=task.test,
        domains=task.domains,
        vocabulary=_vocabulary(config),
        vocabulary_size=task.vocabulary_size,
        length=task.source_length,
        seed=config.seed,
        samples=task.samples,
        validation_samples=task.validation_samples,
        lowercase=task.lowercase,
    )


def _vocabulary(config: ConfigDict) -> str:
    """File of the vocabulary: the one named, or the pretrained model's; empty learns one."""
    if config.task.vocabulary or not config.model.pretrained:
        return config.task.vocabulary
    return str(Path(config.model.pretrained) / "vocab.txt")


def _load_pretrained(directory: str, wanted: BertConfig) -> tuple[BertConfig, Params]:
    """Sizes and parameters on file; what training may choose is as the configuration says."""
    with under_keys({"directory": "model.pretrained"}):
        found, params = load_bert(directory)
    for field in ("width", "heads", "feed_forward_width", "encoder_blocks", "vocabulary_size"):
        section = "task" if field == "vocabulary_size" else "model"
        if getattr(found, field) != getattr(wanted, field):
            raise InputError(
                f"{section}.{field}",
                getattr(wanted, field),
                f"the model in {directory} has {getattr(found, field)}",
                f"Set it to {getattr(found, field)}",
            )
    if found.positions < wanted.positions:
        raise InputError(
            "task.source_length",
            wanted.positions,
            f"the model in {directory} has {found.positions} positions",
            f"Lower it to {found.positions} or less",
        )
    chosen = ("dropout_rate", "rematerialise", "compute_dtype")
    return dataclasses.replace(found, **{key: getattr(wanted, key) for key in chosen}), params


def _check_labels(stated: int, found: tuple[str, ...]) -> None:
    if stated != len(found):
        names = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise InputError(
            "task.labels",
            stated,
            f"the corpus has {len(found)}: {names}",
            f"Set it to {len(found)}",
        )


def _check_vocabulary(stated: int, found: int) -> None:
    if found > stated:
        raise InputError(
            "task.vocabulary_size", stated, f"the vocabulary has {found}", f"Set it to {found}"
        )
