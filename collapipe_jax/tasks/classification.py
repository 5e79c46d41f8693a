"""Classification of texts: labelled files, BERT with a pooler and a head, scored by accuracy."""

import csv
import dataclasses
import functools
import io
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from collapipe_jax.errors import InputError
from collapipe_jax.models.bert import LabelledBatch
from collapipe_jax.models.layers import Params
from collapipe_jax.tasks import bert
from collapipe_jax.tasks.corpora import LabelledSets, TextFile
from collapipe_jax.tasks.sampling import seeded_generator
from collapipe_jax.tasks.scores import accuracy, macro_f1, majority_class
from collapipe_jax.tasks.subwords import WordPiece
from collapipe_jax.tasks.task import Config, Predictor, Task, held_out_loss

TEXT_COLUMN = "text"
LABEL_COLUMNS = ("category", "label")

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_FORMS = "Use .csv, .tsv or .json, and name the split of a .json as FILE.json#SPLIT"


class LabelledText(NamedTuple):
    """A text, with runs of white space replaced by one space, and its label."""

    text: str
    label: str


class ClassificationData(NamedTuple):
    """Arrays, vocabulary and classes of a classification task."""

    wordpiece: WordPiece
    labels: tuple[str, ...]  # names of the classes, sorted
    # texts and their classes, NumPy leaves ``[n, ...]``
    train: LabelledBatch
    validation: LabelledBatch
    test: LabelledBatch
    # Domain of every training text, or its class without domains, ``[n]`` int32
    split_keys: np.ndarray
    cut: dict[str, int]  # number of texts of each set that were cut to the length


def read_sets(
    *,
    train: str,
    validation: str,
    test: str,
    seed: int,
    samples: int = 0,
    validation_samples: int = 0,
) -> LabelledSets[LabelledText]:
    """Read the training, validation and test texts, each set in the order of its file.

    Args:
      train, test: names of files; ``train`` alone determines the classes.
      validation: name of a file; empty takes ``validation_samples`` from ``train``.
      seed: of the draws below.
      samples: most texts to train on, drawn by ``stratified_draw``; 0 takes all.
      validation_samples: texts taken from ``train``, drawn likewise and before the others;
        from 1 where ``validation`` is empty, else 0.

    Raises:
      InputError: a missing or broken file, a number out of its range, or a class in
        validation or test that training lacks.
    """
    whole = read_labelled_text(TextFile("task.train", train))
    labels = tuple(sorted({entry.label for entry in whole}))

    def held_out(file: TextFile) -> list[LabelledText]:
        entries = read_labelled_text(file)
        file.check_labels((entry.label for entry in entries), labels)
        return entries

    _check_validation_samples(validation, validation_samples, len(whole))
    validation_text, train_text = _take(whole, validation_samples, seed)
    if 0 < samples < len(train_text):
        train_text, _ = _take(train_text, samples, seed)
    if validation:
        validation_text = held_out(TextFile("task.validation", validation))
    return LabelledSets(labels, train_text, validation_text, held_out(TextFile("task.test", test)))


