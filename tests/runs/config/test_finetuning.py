"""A published model and a file are enough: all keys follow from the two."""

import json
import re
from pathlib import Path

import pytest
from support import compiled, tiny_corpora, tiny_models

from collapipe_jax.cli import train
from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.config.files import read_config
from collapipe_jax.runs.config.finetuning import fine_tuning

pytestmark = pytest.mark.usefixtures("no_data")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of models by their kind."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: str(tiny_models.write(folder, kind)) for kind in ("classification", "causal_lm")}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    files = {kind: tiny_corpora.write_sets(folder, kind) for kind in ("classification", "tagging")}
    (folder / "lines.txt").write_text("we sell zinc in oslo\nwe sell gold\n" * 40)
    return {kind: sets["train"] for kind, sets in files.items()} | {"lines": folder / "lines.txt"}


def test_sizes_follow_from_the_folder_unless_they_are_given(models):
    folder = models["classification"]
    sizes = json.loads(Path(folder, "config.json").read_text())
    config = read_config("classification", {"model.pretrained": folder})
    assert config.model.width == sizes["hidden_size"]
    assert config.task.vocabulary_size == sizes["vocab_size"]
    assert config.model.dropout_rate == sizes["hidden_dropout_prob"]
    given = {"model.pretrained": folder, "model.heads": 1, "model.encoder_blocks": 3}
    config = read_config("classification", given | {"task.source_length": 12})
    config.task.update({"train": "a.csv", "labels": 2})
    with pytest.raises(InputError) as caught:
        build_experiment(config)
    # All at once, and no budget hides them.
    named = [error.key for error in caught.value.errors]
    assert named == ["model.heads", "model.encoder_blocks", "task.train"]


@pytest.mark.parametrize(
    ("model", "data", "kind"),
    [
        ("classification", "classification", "classification"),
        pytest.param("classification", "tagging", "tagging", marks=pytest.mark.slow),
        pytest.param("classification", "lines", "masked_lm", marks=pytest.mark.slow),
        pytest.param("causal_lm", "lines", "causal_lm", marks=pytest.mark.slow),
    ],
)
def test_the_task_follows_from_model_and_file_and_the_run_can_be_built(
    models, files, model, data, kind
):
    tuning = fine_tuning(models[model], str(files[data]), lora=2)
    assert tuning.config == kind
    assert tuning.summary.startswith(f"{kind}: LoRA of rank 2, rows of ")
    experiment = build_experiment(read_config(tuning.config, tuning.values))
    assert experiment.task.model.sizes.adapters.rank == 2
    problem = experiment.system.mean_problem
    static = compiled.static_pipeline(problem, 2)
    assert compiled.is_feasible(problem, static)  # every limit, the embedding's too
    budget_j = experiment.config["control"]["device_budget_j"]
    assert f"and {budget_j:g} J" in tuning.summary


@pytest.mark.slow
def test_what_a_user_gives_stays_and_others_follow_it(models, files):
    given = {"training.batch": "4", "control.device_budget_j": "7.5"}
    values = fine_tuning(models["classification"], files["classification"], given=given).values
    assert values["training.batch"] == "4"
    assert values["control.device_budget_j"] == "7.5"
    assert values["devices.memory_share"] < 1.0


def test_prompts_with_answers_are_packed_and_batch_and_passes_count_their_rows(models, tmp_path):
    prompts = (f"{number}{' zinc' * (4 * (number % 4 == 0))}" for number in range(800))
    records = [json.dumps({"prompt": prompt, "response": "gold"}) for prompt in prompts]
    (tmp_path / "a.jsonl").write_text("\n".join(records))

    def keys(**given):
        return fine_tuning(models["causal_lm"], str(tmp_path / "a.jsonl"), given=given)

    packed, apart = keys(), keys(**{"task.packing": "False"})
    assert packed.values["task.packing"] is True
    assert "packing True" in packed.summary
    assert packed.values["task.source_length"] == apart.values["task.source_length"]
    # About as many texts in a step, so as many steps, of fewer rows.
    batches = [each.values["training.batch"] for each in (packed, apart)]
    rounds = [each.values["training.rounds"] for each in (packed, apart)]
    assert batches == [4, 8]
    assert 0.7 < rounds[0] / rounds[1] < 1.4
    (tmp_path / "lines.txt").write_text("we sell zinc\nwe sell gold\n" * 40)
    lines = fine_tuning(models["causal_lm"], str(tmp_path / "lines.txt"))
    assert "task.packing" not in lines.values


@pytest.mark.slow
def test_a_split_of_a_file_has_labels(models, tmp_path):
    entries = [["buy zinc", "buy"], ["sell gold", "sell"]] * 20
    (tmp_path / "a.json").write_text(json.dumps({"train": entries, "test": entries[:2]}))
    tuning = fine_tuning(models["classification"], str(tmp_path / "a.json#train"))
    assert (tuning.config, tuning.values["task.labels"]) == ("classification", 2)


def test_a_file_that_has_no_labels_is_named(models, tmp_path):
    (tmp_path / "a.csv").write_text("words\nhello\n")
    with pytest.raises(InputError, match="--data"):
        fine_tuning(models["classification"], str(tmp_path / "a.csv"))
    for folder, problem in ((tmp_path, "has no config.json"), (tmp_path / "b", "no such folder")):
        with pytest.raises(InputError, match=f"--model = .*{problem}"):
            fine_tuning(str(folder), str(tmp_path / "a.csv"))


