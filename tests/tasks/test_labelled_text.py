import csv
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collapipe_jax.errors import InputError
from collapipe_jax.tasks.corpora import resolve_corpus
from collapipe_jax.tasks.labelled_text import read_domains, read_labelled_text, split_name


@pytest.fixture
def write(tmp_path):
    def one(name, content):
        path = tmp_path / name
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8", newline="")
        return path

    return one


def test_quoted_line_breaks_quotes_and_commas(write):
    path = write(
        "a.csv", 'text,category\r\n"Where,\r\n is ""it""?",lost\r\n\r\nHi  there ,greet\r\n'
    )
    assert read_labelled_text(path) == [('Where, is "it"?', "lost"), ("Hi there", "greet")]


def test_columns_go_by_name(write):
    path = write("a.tsv", "id\tlabel\ttext\tquery\n1\tx\tone, two\teins\n")
    assert read_labelled_text(path) == [("one, two", "x")]
    assert read_labelled_text(path, "query", "id") == [("eins", "1")]
    both = write("b.csv", "label,text,category\n1,one,x\n")
    assert read_labelled_text(both) == [("one", "x")]
    assert read_labelled_text(both, label_column="label") == [("one", "1")]


@given(st.lists(st.text(st.characters(codec="utf-8")).filter(str.strip), min_size=1, max_size=6))
def test_what_the_csv_module_writes_is_read(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *((text, "x") for text in texts)])
    assert read_labelled_text(path) == [(" ".join(text.split()), "x") for text in texts]


def test_json_lists_of_pairs_and_of_objects(write):
    pairs = write("a.json", [["one", "x"], ["two", "y"]])
    objects = [{"text": "one", "label": "x"}, {"text": "two", "category": "y", "id": 3}]
    assert read_labelled_text(pairs) == read_labelled_text(write("b.json", objects))
    assert read_labelled_text(pairs) == [("one", "x"), ("two", "y")]
    named = write("c.json", [{"q": "one", "intent": "x"}])
    assert read_labelled_text(named, "q", "intent") == [("one", "x")]


def test_splits_go_by_name(write):
    path = write("a.json", {"train": [["one", "x"]], "val": [["two", "y"]]})
    assert read_labelled_text(f"{path}#val") == [("two", "y")]
    assert split_name("a/b.json#val") == ("a/b.json", "val")
    assert split_name("a#b/c.json") == ("a#b/c.json", "")
    assert split_name("a.csv#val") == ("a.csv#val", "")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,intent\na,b\n", "no column category or label among text, intent"),
        ("a.csv", "", "no column text among none"),
        ("a.csv", 'text,label\na,b\n\n"c\nd",e,f\n', "line 4 has 3 columns, the header 2"),
        ("a.csv", 'text,label\n"a\nb",x\n ,y\n', "line 4 has no text"),
        ("a.csv", "text,label\na,\n", "line 2 has no label"),
        ("a.csv", "text,label\n", "it holds no entry"),
        ("a.txt", "text,label\n", r"\.txt is no known form"),
        ("a.json", "[", "not JSON .Expecting value"),
        ("a.json", "3", "no JSON list of entries"),
        ("a.json", [["a", "b", "c"]], "entry 1 is no text with a label"),
        ("a.json", [["a", "b"], {"text": "a"}], "entry 2 is no text with a label"),
        ("a.json", [["a", 3]], "entry 1 is no text with a label"),
        ("a.json", [["a", ""]], "entry 1 has no label"),
        ("a.json#val", {"train": [], "test": []}, "no split 'val' among train, test"),
        ("a.json", {"train": []}, "no split '' among train.*Name one as FILE.json#SPLIT"),
        ("a.json#val", [["a", "b"]], "the file has no splits, so no 'val'"),
    ],
)
def test_broken_files_are_named_with_the_place(write, name, content, message):
    path, mark, split = name.partition("#")
    with pytest.raises(InputError, match=message) as caught:
        read_labelled_text(f"{write(path, content)}{mark}{split}", key="task.test")
    assert caught.value.key == "task.test"
    assert path in str(caught.value.value)


def test_unreadable_files_keep_their_own_message(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_labelled_text(tmp_path / "no.json")
    (tmp_path / "a.json").write_bytes(b'[["\xfc", "x"]]')
    with pytest.raises(InputError, match="line 1 holds bytes that are not UTF-8"):
        read_labelled_text(tmp_path / "a.json")


def test_domains_map_labels(write):
    path = write("d.json", {"bank": ["pay", "freeze"], "home": ["light"]})
    assert read_domains(path) == {"pay": "bank", "freeze": "bank", "light": "home"}
    with pytest.raises(InputError, match="'pay' stands in 'bank' and in 'home'"):
        read_domains(write("d.json", {"bank": ["pay"], "home": ["pay"]}))
    for wrong in ([], {"bank": "pay"}, {"bank": [3]}):
        with pytest.raises(InputError, match=r"task\.domains = .*no JSON object of lists"):
            read_domains(write("d.json", wrong))


@pytest.mark.skipif("COLLAPIPE_DATA" not in os.environ, reason="COLLAPIPE_DATA is not set")
def test_the_real_corpora_have_the_sizes_of_their_papers():
    sizes = {"train": 15000, "val": 3000, "test": 4500, "oos_test": 1000}
    file = resolve_corpus("cls_clinc150/data_full.json")
    for split, size in sizes.items():
        assert len(read_labelled_text(f"{file}#{split}")) == size
    train = read_labelled_text(resolve_corpus("cls_banking77/train.csv"))
    assert (len(train), len({entry.label for entry in train})) == (10003, 77)
    assert not any(set("\r\n\t") & set(entry.text) for entry in train)
    domain_of = read_domains(resolve_corpus("cls_clinc150/domains.json"))
    assert (len(domain_of), len(set(domain_of.values()))) == (150, 10)
