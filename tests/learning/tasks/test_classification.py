import csv
import json
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import needs_corpora
from support.tiny_corpora import load_data

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.classification import (
    Classification,
    read_domains,
    read_labelled_text,
)
from collapipe_jax.learning.tasks.corpora import TextFile, split_name
from collapipe_jax.learning.tasks.sampling import stratified_draw
from collapipe_jax.learning.tasks.subwords import SPECIAL_PIECES

CLASSES = {"light on": 12, "pay bill": 8, "block card": 4}
PLAIN = {"samples": 0, "validation_samples": 0, "lowercase": True}
DOMAINS = {"home": ["light on"], "bank": ["pay bill", "block card"], "unused": ["other"]}


@pytest.fixture
def files(tmp_path):
    entries = [[f"please {c} number {i}", c] for c, count in CLASSES.items() for i in range(count)]
    held_out = [[f"do {c} now", c] for c in CLASSES]
    content = {"train": entries, "val": held_out, "test": [*held_out, ["zzz", "pay bill"]]}
    (tmp_path / "data.json").write_text(json.dumps(content), encoding="utf-8")
    letters = string.ascii_lowercase.replace("z", "") + string.digits
    pieces = [*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters)]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    (tmp_path / "domains.json").write_text(json.dumps(DOMAINS), encoding="utf-8")
    return tmp_path


def load(folder, **changes):
    arguments = {
        "train": f"{folder}/data.json#train",
        "validation": f"{folder}/data.json#val",
        "test": f"{folder}/data.json#test",
        "domains": "",
        "vocabulary": f"{folder}/vocab.txt",
        "vocabulary_size": 0,
        "source_length": 32,
        **PLAIN,
    }
    return load_data(Classification, **{**arguments, **changes})


def texts(data, arrays):
    """Texts again, but for spaces."""
    return [
        "".join(data.tokenizer.pieces[i] for i in row if i > 3).replace("##", "")
        for row in arrays.token_ids
    ]


def test_arrays_hold_texts_and_sorted_classes(files):
    data = load(files)
    assert data.labels == ("block card", "light on", "pay bill")
    assert data.train.token_ids.shape == (24, 32)
    assert data.train.labels.tolist() == [1] * 12 + [2] * 8 + [0] * 4
    assert data.test.arrays.labels.tolist() == [1, 2, 0, 2]
    assert texts(data, data.validation.arrays) == ["dolightonnow", "dopaybillnow", "doblockcardnow"]
    assert np.all(data.train.token_ids[:, 0] == 2)
    assert list(data.counts["cut_texts"].values()) == [0, 0, 0]
    for arrays in (data.train, data.validation.arrays, data.test.arrays):
        assert arrays.token_ids.dtype == arrays.labels.dtype == np.int32
    assert 1 in data.test.arrays.token_ids[3]  # "z" is no piece


def test_long_texts_are_cut_and_counted(files):
    whole, short = load(files), load(files, source_length=6)
    sets = whole.train, whole.validation.arrays, whole.test.arrays
    sizes = [np.sum(a.token_ids != 0, axis=1) for a in sets]
    assert list(short.counts["cut_texts"].values()) == [np.sum(s > 6) for s in sizes]
    assert short.counts["cut_texts"]["train"] > 0
    assert np.array_equal(short.train.token_ids[:, :5], whole.train.token_ids[:, :5])


def test_a_vocabulary_is_learnt_from_the_training_texts_alone(files):
    data = load(files, vocabulary="", vocabulary_size=80)
    characters = {piece.removeprefix("##") for piece in data.tokenizer.pieces}
    assert {"p", "1"} <= characters
    assert not {"z", "w"} & characters


def test_keys_are_classes_or_domains(files):
    assert np.array_equal(load(files).split_keys, load(files).train.labels)
    data = load(files, domains=f"{files}/domains.json")
    assert data.split_keys.tolist() == [1] * 12 + [0] * 12
    assert data.split_keys.dtype == np.int32


def test_scores_of_samples_have_their_mean_and_the_keys_of_their_classes(files, monkeypatch):
    data = load(files, domains=f"{files}/domains.json")
    objective = Classification(model=None, data=data, length=32)
    monkeypatch.setattr(Classification, "loss", lambda *_: 0.0)
    monkeypatch.setattr(Classification, "likeliest", lambda *_: np.array([1, 0, 0]))
    scores, keys = objective.sample_scores({})
    assert scores.tolist() == [100.0, 0.0, 100.0]
    assert scores.mean() == pytest.approx(objective.validate({})[1])
    assert keys.tolist() == [1, 0, 0]  # at home, and twice at the bank


