import bz2
import gzip
import json
import lzma
import re
import sys

import pytest

from collapipe_jax.core.errors import InputError, InputWarning
from collapipe_jax.learning.tasks.classification import read_labelled_text
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.plain_text import read_texts
from collapipe_jax.learning.tasks.tagging import read_tagged_text
from collapipe_jax.learning.tasks.translation import read_parallel_text


def path(name):
    return TextFile("task.corpus", name).path()


def test_resolve_finds_paths_and_names(tmp_path, monkeypatch):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    file = tmp_path / "data" / "deep" / "c.tsv"
    file.write_text("a\tb\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLLAPIPE_DATA", raising=False)
    assert path(str(file)) == file
    assert path("data/deep/c.tsv").samefile(file)
    monkeypatch.setenv("COLLAPIPE_DATA", str(tmp_path / "data"))
    assert path("deep/c.tsv").samefile(file)


def test_the_working_directory_wins(tmp_path, monkeypatch):
    for place in ("data", "here"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "c").write_text(place, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLLAPIPE_DATA", str(tmp_path / "data"))
    assert path("c").read_text(encoding="utf-8") == "here"


def test_resolve_tells_how_to_set_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("COLLAPIPE_DATA", raising=False)
    with pytest.raises(InputError, match=r"'no/c\.tsv'.*COLLAPIPE_DATA is not set.*export"):
        path("no/c.tsv")
    monkeypatch.setenv("COLLAPIPE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=f"nor below COLLAPIPE_DATA .{tmp_path}"):
        path("no/c.tsv")
    with pytest.raises(InputError, match="no such file"):
        path(str(tmp_path))  # a directory is no corpus


def written(folder, name, content):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return TextFile("task.train", f"{folder}/{name}")


def labelled(folder, name, content):
    return [tuple(entry) for entry in read_labelled_text(written(folder, name, content))]


def test_a_quote_in_a_tsv_is_a_character(tmp_path):
    rows = [(f"text {number}", "ab"[number % 2]) for number in range(320)]
    rows[7] = ('"stray', "a")
    rows[11] = ('both" of "them', "b")
    content = "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)
    assert labelled(tmp_path, "a.tsv", content) == rows
    assert labelled(tmp_path, "a.tsv", content.replace("\n", "\r\n")) == rows


def test_quotes_of_a_csv_in_a_tsv_are_told(tmp_path):
    content = 'text\tlabel\n"Go!"\ta\n"say ""a"""\tb\n'
    with pytest.warns(InputWarning, match=r"1 rows have quotes .*\(line 3\)"):
        assert labelled(tmp_path, "a.tsv", content) == [('"Go!"', "a"), ('"say ""a"""', "b")]


def test_a_row_of_several_lines_is_questioned(tmp_path):
    lines = [f"text {number},a\n" for number in range(20)]
    lines[3], lines[9] = '"stray,a\n', 'x",b\n'
    with pytest.warns(InputWarning, match=r"task\.train = .*1 rows .*\(line 5 to 11\).*quotation"):
        assert len(labelled(tmp_path, "a.csv", "text,label\n" + "".join(lines))) == 14


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_the_header_of_a_csv_tells_its_separator(tmp_path, separator):
    rows = [["id", "text", "label"], ["1", '"one; two, three"', "a"], ["2", "four", "b"]]
    content = "".join(f"{separator.join(row)}\n" for row in rows)
    assert labelled(tmp_path, "a.csv", content) == [("one; two, three", "a"), ("four", "b")]


DAMAGED_GZIP = gzip.compress(b"a\tb\n" * 99, mtime=0)[:-9]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("ending", ["", ".gz", ".XZ"])
def test_packed_files_are_read_as_they_are_unpacked(tmp_path, pack, ending):
    content = pack(b"text,label\na,x\nb,y\n")
    assert labelled(tmp_path, f"a.csv{ending}", content) == [("a", "x"), ("b", "y")]
    assert read_parallel_text(written(tmp_path, f"p.tsv{ending}", pack(b"a\tb\n")).name) == (
        [("a", "b")],
        0,
    )
    both = written(tmp_path, f"s{ending}", pack(b"a\n")).name
    assert read_parallel_text(f"{both}|{both}") == ([("a", "a")], 0)
    assert read_texts(written(tmp_path, f"t.txt{ending}", pack(b"a b\n"))) == ["a b"]
    content = pack(json.dumps({"one": [["a", 1]]}).encode())
    if ending == ".gz":
        file = written(tmp_path, "d.json.gz", content)
        assert read_labelled_text(file._replace(name=f"{file.name}#one")) == [("a", "1")]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (DAMAGED_GZIP, "compressed content is damaged.*original file"),
        (b"PAR1\xff\0\0PAR1", "a Parquet table.*Call it .parquet"),
        (b"PK\x03\x04\xff", r"zip archive.*save the sheet as \.csv"),
        (b"\x28\xb5\x2f\xfd\xff", "zstd -d"),
        ("a\tb\n".encode("utf-16"), "iconv -f utf-16"),
        (b"\x93NUMPY\x01\0\0", "binary data.*Give a text file"),
        (b"a\tGr\xfc\xdfe\n", "line 1 holds bytes that are not UTF-8.*iconv -f latin1"),
        (b"a\t\xfc\nb\tc\n\xfc\tx\n", "lines 1, 3 hold bytes that are not UTF-8"),
        (b"\xfc\t\xfc\n" * 25, "lines 1, 2, .*, 10 and 15 more hold bytes"),
    ],
)
def test_what_is_no_text_gets_the_right_advice(tmp_path, content, told):
    with pytest.raises(InputError, match=told):
        read_parallel_text(written(tmp_path, "a.txt", content).name)


