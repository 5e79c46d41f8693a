"""Where a model is found, and what is reported where there is none."""

import json
import shutil

import pytest
from support.tiny_predictors import FOLDERS

import collapipe_jax as cp
from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks import classification
from collapipe_jax.learning.tasks.classification import Classification
from collapipe_jax.learning.tasks.task import Task


class WithoutModel(Classification):
    """A task that writes no model."""

    load = classmethod(Task.load.__func__)


GOLDEN = FOLDERS["classification"]


def write_config(folder, **document):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document))


def test_a_workdir_its_model_and_copies_are_loaded(tmp_path):
    write_config(tmp_path, task={"kind": "classification"})
    shutil.copytree(GOLDEN, tmp_path / "model")
    for folder in (tmp_path, tmp_path / "model", str(GOLDEN)):
        assert cp.load(folder).predict(["tell me of oslo"])[0].label == "place"


def test_a_single_text_in_place_of_a_list_is_refused():
    for kind in FOLDERS:
        with pytest.raises(InputError, match=r"^texts = 'tell me': a single text"):
            cp.load(FOLDERS[kind]).predict("tell me")


def test_a_model_of_another_program_is_used_by_its_class(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    document = json.loads(path.read_text())
    for key in [key for key in document if key.startswith("collapipe")]:
        del document[key]
    assert document["architectures"] == ["BertForSequenceClassification"]
    path.write_text(json.dumps(document))
    # transformers 5 writes no vocab.txt, and where a tokenizer has no longest text a large number.
    (path.parent / "vocab.txt").unlink()
    (path.parent / "labels.txt").unlink(missing_ok=True)
    settings_path = path.parent / "tokenizer_config.json"
    settings = json.loads(settings_path.read_text()) | {"model_max_length": int(1e30)}
    del settings["do_lower_case"]
    settings_path.write_text(json.dumps(settings))
    texts = ["tell me of oslo", "what is the time"]
    assert cp.load(tmp_path).predict(texts) == cp.load(GOLDEN).predict(texts)


def test_a_task_of_ones_own_is_found_by_its_name(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    own = f"{classification.__name__}:Classification"
    path.write_text(path.read_text().replace('"classification"', f'"{own}"'))
    assert isinstance(cp.load(tmp_path).task, Classification)


@pytest.mark.parametrize(
    ("document", "files", "message"),
    [
        (None, (), "holds no model"),
        ({"task": {"kind": "tagging"}}, (), "has not ended.*Let it end with --resume"),
        ({"task": {"kind": "tagging"}}, ("summary.json",), "without writing a model"),
        ({"model_type": "bert"}, (), "names neither a task .* Fine-tune it with train"),
    ],
)
def test_a_folder_without_a_model_says_what_to_do(tmp_path, document, files, message):
    if document is not None:
        write_config(tmp_path, **document)
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match=message):
        cp.load(tmp_path)


def test_a_task_that_loads_nothing_is_reported(tmp_path):
    for task, message in (
        (f"{__name__}:WithoutModel", "cannot load a model"),
        (f"{classification.__name__}:read_sets", "no class of a task. Name a subclass"),
    ):
        write_config(tmp_path, collapipe_task=task)
        with pytest.raises(InputError, match=message):
            cp.load(tmp_path)
