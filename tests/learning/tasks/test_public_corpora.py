"""Downloads from a server on this machine: no test reaches the internet."""

import hashlib
import io
import socket
import stat
import zipfile

import pytest
from rich.console import Console

from collapipe_jax.cli import fetch as program
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks import public_corpora
from collapipe_jax.learning.tasks.public_corpora import Corpus, CorpusFile, corpora, fetch

CONTENT = b"word\tO\n" * 20_000


def digest(content):
    return hashlib.sha256(content).hexdigest()


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


def corpus(*files):
    return Corpus(title="A test", licence="CC0", citation="Nobody 2020", files=files)


def one_file(url, content=CONTENT, **more):
    return corpus(CorpusFile(name="a.tsv", url=url, sha256=digest(content), **more))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_and_checked(server, tmp_path, console):
    server.contents["/a.tsv"] = CONTENT
    fetch(one_file(f"{server.url}/a.tsv"), tmp_path / "deep" / "corpus", console)
    assert (tmp_path / "deep" / "corpus" / "a.tsv").read_bytes() == CONTENT
    assert names(tmp_path / "deep" / "corpus") == ["a.tsv"]
    assert "fetched: " in console.file.getvalue()


def test_others_may_read_it_as_any_new_file(server, tmp_path, console):
    server.contents["/a.tsv"] = CONTENT
    fetch(one_file(f"{server.url}/a.tsv"), tmp_path, console)
    (tmp_path / "usual").touch()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_what_is_there_is_not_fetched_again(server, tmp_path, console):
    (tmp_path / "a.tsv").write_bytes(CONTENT)
    fetch(one_file(f"{server.url}/a.tsv"), tmp_path, console)
    assert server.requested == []
    assert "already there" in console.file.getvalue()


def test_a_damaged_file_is_replaced(server, tmp_path, console):
    server.contents["/a.tsv"] = CONTENT
    (tmp_path / "a.tsv").write_bytes(CONTENT[:-1])
    fetch(one_file(f"{server.url}/a.tsv"), tmp_path, console)
    assert (tmp_path / "a.tsv").read_bytes() == CONTENT
    assert "not as published" in console.file.getvalue()


def test_a_corrupted_download_is_refused_and_removed(server, tmp_path, console):
    server.contents["/a.tsv"] = CONTENT + b"!"
    with pytest.raises(InputError, match=digest(CONTENT + b"!")) as caught:
        fetch(one_file(f"{server.url}/a.tsv"), tmp_path, console)
    assert "was not kept" in caught.value.problem
    assert str(tmp_path / "a.tsv") in caught.value.remedy
    assert names(tmp_path) == []


def test_a_broken_connection_leaves_no_half_file(server, tmp_path, console):
    server.contents["/a.tsv"] = CONTENT
    with pytest.raises(InputError, match="the connection broke") as caught:
        fetch(one_file(f"{server.url}/broken/a.tsv"), tmp_path, console)
    assert caught.value.value == f"{server.url}/broken/a.tsv"
    assert names(tmp_path) == []


def test_a_connection_that_falls_silent_is_given_up(server, tmp_path, console, monkeypatch):
    monkeypatch.setattr(public_corpora, "_TIMEOUT_S", 0.25)
    server.contents["/a.tsv"] = CONTENT
    with pytest.raises(InputError, match=r"nothing came for 0\.25 s"):
        fetch(one_file(f"{server.url}/stalled/a.tsv"), tmp_path, console)
    assert names(tmp_path) == []


def test_a_broken_connection_leaves_what_was_there(server, tmp_path, console):
    server.contents["/a.tsv"] = CONTENT
    (tmp_path / "a.tsv").write_bytes(b"old")
    with pytest.raises(InputError, match="the connection broke"):
        fetch(one_file(f"{server.url}/broken/a.tsv"), tmp_path, console)
    assert (tmp_path / "a.tsv").read_bytes() == b"old"
    assert names(tmp_path) == ["a.tsv"]


def test_offline_tells_address_and_place(tmp_path, console, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and never listens
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/a.tsv"
        with pytest.raises(InputError, match="cannot be reached; is there a connection") as caught:
            fetch(one_file(url), tmp_path, console)
    assert caught.value.value == url
    assert f"save it as {tmp_path / 'a.tsv'}" in caught.value.remedy
    assert names(tmp_path) == []


def test_a_missing_page_tells_its_status(server, tmp_path, console):
    with pytest.raises(InputError, match=r"the server refuses it \(404\)"):
        fetch(one_file(f"{server.url}/no.tsv"), tmp_path, console)
    assert names(tmp_path) == []


def test_members_of_an_archive_are_fetched_at_once(server, tmp_path, console):
    server.contents["/a.zip"] = zipped(one=CONTENT, two=b"2", three=b"3")
    url = f"{server.url}/a.zip"
    files = (
        CorpusFile(name="first.tsv", url=url, member="one", sha256=digest(CONTENT)),
        CorpusFile(name="two", url=url, member="two", sha256=digest(b"2")),
    )
    fetch(corpus(*files), tmp_path, console)
    assert server.requested == ["/a.zip"]
    assert names(tmp_path) == ["first.tsv", "two"]
    assert (tmp_path / "first.tsv").read_bytes() == CONTENT


def damaged_bytes():
    whole = bytearray(zipped(one=CONTENT))
    whole[35] ^= 255  # in the content, after a header of 33 bytes
    return bytes(whole)


def encrypted():
    whole = zipped(one=CONTENT)
    central = whole.index(b"PK\x01\x02")
    return whole[: central + 8] + b"\x01" + whole[central + 9 :]


@pytest.mark.parametrize(
    "content", [b"no archive", zipped(other=CONTENT), damaged_bytes(), encrypted()]
)
def test_another_archive_is_refused(server, tmp_path, console, content):
    server.contents["/a.zip"] = content
    with pytest.raises(InputError, match="not an archive that holds one") as caught:
        fetch(one_file(f"{server.url}/a.zip", member="one"), tmp_path, console)
    assert f"save its one as {tmp_path / 'a.tsv'}" in caught.value.remedy
    assert names(tmp_path) == []


def test_newer_versions_are_taken_only_when_asked_for(server, tmp_path, console):
    server.contents["/a.zip"] = zipped(one=b"of today")
    grown = one_file(f"{server.url}/a.zip", member="one", replaced_upstream=True)
    with pytest.raises(InputError, match="Take today's version with --newer"):
        fetch(grown, tmp_path, console)
    assert names(tmp_path) == []
    fetch(grown, tmp_path, console, newer=True)
    assert (tmp_path / "a.tsv").read_bytes() == b"of today"
    assert digest(b"of today") in console.file.getvalue()
    fetch(grown, tmp_path, console, newer=True)
    assert len(server.requested) == 2
    # a pinned file stays pinned
    server.contents["/b.tsv"] = b"of today"
    with pytest.raises(InputError, match="was not kept"):
        fetch(one_file(f"{server.url}/b.tsv"), tmp_path / "b", console, newer=True)


def test_every_corpus_is_pinned():
    for name, entry in corpora().items():
        assert all((entry.title, entry.licence, entry.citation))
        assert name in program.__doc__
        assert len({file.name for file in entry.files}) == len(entry.files)
        for file in entry.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.url.startswith("https://")
            # a commit, or an archive whose publisher replaces it
            assert file.replaced_upstream or len(bytes.fromhex(file.url.split("/")[5])) == 20
