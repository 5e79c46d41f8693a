"""Own files of every task, from a few lines to a trained model."""

import json
import warnings

import numpy as np
import pytest
from support import tiny_corpora, tiny_run

from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.learning.tasks.causal_lm import LanguageModelling
from collapipe_jax.learning.tasks.classification import Classification, read_labelled_text
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.masked_lm import MaskedLanguageModelling
from collapipe_jax.learning.tasks.sampling import take_validation, text_key
from collapipe_jax.learning.tasks.tagging import Tagging, read_tagged_text
from collapipe_jax.learning.tasks.translation import Translation, read_parallel_text
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.config.system import build_system_params
from collapipe_jax.runs.training.loop import train

NUMBERS = {"one": "un", "two": "deux", "three": "trois", "four": "quatre", "five": "cinq"}


pytestmark = pytest.mark.usefixtures("no_data")


def pairs_of(count, seed):
    """Three numbers and what they are called elsewhere."""
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(list(NUMBERS), 3) for _ in range(count)]
    return [(" ".join(words), " ".join(NUMBERS[word] for word in words)) for words in drawn]


def tiny(kind, **task):
    config = tiny_run.get_config()
    config.task.update({"kind": kind, "vocabulary_size": 90, "source_length": 14, **task})
    config.dynamics.availability = 1.0
    config.training.update({"rounds": 2, "batch": 4})
    config.checkpoint_every_rounds = 2
    return config


def write_pairs(folder, ending="tsv"):
    for seed, (name, count) in enumerate({"train": 60, "test": 10}.items()):
        rows = pairs_of(count, seed)
        if ending == "tsv":
            text = "".join(f"{source}\t{target}\n" for source, target in rows)
        elif ending == "csv":
            text = "id,target,source\n" + "".join(f"7,{t},{s}\n" for s, t in rows)
        else:
            text = "".join(json.dumps({"source": s, "target": t}) + "\n\n" for s, t in rows)
        (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")
    return {name: f"{folder}/{name}.{ending}" for name in ("train", "test")}


def write_files(folder, kind):
    if kind == "translation":
        return write_pairs(folder) | {"corpus": ""}
    paths = tiny_corpora.write_sets(folder, kind)
    del paths["validation"]
    return paths


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in ("tagging", "classification", "translation")
    ],
)
def test_two_files_are_enough_to_train(kind, tmp_path):
    config = tiny(kind, **write_files(tmp_path, kind))
    with pytest.warns(InputWarning, match=r"task\.test = "):  # these corpora repeat themselves
        experiment = build_experiment(config)
    data = experiment.task.data
    sets = data.train, data.validation.arrays, data.test.arrays
    sizes = [len(next(iter(arrays))) for arrays in sets]
    if kind == "translation":  # a tenth of the sources, each with one of its pairs
        assert 45 < sizes[0] <= 54
        assert 4 <= sizes[1] <= 6
    else:  # a tenth of the texts that differ
        assert sizes[1] == {"classification": 1, "tagging": 4}[kind]
        assert 48 < sizes[0] < 60
    assert sizes[2] in (10, 20)
    labels = {"classification": 2, "tagging": 5, "translation": 0}[kind]
    assert experiment.config["task"]["labels"] == labels
    train(experiment, tmp_path / "run")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert np.isfinite(summary["test_loss"])
    saved = json.loads((tmp_path / "run/config.json").read_text())
    assert saved["task"]["labels"] == labels
    # The same files again are the same run.
    assert build_experiment(config).config == experiment.config


def test_a_comparison_without_files_needs_the_number_of_labels():
    config = tiny("classification")
    with pytest.raises(InputError, match=r"task\.labels = 0: .*Give the number of labels"):
        build_system_params(config)
    config.task.labels = 3
    build_system_params(config)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_pairs_are_read_from_columns(tmp_path, ending):
    rows = read_parallel_text(write_pairs(tmp_path)["train"])
    assert read_parallel_text(write_pairs(tmp_path, ending)["train"]) == rows


def own_split(tmp_path, **task):
    config = tiny("translation", corpus="", **write_pairs(tmp_path), **task)
    return Translation.read_corpus(config.to_dict())[0]