_SPOILT = "we\tO\nsell\tO\nzinc\tQ-Metal\n\n"
_ASKED = '{"question": "how?", "answer": "so"}\n'
_TURNS = '{{"role": "user", "content": "{}"}}, {{"role": "assistant", "content": "b"}}'
_TEXTS = {
    "names.csv": "words,intent\npay it,bank\nlight on,home\n",
    "labels.csv": "text,label\npay it,bank\nlight on,home\n",
    "tags.conll": "zinc\tB-Metal\n\n" * 9,
    "spoilt.conll": "zinc\tB-Metal\n\n" * 9 + _SPOILT,
    "tags.jsonl": '{"tokens": ["zinc"], "tags": ["B-Metal"]}\n',
    "asked.jsonl": _ASKED * 48,
    "chat.jsonl": "\n".join(f'{{"messages": [{_TURNS.format(number)}]}}' for number in range(9)),
    "lines.txt": "\n".join(f"we sell {number} tons" for number in range(9)),
    "empty.csv": "",
}


@pytest.mark.parametrize(
    ("model", "data", "test", "message"),
    [
        ("classification", "asked.jsonl", "", r"prompts with answers \(question, answer\)"),
        ("classification", "empty.csv", "", "^--data = .*the file is empty"),
        ("classification", "spoilt.conll", "", "line 21 has the tag 'Q-Metal'"),
        ("causal_lm", "empty.csv", "", "the file is empty"),
        ("causal_lm", "tags.conll", "", "words with tags"),
        ("causal_lm", "spoilt.conll", "", "words with tags"),
        ("causal_lm", "tags.jsonl", "", "words with tags"),
        ("causal_lm", "labels.csv", "", "texts with labels.* set task.kind to causal_lm"),
        ("causal_lm", "chat.jsonl", "lines.txt", "^--test = .*it holds plain texts, and the tr"),
        ("causal_lm", "chat.jsonl", "labels.csv", "^--test = .*texts with labels"),
        ("causal_lm", "lines.txt", "chat.jsonl", "^--test = .*it holds prompts with answers"),
    ],
)
def test_a_file_of_another_form_is_refused_once(models, tmp_path, model, data, test, message):
    for name in filter(None, (data, test)):
        (tmp_path / name).write_text(_TEXTS[name])
    place = str(tmp_path / test) if test else ""
    with pytest.raises(InputError, match=message) as caught:
        fine_tuning(models[model], str(tmp_path / data), place)
    assert len(caught.value.errors) == 1


def test_columns_that_are_named_decide_the_form(models, tmp_path):
    for name in ("names.csv", "labels.csv"):
        header, *rows = _TEXTS[name].splitlines()
        rows = [f"{number} {row}" for number in range(20) for row in rows]
        (tmp_path / name).write_text("\n".join([header, *rows]))
    columns = {"task.text_column": "words", "task.label_column": "intent"}
    tuning = fine_tuning(models["classification"], str(tmp_path / "names.csv"), given=columns)
    assert (tuning.config, tuning.values["task.labels"]) == ("classification", 2)
    for given in ({"task.kind": "causal_lm"}, {"task.text_column": "text"}):
        path = str(tmp_path / "labels.csv")
        assert fine_tuning(models["causal_lm"], path, given=given).config == "causal_lm"


def test_what_is_given_is_judged_before_the_texts(models):
    given = {"model.width": "17", "model.foo": "1", "training.batch": "abc"}
    with pytest.raises(InputError) as caught:
        fine_tuning(models["classification"], "nix.csv", given=given)
    errors = {error.key: error.problem for error in caught.value.errors}
    assert list(errors) == ["model.foo", "training.batch", "model.width"]
    assert re.search("the model in .* has 16", errors["model.width"])  # not that heads divide it


@pytest.mark.parametrize(
    ("model", "kind"), [("classification", "causal_lm"), ("causal_lm", "tagging")]
)
def test_a_task_that_the_model_cannot_serve_is_refused(models, files, model, kind):
    with pytest.raises(InputError, match="not of such a model"):
        fine_tuning(models[model], str(files["lines"]), given={"task.kind": kind})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--config = ''"),
        (["--model=m"], "nothing to fine-tune it on"),
        (["--config=quickstart", "--data=a.csv"], "--data = 'a.csv': of fine-tuning"),
        (["--config=quickstart", "--model=m", "--data=a.csv"], "Leave one of them out"),
        (["--model=m", "--data=a.csv", "--seeds=2"], "Leave out --sweep and --seeds"),
    ],
)
def test_half_of_the_options_are_refused(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        train.main([*options, f"--workdir={tmp_path / 'run'}"])


@pytest.mark.slow
def test_a_dry_run_shows_who_holds_what_and_trains_nothing(models, files, tmp_path, capsys):
    folder, data = models["classification"], files["classification"]
    train.main(
        [f"--model={folder}", f"--data={data}", f"--workdir={tmp_path / 'run'}", "--dry-run"]
    )
    printed = capsys.readouterr().out
    assert "blocks per" in printed  # the heading may go on in another line
    assert "latency" in printed
    assert re.search(
        r"energy \S+ J, of a control unit up to \S+ J, of a device up to \S+ J", printed
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_without_a_test_file_validation_has_the_scores(models, files, tmp_path):
    folder, data = models["classification"], files["classification"]
    short = ["--config.training.rounds=2", "--config.training.warmup_steps=1"]
    train.main([f"--model={folder}", f"--data={data}", f"--workdir={tmp_path / 'run'}", *short])
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert {"validation_accuracy", "validation_accuracy_majority"} <= set(summary)
    assert not [name for name in summary if name.startswith("test_")]
