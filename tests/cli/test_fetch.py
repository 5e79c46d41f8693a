"""The command that downloads corpora, from a server on this machine."""

import hashlib
import io

import pytest
from support import tiny_models
from support.local_server import serve_model

from collapipe_jax.cli import fetch as program
from collapipe_jax.cli.fetch import main
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.public_corpora import Corpus, CorpusFile

CONTENT = b"word\tO\n" * 20_000


@pytest.fixture
def registry(server, monkeypatch):
    server.contents["/a.tsv"] = CONTENT
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    files = (CorpusFile(name="a.tsv", url=f"{server.url}/a.tsv", sha256=sha256),)
    tiny = Corpus(title="A test", licence="CC0", citation="Nobody 2020", files=files)
    monkeypatch.setattr(program, "corpora", lambda: {"tiny": tiny})


@pytest.mark.usefixtures("registry")
def test_terms_are_shown_and_consent_is_asked(tmp_path, monkeypatch, capsys, server):
    monkeypatch.setenv("COLLAPIPE_DATA", str(tmp_path))
    for answer in ("n", ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
        with pytest.raises(InputError, match="the terms were not accepted"):
            main(["tiny"])
    shown = capsys.readouterr().out
    assert "licence: CC0" in shown
    assert "cite: Nobody 2020" in shown
    assert f"{server.url}/a.tsv" in shown
    monkeypatch.setattr("sys.stdin", io.StringIO(""))  # nobody is there to be asked
    with pytest.raises(InputError, match="pass --yes"):
        main(["tiny"])
    assert server.requested == []
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    main(["tiny"])
    assert (tmp_path / "tiny" / "a.tsv").read_bytes() == CONTENT


@pytest.mark.usefixtures("registry")
def test_yes_and_the_directory_come_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("COLLAPIPE_DATA", raising=False)
    main(["tiny", "--yes", f"--directory={tmp_path}"])
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["a.tsv"]
    assert f"export COLLAPIPE_DATA={tmp_path}" in capsys.readouterr().out
    with pytest.raises(InputError, match="COLLAPIPE_DATA is not set"):
        main(["tiny", "--yes"])
    with pytest.raises(InputError, match=r"NAME = 'tini': no such corpus\. Use one of tiny"):
        main(["tini", "--yes", f"--directory={tmp_path}"])


def test_a_model_goes_to_a_folder_that_trains(tmp_path, monkeypatch, capsys, server):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    folder = tiny_models.write(tmp_path, "classification")
    serve_model(server, "somebody/tiny", folder, licence="mit")
    main(["somebody/tiny", "--yes", f"--directory={tmp_path / 'models'}"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "licence: mit" in shown
    assert f"collapipe train --model={tmp_path / 'models' / 'tiny'}" in shown
    assert (tmp_path / "models" / "tiny" / "model.safetensors").exists()