def test_pairs_keep_the_split_of_their_files(tmp_path):
    split = own_split(tmp_path, validation=str(tmp_path / "test.tsv"))
    assert split.train == pairs_of(60, 0)
    assert split.validation == split.test == pairs_of(10, 1)
    turned = own_split(tmp_path, reverse=True)
    assert turned.test == [pair[::-1] for pair in pairs_of(10, 1)]


def test_validation_drawn_from_pairs_shares_no_source_with_training(tmp_path):
    split = own_split(tmp_path, validation_samples=9)
    sources = {source for source, _ in split.train}
    assert len(split.validation) == 9
    assert not sources & {source for source, _ in split.validation}
    capped = own_split(tmp_path, validation_samples=9, samples=20)
    assert len(capped.train) == 20
    assert set(capped.train) <= set(split.train)
    assert capped.validation == split.validation


def test_one_file_of_pairs_may_be_taken_whole(tmp_path):
    corpus = write_pairs(tmp_path)["train"]
    config = tiny("translation", corpus=corpus, pairs=0, validation_pairs=4, test_pairs=6)
    split, left_out = Translation.read_corpus(config.to_dict())
    assert (len(split.validation), len(split.test), left_out) == (4, 6, 0)
    held_out = {source for part in split[1:] for source, _ in part}
    assert sorted(split.train) == sorted(p for p in pairs_of(60, 0) if p[0] not in held_out)


def copies_of(kind):
    """Forty texts, each eight times in other spellings, in a file of the task."""
    lines = []
    for number in range(320):
        text = f"we sell item{number % 40}"
        text = text.title() if number // 40 % 2 else f"{text} !"
        label = "ab"[number % 2]
        if kind == "classification":
            lines.append(f"{text},{label}")
        elif kind == "translation":
            lines.append(f"{text}\tx {number}")
        elif kind == "tagging":
            words = text.split()
            lines += [f"{words[0]}\tO", f"{words[1]}\tB-{label}", f"{words[2]}\tO", ""]
        else:
            lines.append(text)
    return "\n".join(["text,label", *lines] if kind == "classification" else lines) + "\n"


@pytest.mark.parametrize(
    ("objective", "kind"),
    [
        (Classification, "classification"),
        (Tagging, "tagging"),
        (LanguageModelling, "causal_lm"),
        (MaskedLanguageModelling, "masked_lm"),
        (Translation, "translation"),
    ],
)
def test_equal_texts_are_on_one_side_of_the_split(objective, kind, tmp_path):
    name = "train.csv" if kind == "classification" else "train.txt"
    (tmp_path / name).write_text(copies_of(kind))
    (tmp_path / f"test-{name}").write_text(copies_of(kind))
    files = {"train": f"{tmp_path}/{name}", "test": f"{tmp_path}/test-{name}"}
    if kind == "masked_lm":
        del files["test"]
    config = tiny(kind, **files, corpus="").to_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        sets = objective.read_corpus(config)
    sets = sets[0] if kind == "translation" else sets

    def key(entry):
        if kind == "tagging":
            return text_key(" ".join(entry.tokens))
        return text_key(entry if isinstance(entry, str) else entry[0])

    train, validation = (list(map(key, part)) for part in (sets.train, sets.validation))
    assert not set(train) & set(validation)
    assert len(set(validation)) == len(validation) == 4  # a tenth of the texts that differ
    assert (len(train), len(set(train))) == (288, 36)


def test_the_only_text_of_a_class_stays_in_training():
    texts, classes = [f"text {n}" for n in range(30)], ["a"] * 10 + [f"b{n}" for n in range(20)]
    taken, left = take_validation(texts, "", 3, 0, classes)
    assert len(taken) == 3
    assert max(taken) < 10
    assert sorted(taken + left) == list(range(30))
    assert len(take_validation(texts, "", 12, 0, classes)[0]) == 12


def test_validation_is_a_tenth_up_to_a_thousand():
    def taken(validation, wanted, count):
        return len(take_validation(list(map(str, range(count))), validation, wanted, 0)[0])

    assert [taken("", 0, count) for count in (2, 50, 9_000, 90_000)] == [1, 5, 900, 1000]
    assert taken("", 7, 50) == 7
    assert taken("file", 0, 50) == 0


