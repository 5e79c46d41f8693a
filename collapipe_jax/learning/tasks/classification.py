"""Classification of texts: labelled files, BERT with a pooler and a head, scored by accuracy."""

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from collapipe_jax.core.errors import Step, ValidValues, collect
from collapipe_jax.learning.models.bert import LabelledBatch, label_probabilities
from collapipe_jax.learning.models.layers import Params
from collapipe_jax.learning.tasks import bert_tasks
from collapipe_jax.learning.tasks.corpora import (
    LabelledSets,
    Placed,
    SetFiles,
    TextFile,
    split_name,
)
from collapipe_jax.learning.tasks.records import (
    SUFFIXES,
    Field,
    LabelNames,
    Record,
    find_fields,
    name_list,
    read_json,
    read_records,
    text_values,
)
from collapipe_jax.learning.tasks.sampling import stratified_draw
from collapipe_jax.learning.tasks.scores import accuracy, macro_f1, majority_class
from collapipe_jax.learning.tasks.subwords import WordPiece
from collapipe_jax.learning.tasks.task import (
    PREDICTED,
    Config,
    ScoredSet,
    TaskData,
    in_batches,
)

TEXT_COLUMN = "text"
LABEL_COLUMNS = ("category", "label")
COLUMN_KEYS = ("task.text_column", "task.label_column")

_FORMS = (
    "Use .csv, .tsv, .jsonl, .parquet or .json, and name the split of a .json as FILE.json#SPLIT"
)


class LabelledText(NamedTuple):
    """A text, with runs of white space replaced by one space, and its label."""

    text: str
    label: str


class Classified(NamedTuple):
    """The likeliest label of a text."""

    label: str
    probability: float
    probabilities: dict[str, float] | None = None  # of all labels, where asked for


def read_sets(
    *,
    train: str,
    validation: str,
    test: str,
    seed: int,
    samples: int = 0,
    validation_samples: int = 0,
    labels: int = 0,
    skip_broken: bool = False,
    text_column: str = "",
    label_column: str = "",
) -> LabelledSets[LabelledText]:
    """Read the training, validation and test texts, each set in the order of its file.

    Args:
      train, test: names of files; ``train`` alone determines the classes.
      validation: name of a file; empty takes texts from ``train``.
      seed: of the draws below.
      samples: most texts to train on, drawn by ``stratified_draw``; 0 takes all.
      validation_samples: texts taken from ``train`` before, of every class its share, as in
        ``take_validation``; 0 is a tenth where ``validation`` is empty.
      labels: number of classes; 0 takes any.
      skip_broken: as of ``TextFile``.
      text_column, label_column: as in ``read_labelled_text``.

    Raises:
      InputError: a missing or broken file, a number out of its range, or a class in
        validation or test that training lacks; or all of these.
    """
    fields = _fields(text_column, label_column, COLUMN_KEYS)
    files = SetFiles(
        read=lambda file: _placed(file, fields),
        labels=_classes,
        marks=lambda entry: (entry.label,),
        text=lambda entry: entry.text,
        stratum=lambda entry: entry.label,
    )
    options = {"validation_samples": validation_samples, "labels": labels, "seed": seed}
    sets = files.sets(train, validation, test, **options, skip_broken=skip_broken)
    if not 0 < samples < len(sets.train):
        return sets
    rows = stratified_draw(np.array([entry.label for entry in sets.train]), samples, seed)
    return sets._replace(train=[sets.train[row] for row in rows])


def read_labelled_text(
    file: TextFile,
    text_column: str = "",
    label_column: str = "",
    keys: Sequence[str] = COLUMN_KEYS,
) -> list[LabelledText]:
    """Labelled texts of a file, in file order; its suffix gives the format.

    A table or a ``.jsonl`` file is as of ``read_records``. A ``.json`` file has a list whose
    entries are ``[text, label]`` or objects, or an object of such lists, one of them named as in
    ``data.json#train``. Labels may be numbers, which ``LabelNames`` reads; in such an object a
    list ``names`` names them.

    Args:
      file: the file.
      text_column: column, or key of objects; empty is ``text``.
      label_column: likewise; empty is ``category`` or ``label``.
      keys: what errors call these two.

    Raises:
      InputError: an unreadable file, another format, a missing column or split, an entry
        without text or label, or no entries.
    """
    return [entry for _, entry in _placed(file, _fields(text_column, label_column, keys))]


def _fields(text_column: str, label_column: str, keys: Sequence[str]) -> tuple[Field, Field]:
    return (
        Field((TEXT_COLUMN,), keys[0], text_column),
        Field(LABEL_COLUMNS, keys[1], label_column, labels=True),
    )


