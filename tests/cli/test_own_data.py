"""What is wrong with one's own files is reported at once, and what is right is trained on."""

import json
import warnings

import pytest
from support import SUPPORT, tiny_corpora

from collapipe_jax.cli import compare, train
from collapipe_jax.cli.options import run_reporting_errors
from collapipe_jax.cli.train import warn_of_better_linear_model
from collapipe_jax.core.errors import InputWarning

FILES = {
    "good.csv": "text,label\n" + "".join(f"on {n},home\npay {n},bank\n" for n in range(40)),
    "test.csv": "text,label\nlights,home\n",
    "names.csv": "txt,intent\nlight on,home\npay it,bank\n",
    "ragged.csv": "text,label\nlight, on,home\n",
    "quote.csv": 'text,label\n"' + "light on,home\n" * 20_000,
    "hole.csv": "text,label\nlight on,\n",
    "one.csv": "text,label\nlight on,home\nlight off,home\n",
    "new.csv": "text,label\nhello,greeting\n",
    "head.csv": "text,label\n",
    "few.csv": "text,label\nlight on,home\npay it,bank\n",
    "bad.jsonl": '{"text": "light on", "label": "home"}\n{"text": \n',
    "list.jsonl": '["light on", "home"]\n',
    "number.jsonl": '{"text": "light on", "label": 3.5}\n',
    "keys.jsonl": '{"text": "light on", "klass": "home"}\n',
    "latin.csv": "text,label\nl\xe9ger,home\n".encode("latin-1"),
    "notes.txt": "text,label\n",
    "domains.json": '{"house": ["home"]}',
    "good.conll": "".join(f"we\tO\nsell{n}\tO\nzinc\tB-Metal\n\n" for n in range(40)),
    "test.conll": "iron\tB-Metal\n",
    "iob.conll": "tin\tB-Metal\nor\tO\nzinc\tI-Metal\n",
    "word.conll": "zinc\n",
    "plain.conll": "".join(f"we{n}\tO\n\n" for n in range(9)),
    "type.conll": "Oslo\tB-Place\n",
    "tags.jsonl": '{"tokens": ["a", "b"], "tags": ["O"]}\n',
    "text.jsonl": '{"tokens": "a b", "tags": "O O"}\n',
    "good.tsv": "".join(f"{n} tons\t{n} t\n" for n in range(90)),
    "test.tsv": "one ton\teine Tonne\n",
    "space.tsv": "one ton eine Tonne\n",
    "blank.tsv": "\n\n",
    "left.txt": "one\ntwo\n",
    "right.txt": "eins\n",
    "pairs.csv": "english,german\none,eins\n",
}
CONFIGS = {"csv": "classification", "conll": "tagging", "tsv": "translation"}


@pytest.fixture
def files(tmp_path, monkeypatch, no_data):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        content = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(content)
    return tmp_path


def start(config, *arguments, **task):
    keys = [f"--config.task.{key}={value}" for key, value in task.items()]
    argv = [f"--config={config}", "--workdir=run", *keys, *arguments]
    return run_reporting_errors(train.main, argv)


def told(capfd, config, *arguments, **task):
    """The errors that a start ends with, one line each."""
    assert start(config, *arguments, **task) == 2
    out, err = capfd.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert lines[0].startswith("error: ")
    if len(lines) == 1:
        return [lines[0].removeprefix("error: ")]
    assert lines[0] == f"error: {len(lines) - 1} things are wrong:"
    return [line.strip() for line in lines[1:]]


WRONG = [
    ("csv", {"train": "nix.csv"}, "task.train = 'nix.csv': no such file"),
    ("csv", {"train": ""}, "task.train = '': classification needs it. Give a file."),
    ("csv", {"train": "notes.txt"}, ".txt is no known form"),
    ("csv", {"train": "latin.csv"}, "line 2 holds bytes that are not UTF-8"),
    ("csv", {"train": "ragged.csv"}, "line 2 has 3 columns, the header 2"),
    ("csv", {"train": "quote.csv"}, "is no row of a table"),
    ("csv", {"train": "hole.csv"}, "line 2 has no label"),
    ("csv", {"train": "head.csv"}, "it holds no entry"),
    ("csv", {"train": "one.csv"}, "all 2 texts have the label 'home'"),
    ("csv", {"test": "new.csv"}, "training has no 'greeting' (line 2)"),
    ("csv", {"train": "bad.jsonl"}, "line 2 is not JSON"),
    ("csv", {"train": "list.jsonl"}, "line 1 is no JSON object"),
    ("csv", {"train": "number.jsonl"}, "line 1 has 3.5 where text should be"),
    ("csv", {"train": "keys.jsonl"}, "no column category or label among text, klass"),
    ("csv", {"labels": 3}, "task.labels = 3: the corpus has 2: bank, home. Set it to 2, or to 0."),
    ("csv", {"validation": "test.csv", "validation_samples": 9}, "task.validation names a file"),
    ("csv", {"validation_samples": 80}, "none would be left to train on"),
    ("csv", {"vocabulary": "nix.txt"}, "task.vocabulary = 'nix.txt': no such file"),
    ("csv", {"domains": "domains.json"}, "1 classes have no domain, the first 'bank'"),
    ("csv", {"train": "few.csv"}, "1 samples cannot give each cluster 16"),
    ("csv", {"vocabulary_size": 9}, "the characters of the corpus alone take"),
    ("csv", {"corpus": "a", "reverse": True}, "task.reverse = True: classification does not read"),
    ("conll", {"train": "iob.conll"}, "an entity that nothing began"),
    ("conll", {"train": "word.conll"}, "line 1 has one column"),
    ("conll", {"train": "plain.conll"}, "the file holds no entity to learn"),
    ("conll", {"test": "plain.conll"}, "the file holds no entity to score"),
    ("conll", {"test": "type.conll"}, "training has no 'B-Place' (line 1)"),
    ("conll", {"train": "tags.jsonl"}, "line 1 has 2 tokens and 1 tags"),
    ("conll", {"train": "text.jsonl"}, "line 1 has no lists of texts under tokens and tags"),
    ("conll", {"text_column": "a"}, "task.text_column = 'a': tagging does not read it"),
    ("tsv", {"test": ""}, "task.test = '': translation needs it, or the one file task.corpus"),
    ("tsv", {"train": "space.tsv"}, "line 1 has no tab between source and target"),
    ("tsv", {"train": "blank.tsv"}, "it holds no pair of sentences"),
    ("tsv", {"train": "left.txt|right.txt"}, "the files have 2 and 1 lines"),
    ("tsv", {"test": "a|b|c"}, "more than two files"),
    ("tsv", {"corpus": "good.tsv"}, "task.corpus = 'good.tsv': task.train is of separate files"),
    ("tsv", {"validation_samples": 90}, "none would be left to train on"),
    ("tsv", {"labels": 2}, "task.labels = 2: translation does not read it"),
]