def test_sentences_are_read_from_objects(tmp_path):
    rows = [{"tokens": ["in", "New", "York"], "tags": ["O", "B-place", "I-place"], "id": 3}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, {"tokens": [], "tags": []}])))
    (sentence,) = read_tagged_text(TextFile("task.train", str(path)))
    assert sentence == (("in", "New", "York"), ("O", "B-place", "I-place"))


def test_fields_may_be_longer_than_what_the_csv_module_takes(tmp_path):
    (tmp_path / "pairs.csv").write_text(f"source,target\n{'long ' * 40_000},b\n")
    ((source, _),), _ = read_parallel_text(f"{tmp_path}/pairs.csv")
    assert len(source) == 199_999


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", 'source,target\na,"b\nc,d\n', "no row of a table"),  # a quote without an end
        ("a.jsonl", '{"source": "a", "target": "b", "source": "c"}\n', "'source' is there twice"),
        ("a.jsonl", '{"source": "\\ud83d", "target": "b"}\n', "half a character"),
        ("a.jsonl", '{"source": "a", "target": ' + "[" * 100_000 + "\n", "nested too deep"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(name, content, told, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=told):
        read_parallel_text(str(tmp_path / name))


def test_columns_may_have_any_name(tmp_path):
    paths = tiny_corpora.write_sets(tmp_path, "classification")
    for path in paths.values():
        with open(path, encoding="utf-8") as stream:
            content = stream.read().replace("text,label", "utterance,intent")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(content)
    config = tiny("classification", **paths, text_column="utterance", label_column="intent")
    assert build_experiment(config).config["task"]["labels"] == 2


def test_texts_that_training_has_are_counted_with_their_lines(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\nHello there!,a\nBye,b\n" + "x,a\n" * 9)
    (tmp_path / "test.csv").write_text('text,label\n"new\none",a\nhello THERE,a\n\nbye.,b\n')
    paths = {name: f"{tmp_path}/{name}.csv" for name in ("train", "test")}
    config = tiny("classification", **paths)
    with pytest.warns(InputWarning) as told:
        Classification.read_corpus(config.to_dict())
    lines, message = [str(each.message) for each in told]
    assert "1 rows have a field with a line break in it (line 2 to 3)" in lines
    assert message.startswith("task.test = ")
    assert "2 of 3 texts are also in training (line 4, line 6)" in message


@pytest.mark.parametrize(
    ("kind", "name", "broken", "place"),
    [
        ("classification", "train.csv", 'one,two,three,"more"\n', "columns"),
        ("tagging", "train.conll", "\nalone\nAnna\tB-person\n\nNew\tI-place\n", "one column"),
        ("translation", "train.tsv", "no tab here\n", "no tab"),
        ("causal_lm", "train.jsonl", '{"text": 7}\nnot json\n', "7 where text"),
    ],
)
def test_broken_lines_are_refused_or_left_out_by_a_key(tmp_path, kind, name, broken, place):
    texts = {
        "train.csv": "text,label\n" + "".join(f"one {n},a\ntwo {n},b\n" for n in range(20)),
        "train.conll": "".join(
            f"Anna\tB-person\nruns{n}\tO\n\nNew\tB-place\nYork{n}\tI-place\n\n" for n in range(20)
        ),
        "train.tsv": "".join(f"one {n}\tun {n}\n" for n in range(40)),
        "train.jsonl": "".join(json.dumps({"text": f"one {n}"}) + "\n" for n in range(40)),
    }
    path = tmp_path / name
    path.write_text(texts[name])
    task = {"train": str(path), "test": str(path), "corpus": "", "validation_samples": 4}
    reader = {
        "classification": Classification,
        "tagging": Tagging,
        "translation": Translation,
        "causal_lm": LanguageModelling,
    }[kind]

    def read(**options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sets = reader.read_corpus(tiny(kind, **task, **options).to_dict())
        return sets, [str(each.message) for each in caught]

    whole, before = read(skip_broken=True)
    assert not any("left out" in message for message in before)
    path.write_text(texts[name] + broken)
    with pytest.raises(InputError, match=place):
        read()
    skipped, messages = read(skip_broken=True)
    assert skipped == whole
    assert sum("left out" in message and place in message for message in messages) == 2  # files


def test_a_file_that_is_wrong_as_a_whole_is_refused_whatever_is_skipped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("words,label\none,a\n")
    with pytest.raises(InputError, match="no column text"):
        read_labelled_text(TextFile("task.train", str(path), skip_broken=True))