def stratified_draw(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Increasing indices of ``size`` random samples, of every label its share up to rounding.

    Each label first gives its share rounded down; the rest comes from the labels with the
    largest remainders, ties in random order.
    """
    rng = seeded_generator(seed)
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    # Integers: rounding errors must not decide between equal remainders.
    quota, remainder = np.divmod(counts * size, len(labels))
    order = rng.permutation(len(counts))
    order = order[np.argsort(-remainder[order], kind="stable")]
    quota[order[: size - quota.sum()]] += 1
    drawn = [rng.permutation(np.flatnonzero(classes == c))[:q] for c, q in enumerate(quota)]
    return np.sort(np.concatenate(drawn))


def read_labelled_text(file: TextFile) -> list[LabelledText]:
    """Labelled texts of a file, in file order; its suffix gives the format.

    A ``.csv`` or ``.tsv`` file has a header, and fields are quoted where they hold separators or
    line breaks. A ``.json`` file has a list whose entries are ``[text, label]`` or objects, or an
    object of such lists, one of them named as in ``data.json#train``. Columns and keys of objects
    are ``text``, and ``category`` or ``label``.

    Raises:
      InputError: an unreadable file, another format, a missing column or split, an entry
        without text or label, or no entries.
    """
    name, split = split_name(file.name)
    suffix = Path(name).suffix.lower()
    if suffix in _SEPARATORS:
        rows = _table_rows(file, _SEPARATORS[suffix])
    elif suffix == ".json":
        rows = _json_rows(file._replace(name=name), split)
    else:
        raise file.error(f"{suffix or 'no suffix'} is no known form", _FORMS)
    entries = []
    for place, text, label in rows:
        entry = LabelledText(" ".join(text.split()), label.strip())
        if not all(entry):
            missing = "label" if entry.text else "text"
            raise file.error(f"{place} has no {missing}", "Fill it or remove the entry")
        entries.append(entry)
    if not entries:
        raise file.error("it holds no entry", "Give a file with labelled texts")
    return entries


def read_domains(file: TextFile) -> dict[str, str]:
    """Domain of every label, from a JSON object of lists ``{domain: [label, ...]}``.

    Raises:
      InputError: an unreadable file, another format, or a label in two domains.
    """
    domains = _read_json(file)
    if not isinstance(domains, dict) or not all(
        isinstance(labels, list) and all(isinstance(label, str) for label in labels)
        for labels in domains.values()
    ):
        remedy = 'Write {"domain": ["label", ...], ...}'
        raise file.error("no JSON object of lists of labels", remedy)
    domain_of: dict[str, str] = {}
    for domain, labels in domains.items():
        for label in labels:
            if domain_of.setdefault(label, domain) != domain:
                problem = f"{label!r} stands in {domain_of[label]!r} and in {domain!r}"
                raise file.error(problem, "Give each label one domain")
    return domain_of


def split_name(name: str) -> tuple[str, str]:
    """File and split of a name such as ``data.json#train``; the split is empty without one."""
    match = re.fullmatch(r"(.*\.json)#([^#/]+)", name, flags=re.IGNORECASE)
    return (match[1], match[2]) if match else (name, "")


def _take(
    entries: Sequence[LabelledText], size: int, seed: int
) -> tuple[list[LabelledText], list[LabelledText]]:
    """A stratified draw and its complement, both in the order of the corpus."""
    labels = np.array([entry.label for entry in entries])
    drawn = set(stratified_draw(labels, size, seed).tolist())
    taken = [entry for i, entry in enumerate(entries) if i in drawn]
    return taken, [entry for i, entry in enumerate(entries) if i not in drawn]


def _domain_of_class(file: TextFile, labels: Sequence[str]) -> np.ndarray:
    """Number of the domain of every label; domains are sorted by name."""
    domain_of = read_domains(file)
    missing = [label for label in labels if label not in domain_of]
    if missing:
        problem = f"{len(missing)} classes have no domain, the first {missing[0]!r}"
        raise file.error(problem, "Put every class in one domain")
    _, numbers = np.unique([domain_of[label] for label in labels], return_inverse=True)
    return numbers.astype(np.int32)


def _check_validation_samples(validation: str, wanted: int, available: int) -> None:
    key = "task.validation_samples"
    if validation and wanted:
        remedy = "Use 0, or leave task.validation empty"
        raise InputError(key, wanted, "task.validation names a file", remedy)
    if not validation and wanted < 1:
        problem = "there is no task.validation and nothing would be drawn for it"
        raise InputError(key, wanted, problem, "Use 1 or more, e.g. 1000")
    if wanted >= available:
        problem = f"training has {available} texts, none would be left to train on"
        raise InputError(key, wanted, problem, "Lower it")


def _table_rows(file: TextFile, separator: str) -> Iterable[tuple[str, str, str]]:
    reader = csv.reader(io.StringIO(file.text(), newline=""), delimiter=separator)
    header = [name.strip() for name in next(reader, [])]
    text_at, label_at = (_column(file, header, names) for names in ((TEXT_COLUMN,), LABEL_COLUMNS))
    start = reader.line_num + 1
    for row in reader:
        if row:  # a blank line is none
            if len(row) != len(header):
                problem = f"line {start} has {len(row)} columns, the header {len(header)}"
                remedy = "Quote fields that hold separators, quotes or line breaks"
                raise file.error(problem, remedy)
            yield f"line {start}", row[text_at], row[label_at]
        start = reader.line_num + 1


def _column(file: TextFile, header: list[str], names: Sequence[str]) -> int:
    """Place of the first of the names that the header has."""
    found = [name for name in names if name in header]
    if not found:
        problem = f"no column {' or '.join(names)} among {', '.join(header) or 'none'}"
        raise file.error(problem, "Write a header that has it")
    return header.index(found[0])


def _json_rows(file: TextFile, split: str) -> Iterable[tuple[str, str, str]]:
    content = _read_json(file)
    if isinstance(content, dict):
        if split not in content:
            problem = f"no split {split!r} among {', '.join(content) or 'none'}"
            raise file.error(problem, "Name one as FILE.json#SPLIT")
        content = content[split]
    elif split:
        raise file.error(f"the file has no splits, so no {split!r}", f"Leave out #{split}")
    if not isinstance(content, list):
        raise file.error("no JSON list of entries", _FORMS)
    entry: Any
    for number, entry in enumerate(content, start=1):
        if isinstance(entry, dict):
            labels = [entry[name] for name in LABEL_COLUMNS if name in entry]
            entry = [entry.get(TEXT_COLUMN), *labels[:1]]
        if not (
            isinstance(entry, list) and len(entry) == 2 and all(isinstance(e, str) for e in entry)
        ):
            problem = f"entry {number} is no text with a label"
            remedy = 'Write entries as ["text", "label"] or {"text": "...", "label": "..."}'
            raise file.error(problem, remedy)
        yield f"entry {number}", entry[0], entry[1]


def _read_json(file: TextFile) -> Any:
    text = file.text()
    try:
        return json.loads(text)
    except ValueError as error:
        raise file.error(f"not JSON ({error})", "Correct the file") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(bert.BertObjective):
    """The objective of predicting the class of a text."""

    headline: ClassVar[str] = "test_accuracy"
    baseline: ClassVar[str] = "test_accuracy_majority"
    pools: ClassVar[bool] = True

    data: ClassificationData

    @classmethod
    def load_data(cls, config: Config) -> ClassificationData:
        """Read labelled texts and turn them into arrays; a deterministic function.

        A text longer than a row is cut and counted.
        """
        task, settings = config["task"], bert.reading_settings(config)
        sets = read_sets(**settings, validation_samples=task["validation_samples"])
        wordpiece = bert.make_wordpiece(config, [entry.text for entry in sets.train])
        arrays, cut = {}, {}
        for name in ("train", "validation", "test"):
            texts, classes = zip(*getattr(sets, name), strict=True)
            ids, cut[name] = wordpiece.encode_texts(texts, task["source_length"])
            numbers = np.searchsorted(sets.labels, classes)
            arrays[name] = LabelledBatch(ids, numbers.astype(np.int32))
        keys = arrays["train"].labels
        if task["domains"]:
            keys = _domain_of_class(TextFile("task.domains", task["domains"]), sets.labels)[keys]
        return ClassificationData(
            wordpiece=wordpiece, labels=sets.labels, split_keys=keys, cut=cut, **arrays
        )

    def validation_score(self, params: Params) -> float:
        """Accuracy."""
        arrays = self.data.validation
        return accuracy(arrays.labels, self.predict(params, arrays)).value

    def baseline_score(self) -> float:
        """Accuracy of always naming the most frequent class."""
        return self._majority(self.data.validation)

    def test(self, params: Params) -> dict[str, Any]:
        """Accuracy and macro F1, accuracy of the majority class, and the loss."""
        arrays = self.data.test
        predicted = self.predict(params, arrays)
        return {
            "test_accuracy": accuracy(arrays.labels, predicted).value,
            "test_macro_f1": macro_f1(arrays.labels, predicted).value,
            "test_accuracy_majority": self._majority(arrays),
            "test_loss": held_out_loss(params, self.model, arrays),
            "cut_texts": self.data.cut,
        }

    def _majority(self, arrays: LabelledBatch) -> float:
        found = majority_class(self.data.train.labels, len(arrays.labels))
        return accuracy(arrays.labels, found).value


def load(folder: Path) -> Predictor:
    """A trained classifier."""
    from collapipe_jax.tasks.classifier import Classifier  # which needs this module

    return Classifier(folder)


CLASSIFICATION = Task(
    score_name="accuracy",
    make_sizes=bert.make_sizes,
    make_objective=Classification.from_config,
    count_work=functools.partial(bert.count_work, pools=True),
    load=load,
    reads=bert.READS | {"task.domains", "task.validation_samples"},
    needs=bert.NEEDS,
)