def test_validation_can_be_taken_from_training(files):
    whole = load(files)
    data = load(files, validation="", validation_samples=6)
    assert np.bincount(data.validation.arrays.labels).tolist() == [1, 3, 2]
    assert np.bincount(data.train.labels).tolist() == [3, 9, 6]
    together = texts(data, data.train) + texts(data, data.validation.arrays)
    assert sorted(together) == sorted(texts(whole, whole.train))
    other = load(files, validation="", validation_samples=6, seed=1)
    assert texts(other, other.validation.arrays) != texts(data, data.validation.arrays)
    again = load(files, validation="", validation_samples=6)
    assert np.array_equal(again.validation.arrays.token_ids, data.validation.arrays.token_ids)


def test_a_part_of_training_is_stratified_and_apart_from_validation(files):
    data = load(files, validation="", validation_samples=6, samples=6)
    assert np.bincount(data.train.labels).tolist() == [1, 3, 2]
    assert not set(texts(data, data.train)) & set(texts(data, data.validation.arrays))
    assert len(load(files, samples=99).train.labels) == 24
    assert load(files, samples=1).labels == load(files).labels


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.floats(0, 1), st.integers(0, 5))
def test_a_stratified_draw_gives_each_label_its_share(labels, share, seed):
    labels = np.array(labels)
    size = round(share * len(labels))
    drawn = stratified_draw(labels, size, seed)
    assert len(drawn) == len(set(drawn.tolist())) == size
    assert np.all(np.diff(drawn) > 0)
    for label in np.unique(labels):
        exact = size * np.mean(labels == label)
        assert abs(np.sum(labels[drawn] == label) - exact) < 1
    assert np.array_equal(drawn, stratified_draw(labels, size, seed))


def test_a_stratified_draw_is_random_within_labels_and_in_its_ties():
    labels = np.repeat(np.arange(4), 50)
    draws = [stratified_draw(labels, 6, seed) for seed in range(40)]
    assert {tuple(np.bincount(labels[d], minlength=4)) for d in draws} > {
        (1, 1, 2, 2),
        (2, 2, 1, 1),
    }
    assert abs(np.mean(np.concatenate(draws)) - 99.5) < 12  # 3 deviations


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"validation_samples": 3}, r"validation_samples = 3: task\.validation names a file"),
        ({"validation": "", "validation_samples": 24}, "none would be left to train on"),
        ({"train": "no/such.csv"}, r"task\.train = 'no/such\.csv': no such file"),
        ({"test": "no/such.csv"}, r"task\.test = 'no/such\.csv': no such file"),
        ({"domains": "no/such.json"}, r"task\.domains = 'no/such\.json': no such file"),
        ({"vocabulary": "no/such"}, r"task\.vocabulary = 'no/such': no such file"),
        ({"vocabulary": "", "vocabulary_size": 9}, r"task\.vocabulary_size = 9"),
    ],
)
def test_wrong_arguments_are_named(files, change, message):
    with pytest.raises(InputError, match=message):
        load(files, **change)


def test_a_class_that_training_lacks_is_refused(files):
    (files / "new.csv").write_text("text,label\nhello,greeting\nx,pay bill\n", encoding="utf-8")
    for key in ("validation", "test"):
        with pytest.raises(InputError, match=f"task.{key} = .*training has no 'greeting'"):
            load(files, **{key: f"{files}/new.csv"})


def test_a_class_without_a_domain_is_refused(files):
    (files / "domains.json").write_text('{"home": ["light on"]}', encoding="utf-8")
    with pytest.raises(InputError, match="2 classes have no domain, the first 'block card'"):
        load(files, domains=f"{files}/domains.json")


@pytest.mark.slow
@needs_corpora
def test_the_real_corpora_in_arrays():
    bert = {"vocabulary": "vocab_bert/bert-base-uncased-vocab.txt", "vocabulary_size": 0, **PLAIN}
    file = "cls_clinc150/data_full.json"
    data = load_data(
        Classification,
        train=f"{file}#train",
        validation=f"{file}#val",
        test=f"{file}#test",
        domains="cls_clinc150/domains.json",
        source_length=32,
        **bert,
    )
    sets = data.train, data.validation.arrays, data.test.arrays
    assert [len(arrays.labels) for arrays in sets] == [15000, 3000, 4500]
    assert np.all(np.bincount(data.train.labels) == 100)
    assert np.all(np.bincount(data.split_keys) == 1500)
    assert sum(data.counts["cut_texts"].values()) < 5
    data = load_data(
        Classification,
        train="cls_banking77/train.csv",
        validation="",
        test="cls_banking77/test.csv",
        domains="",
        source_length=64,
        **{**bert, "validation_samples": 1000},
    )
    assert (len(data.train.labels), len(data.validation.arrays.labels)) == (
        8997,
        1000,
    )  # 6 repeat a text of validation
    share = np.bincount(data.validation.arrays.labels) / np.bincount(data.train.labels)
    assert np.all(np.abs(share - 1 / 9) < 0.04)
    assert np.all(np.bincount(data.test.arrays.labels) == 40)


@pytest.fixture
def write(tmp_path):
    def one(name, content):
        path = tmp_path / name
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8", newline="")
        return str(path)

    return one


def read(name, key="task.test"):
    return read_labelled_text(TextFile(key, name))