def _placed(file: TextFile, fields: Sequence[Field]) -> list[Placed[LabelledText]]:
    name, split = split_name(file.name)
    whole, entries = file._replace(name=name), []
    with file.reading() as step:
        if whole.suffix == ".json":
            records = _json_records(whole, split, fields, step)
        elif whole.suffix in SUFFIXES:
            records = read_records(file, fields, step)
        else:
            raise file.error(f"{whole.suffix or 'no suffix'} is no known form", _FORMS)
        for record in records:
            with step():
                text, label = text_values(file, record)
                entry = LabelledText(" ".join(text.split()), label.strip())
                if not all(entry):
                    problem = f"{record.place} has no {'label' if entry.text else 'text'}"
                    raise file.error(problem, "Fill it or remove the entry")
                entries.append((record.place, entry))
    if not entries:
        raise file.error("it holds no entry", "Give a file with labelled texts")
    return entries


def _classes(file: TextFile, entries: Sequence[LabelledText]) -> tuple[str, ...]:
    classes = tuple(sorted({entry.label for entry in entries}))
    if len(classes) == 1 and file.key == "task.train":
        problem = f"all {len(entries)} texts have the label {classes[0]!r}"
        raise file.error(problem, "Give texts of two classes or more")
    return classes


def read_domains(file: TextFile) -> dict[str, str]:
    """Domain of every label, from a JSON object of lists ``{domain: [label, ...]}``.

    Raises:
      InputError: an unreadable file, another format, or a label in two domains.
    """
    domains = read_json(file)
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
                problem = f"{label!r} is in both {domain_of[label]!r} and {domain!r}"
                raise file.error(problem, "Give each label one domain")
    return domain_of


def _domain_numbers(
    file: TextFile, domain_of: Mapping[str, str], labels: Sequence[str]
) -> np.ndarray:
    """Number of the domain of every label; domains are sorted by name."""
    missing = [label for label in labels if label not in domain_of]
    if missing:
        problem = f"{len(missing)} classes have no domain, the first {missing[0]!r}"
        raise file.error(problem, "Put every class in one domain")
    _, numbers = np.unique([domain_of[label] for label in labels], return_inverse=True)
    return numbers.astype(np.int32)


