import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.corpora import TextFile


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
