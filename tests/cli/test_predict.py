"""Trained models at the command line."""

import io
import json
import sys

import pytest
from support import tiny_corpora
from support.tiny_predictors import FOLDERS

from collapipe_jax.cli import evaluate, predict
from collapipe_jax.cli.options import run_reporting_errors

CLASSES, TAGS = (f"--model={FOLDERS[kind]}" for kind in ("classification", "tagging"))


def lines_of(capsys, main, *argv, status=0):
    assert run_reporting_errors(main, list(argv)) == status
    out, err = capsys.readouterr()
    return (out if status == 0 else err).splitlines()


@pytest.fixture
def texts(tmp_path):
    """Three texts, the second empty."""
    path = tmp_path / "texts.txt"
    path.write_bytes(b"tell me of oslo\r\n\nwe sell zinc iron in oslo\n")
    return str(path)


def test_a_text_a_line(capsys, texts):
    found = lines_of(capsys, predict.main, CLASSES, texts)
    assert len(found) == 3
    label, probability = found[0].split("\t")
    assert label == "place"
    assert 0.5 < float(probability) <= 1.0
    found = lines_of(capsys, predict.main, TAGS, texts)
    assert found[1:] == ["", "8-17 Metal zinc iron\t21-25 Place oslo"]


def test_json_lines(capsys, texts):
    found = lines_of(capsys, predict.main, CLASSES, "--json", "--probabilities", texts)
    records = [json.loads(line) for line in found]
    assert [record["text"] for record in records][:2] == ["tell me of oslo", ""]
    assert records[0]["label"] == "place"
    assert set(records[0]["probabilities"]) == {"metal", "place"}
    record = json.loads(lines_of(capsys, predict.main, TAGS, "--json", texts)[2])
    assert record["entities"][1] == {"type": "Place", "text": "oslo", "start": 21, "end": 25}
    assert len(record["words"]) == len(record["tags"]) == 6


def test_texts_may_come_from_a_pipe(capsys, monkeypatch):
    def feed(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    feed(b"tell me of oslo\n\xc3\xa9")
    assert len(lines_of(capsys, predict.main, CLASSES)) == 2
    feed(b"")
    assert lines_of(capsys, predict.main, CLASSES) == []
    feed(b"\xff")
    (error,) = lines_of(capsys, predict.main, CLASSES, status=2)
    assert "FILE = 'stdin': holds bytes that are not UTF-8" in error


def test_scores_are_printed_and_written(capsys, tmp_path):
    data = tiny_corpora.write_sets(tmp_path, "classification")["test"]
    out = tmp_path / "scores.json"
    found = lines_of(capsys, evaluate.main, CLASSES, f"--data={data}", f"--out={out}")
    scores = json.loads(out.read_text())
    assert scores["accuracy"] > 95.0
    assert scores["texts"] == 20
    assert any(line.split() == ["accuracy", f"{scores['accuracy']:.4g}"] for line in found)


def test_columns_of_any_name_are_scored(capsys, tmp_path):
    data = tmp_path / "test.csv"
    data.write_text("words,kind\ntell me of oslo,place\n")
    columns = ["--text-column=words", "--label-column=kind"]
    found = lines_of(capsys, evaluate.main, CLASSES, f"--data={data}", *columns)
    assert found[0].split() == ["accuracy", "100"]
    columns[1] = "--label-column=kinds"
    (error,) = lines_of(capsys, evaluate.main, CLASSES, f"--data={data}", *columns, status=2)
    assert "no column kinds among words, kind. Set --label-column to kind." in error


@pytest.mark.parametrize(
    ("main", "options", "message"),
    [
        (predict.main, [CLASSES, "no/such.txt"], "FILE = 'no/such.txt': no such file"),
        (predict.main, ["--model=no/such"], "model = 'no/such': holds no model"),
        (predict.main, [TAGS, "--probabilities"], "--probabilities = True: has no meaning"),
        (predict.main, [CLASSES, "--beams=4"], "--beams = 4: has no meaning"),
        (evaluate.main, [CLASSES, "--data=no/such.csv"], "--data = 'no/such.csv': no such file"),
        (evaluate.main, [TAGS, "--data=x", "--text-column=a"], "--text-column = 'a': has no"),
        (evaluate.main, [CLASSES], "the following arguments are required: --data"),
    ],
)
def test_wrong_input_is_one_message(capsys, main, options, message):
    (error,) = lines_of(capsys, main, *options, status=2)
    assert message in error