def domains_in(name):
    return read_domains(TextFile("task.domains", name))


def test_quoted_line_breaks_quotes_and_commas(write):
    path = write(
        "a.csv", 'text,category\r\n"Where,\r\n is ""it""?",lost\r\n\r\nHi  there ,greet\r\n'
    )
    assert read(path) == [('Where, is "it"?', "lost"), ("Hi there", "greet")]


def test_columns_go_by_name(write):
    path = write("a.tsv", "id\tlabel\ttext\tquery\n1\tx\tone, two\teins\n")
    assert read(path) == [("one, two", "x")]
    both = write("b.csv", "label,text,category\n1,one,x\n")
    assert read(both) == [("one", "x")]


@given(st.lists(st.text(st.characters(codec="utf-8")).filter(str.strip), min_size=1, max_size=6))
def test_what_the_csv_module_writes_is_read(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *((text, "x") for text in texts)])
    assert read(str(path)) == [(" ".join(text.split()), "x") for text in texts]


def test_json_lists_of_pairs_and_of_objects(write):
    pairs = write("a.json", [["one", "x"], ["two", "y"]])
    objects = [{"text": "one", "label": "x"}, {"text": "two", "category": "y", "id": 3}]
    assert read(pairs) == read(write("b.json", objects))
    assert read(pairs) == [("one", "x"), ("two", "y")]


def test_splits_go_by_name(write):
    path = write("a.json", {"train": [["one", "x"]], "val": [["two", "y"]]})
    assert read(f"{path}#val") == [("two", "y")]
    assert split_name("a/b.json#val") == ("a/b.json", "val")
    assert split_name("a#b/c.json") == ("a#b/c.json", "")
    assert split_name("a.csv#val") == ("a.csv#val", "")
    assert TextFile("file", "a.JSON.gz#val").suffix == ".json"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,intent\na,b\n", "no column category or label among text, intent"),
        ("a.csv", "", "the file is empty"),
        ("a.csv", 'text,label\na,b\n\n"c\nd",e,f\n', "line 4 has 3 columns, the header 2"),
        ("a.csv", 'text,label\n"a\nb",x\n ,y\n', "line 4 has no text"),
        ("a.csv", "text,label\na,\n", "line 2 has no label"),
        ("a.csv", "text,label\n", "it holds no entry"),
        ("a.txt", "text,label\n", r"\.txt is no known form"),
        ("a.json", "[", "not JSON .Expecting value"),
        ("a.json", "3", "no JSON list of entries"),
        ("a.json", [["a", "b", "c"]], "entry 1 is no text with a label"),
        ("a.json", [["a", "b"], {"text": "a"}], "entry 2 has no column category or label among"),
        ("a.json", [["a", 3.5]], "entry 1 has 3.5 where text should be"),
        ("a.json", [["a", ""]], "entry 1 has no label"),
        ("a.json#val", {"train": [], "test": []}, "no split 'val' among train, test"),
        ("a.json", {"train": []}, "no split '' among train.*Name one as FILE.json#SPLIT"),
        ("a.json#val", [["a", "b"]], "the file has no splits, so no 'val'"),
    ],
)
def test_broken_files_are_named_with_the_place(write, name, content, message):
    path, mark, split = name.partition("#")
    with pytest.raises(InputError, match=message) as caught:
        read(f"{write(path, content)}{mark}{split}")
    assert caught.value.key == "task.test"
    assert path in str(caught.value.value)


def test_unreadable_files_keep_their_own_message(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read(f"{tmp_path}/no.json")
    (tmp_path / "a.json").write_bytes(b'[["\xfc", "x"]]')
    with pytest.raises(InputError, match="line 1 holds bytes that are not UTF-8"):
        read(f"{tmp_path}/a.json")


def test_domains_map_labels(write):
    path = write("d.json", {"bank": ["pay", "freeze"], "home": ["light"]})
    assert domains_in(path) == {"pay": "bank", "freeze": "bank", "light": "home"}
    with pytest.raises(InputError, match="'pay' is in both 'bank' and 'home'"):
        domains_in(write("d.json", {"bank": ["pay"], "home": ["pay"]}))
    for wrong in ([], {"bank": "pay"}, {"bank": [3]}):
        with pytest.raises(InputError, match=r"task\.domains = .*no JSON object of lists"):
            domains_in(write("d.json", wrong))


@needs_corpora
def test_the_real_corpora_have_the_sizes_of_their_papers():
    sizes = {"train": 15000, "val": 3000, "test": 4500, "oos_test": 1000}
    file = "cls_clinc150/data_full.json"
    for split, size in sizes.items():
        assert len(read(f"{file}#{split}")) == size
    train = read("cls_banking77/train.csv")
    assert (len(train), len({entry.label for entry in train})) == (10003, 77)
    assert not any(set("\r\n\t") & set(entry.text) for entry in train)
    domain_of = domains_in("cls_clinc150/domains.json")
    assert (len(domain_of), len(set(domain_of.values()))) == (150, 10)
