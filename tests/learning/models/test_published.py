"""Models from a hub, here a server on this machine."""

import shutil

import pytest
from support.local_server import COMMIT, serve_model
from support.tiny_predictors import FOLDERS

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.published import fetch_model, model_terms

NAME = "somebody/tiny"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Folder of a classifier, with what a hub's folder may hold besides."""
    folder = tmp_path_factory.mktemp("models") / "classification"
    shutil.copytree(FOLDERS["classification"], folder)
    (folder / "model.py").write_text("raise SystemExit\n")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    return folder


@pytest.fixture
def hub(server, monkeypatch, published):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    serve_model(server, NAME, published)
    return server


def test_texts_and_tensors_come_and_nothing_that_runs(hub, published, tmp_path):
    assert model_terms(NAME) == "apache-2.0"
    fetch_model(NAME, tmp_path)
    came = {path.name for path in tmp_path.iterdir()} - {".cache"}
    assert came >= {"config.json", "vocab.txt", "model.safetensors"}
    assert came.isdisjoint({"model.py", "pytorch_model.bin", "onnx"})
    for name in came:
        assert (tmp_path / name).read_bytes() == (published / name).read_bytes()


def test_what_is_there_is_not_fetched_again(hub, tmp_path):
    fetch_model(NAME, tmp_path)
    hub.requested.clear()
    fetch_model(NAME, tmp_path)
    assert not [path for path in hub.requested if path.endswith(".safetensors")]


def test_a_model_of_another_kind_costs_no_weights(hub, published, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(published, other)
    (other / "config.json").write_text('{"model_type": "mamba"}')
    serve_model(hub, "somebody/mamba", other)
    with pytest.raises(InputError, match="mamba"):
        fetch_model("somebody/mamba", tmp_path / "copy")
    assert not [path for path in hub.requested if path.endswith(".safetensors")]


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("config.json", r"the folder has no config\.json"),
        ("model.safetensors", r"holds no model\.safetensors"),
    ],
)
def test_what_a_model_lacks_is_named(hub, published, tmp_path, missing, problem):
    other = tmp_path / "other"
    shutil.copytree(published, other)
    (other / missing).unlink()
    serve_model(hub, "somebody/half", other)
    with pytest.raises(InputError, match=problem):
        fetch_model("somebody/half", tmp_path / "copy")


def test_a_name_that_is_none_and_a_model_that_is_not_there_are_refused(hub):
    with pytest.raises(InputError, match="no name of a model"):
        model_terms("a/b/c")
    with pytest.raises(InputError, match=r"no such model|refuses"):
        model_terms("somebody/else")


def test_a_broken_download_is_reported_and_goes_on(hub, tmp_path):
    address = f"/{NAME}/resolve/{COMMIT}/model.safetensors"
    content = hub.contents.pop(address)
    with pytest.raises(InputError, match="NAME = 'somebody/tiny'"):
        fetch_model(NAME, tmp_path)
    assert (tmp_path / "config.json").exists()  # texts came before
    hub.contents[address] = content
    fetch_model(NAME, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == content