def _json_records(
    file: TextFile, split: str, fields: Sequence[Field], step: Step
) -> Iterator[Record]:
    content, labels = read_json(file), LabelNames(file)
    if isinstance(content, dict):
        labels.names = name_list(content.get("names"))
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
        place, column = f"entry {number}", LABEL_COLUMNS[-1]
        with step():
            if isinstance(entry, dict):
                *_, column = names = find_fields(file, place, entry, fields)
                entry = [entry[name] for name in names]
            if not isinstance(entry, list) or len(entry) != len(fields):
                problem = f"{place} is no text with a label"
                remedy = 'Write entries as ["text", "label"] or {"text": "...", "label": "..."}'
                raise file.error(problem, remedy)
            yield Record(place, (entry[0], labels.text(place, column, entry[1])))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(bert_tasks.BertTask):
    """Texts to classes. A text of too many pieces is cut, and its end ignored."""

    score_name: ClassVar[str] = "accuracy"
    score_key: ClassVar[str] = "accuracy"
    trivial_key: ClassVar[str] = "accuracy_majority"
    scores_samples: ClassVar[bool] = True
    pools: ClassVar[bool] = True
    reads: ClassVar = bert_tasks.READS | {"model.pooling", "task.domains", *COLUMN_KEYS}

    @staticmethod
    def linear_scores(corpus: LabelledSets) -> dict[str, Any]:
        """Test scores of a linear model of texts; its library takes seconds to load."""
        from collapipe_jax.learning.tasks.linear_baselines import text_svm

        return text_svm(corpus)

    @classmethod
    def read_corpus(cls, config: Config) -> LabelledSets[LabelledText]:
        """Read the labelled texts; report all that is wrong with the files at once."""
        task, found = config["task"], ValidValues()
        columns = {key: task.get(key, "") for key in ("text_column", "label_column")}
        with collect() as step:
            with step():
                found["sets"] = bert_tasks.read_corpus(
                    config, functools.partial(read_sets, **columns)
                )
            if domains := task.get("domains"):
                file = TextFile("task.domains", domains)
                _domain_numbers(file, read_domains(file), found["sets"].labels)
        return found["sets"]

    @classmethod
    def load_data(
        cls, config: Config, corpus: LabelledSets[LabelledText] | None = None
    ) -> TaskData:
        """Turn labelled texts into arrays; a deterministic function.

        A text longer than a row is cut and counted. The split key of a training text is its
        domain, or its class without domains.
        """
        task, sets = config["task"], corpus or cls.read_corpus(config)
        wordpiece = bert_tasks.make_wordpiece(config, [entry.text for entry in sets.train])
        encode = functools.partial(
            _encode, wordpiece=wordpiece, labels=sets.labels, length=task["source_length"]
        )
        train, validation = encode(sets.train), encode(sets.validation)
        test = encode(sets.test) if sets.test else None
        keys = train.arrays.labels
        if task["domains"]:
            file = TextFile("task.domains", task["domains"])
            keys = _domain_numbers(file, read_domains(file), sets.labels)[keys]
        cut = {"train": train, "validation": validation} | ({"test": test} if test else {})
        return TaskData(
            tokenizer=wordpiece,
            labels=sets.labels,
            train=train.arrays,
            validation=validation,
            test=test,
            split_keys=keys,
            counts={"cut_texts": {name: each.counts["cut_texts"] for name, each in cut.items()}},
        )

    def score(self, params: Params, samples: ScoredSet) -> dict[str, Any]:
        """Accuracy, macro F1 and loss."""
        wanted, predicted = samples.arrays.labels, self.likeliest(params, samples.arrays)
        scores = accuracy(wanted, predicted), macro_f1(wanted, predicted)
        return {
            "accuracy": scores[0].value,
            "macro_f1": scores[1].value,
            "signatures": [score.signature for score in scores],
            "loss": self.loss(params, samples),
        }

    def trivial(self, samples: ScoredSet) -> dict[str, Any]:
        """Accuracy of always naming the most frequent class."""
        wanted = samples.arrays.labels
        guessed = majority_class(self.data.train.labels, len(wanted))
        return {"accuracy_majority": accuracy(wanted, guessed).value}

    def sample_scores(self, params: Params) -> tuple[np.ndarray, np.ndarray]:
        """Whether a text is labelled rightly; its domain, or its class without domains."""
        arrays = self.data.validation.arrays
        right = self.likeliest(params, arrays) == arrays.labels
        keys = np.full(len(self.data.labels), -1)  # of classes that no sample to train on has
        keys[self.data.train.labels] = self.data.split_keys
        return 100.0 * right, keys[arrays.labels]

    def predict(
        self, params: Params, texts: Sequence[str], *, probabilities: bool = False
    ) -> list[Classified]:
        """The label of each text, with the probabilities of all labels on request."""
        if not texts:
            return []
        labels = self.data.labels
        token_ids, _ = _token_ids(texts, self.data.tokenizer, self.length)
        of_labels = functools.partial(label_probabilities, self.model, params)
        answers = []
        for row in in_batches(
            of_labels, self.with_ngrams(LabelledBatch(token_ids, None)), PREDICTED
        ):
            best = int(row.argmax())
            every = dict(zip(labels, row.tolist(), strict=True)) if probabilities else None
            answers.append(Classified(labels[best], float(row[best]), every))
        return answers

    def evaluate(
        self,
        params: Params,
        file: str | os.PathLike[str],
        *,
        text_column: str = "",
        label_column: str = "",
    ) -> dict[str, Any]:
        """Scores on labelled texts, on file as in ``read_labelled_text``."""
        source, keys = TextFile("data", str(file)), ("--text-column", "--label-column")
        placed = _placed(source, _fields(text_column, label_column, keys))
        source.check_labels([(place, (one.label,)) for place, one in placed], self.data.labels)
        entries = [entry for _, entry in placed]
        samples = _encode(entries, self.data.tokenizer, self.data.labels, self.length)
        return self.report(params, self.prepared(samples))

    def line(self, answer: Classified) -> str:
        """Label and probability, then the pairs of all labels where they were asked for."""
        every = answer.probabilities or {}
        others = [f"{label}={every[label]:.4f}" for label in sorted(every, key=lambda e: -every[e])]
        return "\t".join([answer.label, f"{answer.probability:.4f}", *others])


def _encode(
    entries: Sequence[LabelledText], wordpiece: WordPiece, labels: Sequence[str], length: int
) -> ScoredSet:
    texts, classes = zip(*entries, strict=True)
    token_ids, cut = _token_ids(texts, wordpiece, length)
    numbers = np.array([labels.index(name) for name in classes], dtype=np.int32)
    counts = {"texts": len(texts), "cut_texts": cut}
    return ScoredSet(LabelledBatch(token_ids, numbers), counts=counts)


def _token_ids(texts: Sequence[str], wordpiece: WordPiece, length: int) -> tuple[np.ndarray, int]:
    """Token ids ``[n, S]``, runs of white space read as one; and how many texts are cut."""
    return wordpiece.encode_texts([" ".join(text.split()) for text in texts], length)