def test_a_parquet_table_without_its_reader_has_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"pyarrow, which is not here.*pip install pyarrow, or"):
        labelled(tmp_path, "a.parquet", b"PAR1\xff\0PAR1")


def test_parquet_tables_are_read_with_the_names_of_their_labels(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    features = {"label": NAMES, "ner_tags": {"feature": TAG_NAMES, "_type": "List"}}
    rows = {"text": ["a", "b"], "label": [1, 0], "source": ["a", "b"], "target": ["c", "d"]}
    rows |= {"tokens": [["x", "y"], ["z"]], "ner_tags": [[1, 2], [0]]}
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    path = f"{tmp_path}/a.parquet"
    parquet.write_table(pa.table(rows).replace_schema_metadata(told), path)
    file = TextFile("task.train", path)
    assert read_labelled_text(file) == [("a", "pos"), ("b", "neg")]
    assert read_tagged_text(file) == [(("x", "y"), ("B-x", "I-x")), (("z",), ("O",))]
    assert read_texts(file) == ["a", "b"]
    assert read_parallel_text(path) == ([("a", "c"), ("b", "d")], 0)
    (tmp_path / "a.parquet").write_bytes(b"PAR1\xff\0PAR1")
    with pytest.raises(InputError, match="no Parquet table"):
        read_labelled_text(file)


NAMES = {"names": ["neg", "pos"], "_type": "ClassLabel"}
TAG_NAMES = {"names": ["O", "B-x", "I-x"], "_type": "ClassLabel"}


def test_labels_may_be_whole_numbers(tmp_path):
    expected = [("a", "1"), ("b", "0"), ("c", "x"), ("d", "true")]
    objects = [{"text": t, "label": n} for t, n in zip("abcd", [1, 0, "x", True], strict=True)]
    assert labelled(tmp_path, "a.jsonl", "\n".join(map(json.dumps, objects))) == expected
    assert labelled(tmp_path, "a.json", json.dumps(objects)) == expected
    lists = [list(each.values()) for each in objects]
    assert labelled(tmp_path, "a.json", json.dumps(lists)) == expected
    assert labelled(tmp_path, "a.csv", "text,label\na,1\nb,0\nc,x\nd,true\n") == expected


def test_numbers_of_labels_have_the_names_in_or_beside_the_file(tmp_path):
    objects = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    lines = "\n".join(map(json.dumps, objects))
    expected = [("a", "pos"), ("b", "neg")]
    header = json.dumps({"names": NAMES["names"]})
    assert labelled(tmp_path, "a.jsonl", f"{header}\n{lines}") == expected
    whole = json.dumps({"names": NAMES["names"], "train": objects})
    file = written(tmp_path, "a.json", whole)
    assert read_labelled_text(file._replace(name=f"{file.name}#train")) == expected
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": {"label": NAMES}}))
    assert labelled(tmp_path, "a.jsonl", lines) == expected
    assert labelled(tmp_path, "a.json", json.dumps(objects)) == expected
    with pytest.raises(InputError, match="line 3 has the label -1, and 2 names are known"):
        labelled(tmp_path, "a.jsonl", f'{lines}\n{{"text": "c", "label": -1}}')


def test_numbers_of_tags_have_names_too(tmp_path):
    row = '{"tokens": ["in", "New", "York"], "ner_tags": [0, 1, 2]}\n'
    expected = [(("in", "New", "York"), ("O", "B-x", "I-x"))]
    with pytest.raises(InputError, match=r"line 1 has numbers as tags.*names.*dataset_info\.json"):
        read_tagged_text(written(tmp_path, "a.jsonl", row))
    file = written(tmp_path, "a.jsonl", json.dumps({"names": TAG_NAMES["names"]}) + "\n" + row)
    assert read_tagged_text(file) == expected
    features = {"ner_tags": {"feature": TAG_NAMES, "_type": "Sequence"}}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": features}))
    assert read_tagged_text(written(tmp_path, "a.jsonl", row)) == expected


BROKEN = {
    "a.tsv": ("text\tlabel\n" + "a\tx\n\n" * 2 + "b\n" * 13, "line 6 has 1 columns, the header 2"),
    "a.csv": ("text,label\n" + "a,x\n" * 2 + 'b\n"c"d,e\n' * 6 + "b\n", "line 4 has 1 columns"),
    "a.jsonl": ('{"text": "a", "label": "x"}\n' * 2 + '{"text": "a"}\n7\n' * 6 + "{\n", "line 3 "),
    "a.json": (json.dumps([["a", "x"]] * 2 + [["b"]] * 13), "entry 3 is no text with a label"),
    "tags.conll": ("a O\n\nb O\n" + "c\nd Q\n" * 6 + "e\n", "line 4 has one column"),
    "tags.jsonl": ('{"tokens": ["a"], "tags": ["O"]}\n' * 2 + "{}\n" * 13, "line 3 has no column"),
    "pairs.tsv": ("a\tb\n" * 2 + "c\n" * 13, "line 3 has no tab"),
    "pairs.jsonl": (
        '{"source": "a", "target": "b"}\n' * 2 + "3\n" * 13,
        "line 3 is no JSON object",
    ),
    "texts.jsonl": ('{"text": "a"}\n' * 2 + '{"text": 3}\n' * 13, "line 3 has 3 where text"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_all_broken_lines_are_in_one_error(tmp_path, name):
    content, first = BROKEN[name]
    file = written(tmp_path, name, content)
    kind = name.partition(".")[0]
    readers = {
        "tags": read_tagged_text,
        "texts": read_texts,
        "a": read_labelled_text,
        "pairs": lambda file: read_parallel_text(file.name, file.key),
    }
    with pytest.raises(InputError) as caught:
        readers[kind](file)
    error = caught.value
    assert error.errors == (error,)
    assert error.key == "task.train"
    assert error.problem.startswith(f"13 places are broken: {first}")
    assert error.problem.endswith("; and 3 more")
    assert len(re.findall(r"(?:line|entry) \d+", error.problem)) >= 10


def test_two_broken_lines_keep_both_remedies(tmp_path):
    with pytest.raises(InputError) as caught:
        labelled(tmp_path, "a.csv", 'text,label\na,\nb\n"c"d,e\nf,g\n')
    told = str(caught.value)
    assert "3 places are broken: line 2 has no label; line 3 has 1 columns, the header 2; " in told
    assert "line 4 is no row of a table" in told
    assert "Fill it or remove the entry. Quote fields" in told