@pytest.mark.parametrize(("ending", "task", "part"), WRONG)
def test_one_wrong_input_is_one_line(files, capfd, ending, task, part):
    given = {"train": f"good.{ending}", "test": f"test.{ending}"} | task
    (line,) = told(capfd, CONFIGS[ending], **given)
    assert part in line
    assert line.endswith(".")
    assert not (files / "run").exists()


def test_keys_and_files_are_reported_together(files, capfd):
    lines = told(
        capfd,
        "classification",
        "--config.model.headz=3",
        "--config.training.batch=7",
        "--config.seed=-1",
        train="names.csv",
        test="nix.csv",
        vocabulary="nix.txt",
        text_column="tex",
    )
    parts = [
        "model.headz = '3': unknown key. Did you mean model.head",
        "seed = -1",
        "the header has no column tex among txt, intent. Set task.text_column to txt",
        "the header has no column category or label among txt, intent. Set task.label_column",
        "task.test = 'nix.csv': no such file",
        "task.vocabulary = 'nix.txt'",
    ]
    assert len(lines) == len(parts)
    for line, part in zip(lines, parts, strict=True):
        assert part in line


def test_missing_and_broken_files_are_reported_together(files, capfd):
    lines = told(capfd, "tagging", test="iob.conll", validation="nix.conll")
    assert [line.split()[0] for line in lines] == ["task.train", "task.validation", "task.test"]
    lines = told(
        capfd, "translation", train="a.txt|b.txt", validation="space.tsv", test="blank.tsv"
    )
    keys = [line.split()[0].removeprefix("task.") for line in lines]
    assert keys == ["train", "train", "validation", "test"]


def test_a_wrong_label_does_not_hide_a_wrong_file(files, capfd):
    lines = told(
        capfd, "classification", train="good.csv", validation="nix.csv", test="new.csv", labels=5
    )
    assert [line.split()[0] for line in lines] == ["task.validation", "task.labels", "task.test"]


def test_a_comparison_asks_for_the_number_of_labels(files, capfd):
    assert run_reporting_errors(compare.main, ["--config=tagging", "--workdir=run"]) == 2
    assert "task.labels = 0: the cost of the head is unknown" in capfd.readouterr().err
    assert not (files / "run").exists()


def test_there_is_no_linear_model_of_translation(files, capfd):
    given = {"train": "good.tsv", "test": "test.tsv"}
    (line,) = told(capfd, "translation", "--linear-baseline", **given)
    assert line.startswith("--linear-baseline = True: there is no linear model of translation")


def test_a_better_linear_model_is_named_with_what_to_change():
    ours = {"test_span_f1": 3.0, "test_recall_of_seen": None}
    linear = {"test_span_f1_linear": 21.5, "test_recall_of_seen_linear": 40.0}
    with pytest.warns(InputWarning, match=r"test_span_f1 = 3: .* 21.5. Try a lower training.cl"):
        warn_of_better_linear_model(ours, linear)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_better_linear_model({"test_span_f1": 30.0}, linear)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) for k in ("classification", "tagging")]
)
def test_a_linear_model_stands_in_the_summary(files, capfd, kind):
    paths = tiny_corpora.write_sets(files, kind)
    keys = {"kind": kind, "vocabulary_size": 80, "source_length": 12, **paths}
    config = f"{SUPPORT / 'tiny_run.py'}"
    rounds = ("--config.training.rounds=2", "--config.dynamics.availability=1.0")
    assert start(config, "--linear-baseline", *rounds, **keys) == 0
    summary = json.loads((files / "run/summary.json").read_text())
    score = {"classification": "test_accuracy", "tagging": "test_span_f1"}[kind]
    assert summary[f"{score}_linear"] == 100.0
    out, err = capfd.readouterr()
    assert f"{score}_linear" in out
    # These corpora repeat themselves; a warning comes once, and training goes on.
    assert err.count("warning: task.test = ") == 1
    first = {"classification": "(line 2, line 3, line 4, ...)", "tagging": "(line 8, line 22"}
    assert f"of 20 texts are also in training {first[kind]}" in err
