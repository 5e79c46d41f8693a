"""Wrong input of every kind ends in one message with key, value and remedy, and status 2."""

import json
import sys

import pytest
from support import ROOT

from collapipe_jax.cli.main import main

NETWORK = str(ROOT / "docs/examples/edge.network.json")
DECISION = str(ROOT / "docs/examples/edge.decision.json")
TRAIN = ("train", "--workdir=run", "--config=quickstart")
COMPARE = ("compare", "--workdir=run", "--config=paper")
LONG = "x" * 5000
PLAN = ("plan", f"--instance={NETWORK}", "--out=out.json")

CASES = {
    # commands and options
    "no such command": (["trian"], "command", "trian", "Did you mean train"),
    "an unknown option": ([*TRAIN, "--rounds=3"], "option", "--rounds", "Did you mean"),
    "an option left out": (["price"], "options", "--instance", "collapipe price --help"),
    "a number that is none": ([*COMPARE, "--rounds=x"], "options", "--rounds", "--help"),
    "no rounds": ([*COMPARE, "--rounds=0"], "--rounds", "0", "1 or more"),
    "no realisations": ([*COMPARE, "--realisations=-1"], "--realisations", "-1", "1 or more"),
    "a figure of no folder": (
        ["figures", "--workdir=nowhere"],
        "--workdir",
        "nowhere",
        "that one of these wrote",
    ),
    "no such figure": (["figures", "pie", "--workdir=x"], "options", "pie", "--help"),
    "no such corpus": (["fetch", "mnist", "--directory=x"], "NAME", "mnist", "ner_bc5cdr"),
    "a host alone": ([*TRAIN, "--host=1"], "--host", "1", "--coordinator"),
    # configurations
    "no such configuration": (
        ["train", "--workdir=run", "--config=quikstart"],
        "--config",
        "quikstart",
        "Did you mean quickstart",
    ),
    "no such file": (
        ["train", "--workdir=run", "--config=my.py"],
        "--config",
        "my.py",
        "Name a file",
    ),
    "no such variant": (
        ["compare", "--workdir=run", "--config=paper:big"],
        "--config",
        "paper:big",
        "paper:lowband",
    ),
    "a configuration that fails": (
        ["train", "--workdir=run", "--config=broken.py"],
        "--config",
        "broken.py",
        "get_config()",
    ),
    "no sweep": (["sweep", "--workdir=run", "--config=paper"], "--sweep", "[]", "get_sweep()"),
    # keys
    "a misspelt key": (
        [*TRAIN, "--config.training.bacth=3"],
        "training.bacth",
        "3",
        "training.batch",
    ),
    "a key of another section": ([*TRAIN, "--config.batch=3"], "batch", "3", "training.batch"),
    "a key without a value": (
        [*TRAIN, "--config.training.batch"],
        "argument",
        "training.batch",
        "=value",
    ),
    "a key of another type": (
        [*TRAIN, "--config.training.batch=big"],
        "training.batch",
        "big",
        "like 16",
    ),
    "a number out of bounds": (
        [*TRAIN, "--config.devices.utilisation=1.5"],
        "devices.utilisation",
        "1.5",
        "<= 1",
    ),
    "not a number": ([*TRAIN, "--config.control.v=nan"], "control.v", "nan", "like 3.0"),
    "no divisor": (
        [*TRAIN, "--config.training.micro_batch_choices=(1,3)"],
        "training.micro_batch_choices",
        "3",
        "divisor",
    ),
    "an unknown policy": (
        [*TRAIN, "--config.policy.name=dsra"],
        "policy.name",
        "dsra",
        "Did you mean dssra",
    ),
    "a policy that cannot be imported": (
        [*TRAIN, "--config.policy.name=no_such:policy"],
        "policy.name",
        "no_such:policy",
        "Install its package",
    ),
    "a module without that policy": (
        [*TRAIN, "--config.policy.name=json:policy"],
        "policy.name",
        "json:policy",
        "after the colon",
    ),
    "a policy whose module fails": (
        [*TRAIN, "--config.policy.name=failing:policy"],
        "policy.name",
        "failing:policy",
        "Correct the module failing",
    ),
    "a task left out": (
        ["train", "--workdir=run", "--config=taskless.py", "--linear-baseline"],
        "task.kind",
        "None",
        "Add it",
    ),
    "heads that do not divide the width": (
        [*TRAIN, "--config.model.heads=3"],
        "model.heads",
        "3",
        "divisor of model.width",
    ),
    "a corpus that is nowhere": (
        [*TRAIN, "--config.task.corpus=de.txt"],
        "task.corpus",
        "de.txt",
        "COLLAPIPE_DATA",
    ),
    "an unknown task": (
        [*TRAIN, "--config.task.kind=parsing"],
        "task.kind",
        "parsing",
        "translation",
    ),
    "a task that is none": (
        [*TRAIN, "--config.task.kind=json:loads"],
        "task.kind",
        "json:loads",
        "Name a subclass of Task",
    ),
    "a cut of thousands of digits": (
        [*TRAIN, f"--config.policy.cut={'9' * 5000}"],
        "policy.cut",
        "99",
        "or one of",
    ),
    "an unknown law": (
        [*TRAIN, "--config.propagation.d2e_path_loss=macro"],
        "propagation.d2e_path_loss",
        "macro",
        "macro_2ghz",
    ),
    "an unknown device": (
        [*TRAIN, "--config.devices.control_unit=jetson_nanoo"],
        "devices.control_unit",
        "jetson_nanoo",
        "Did you mean jetson_nano?",
    ),
    "a warm-up longer than the run": (
        [*TRAIN, "--config.training.rounds=3"],
        "training.warmup_steps",
        "60",
        "Lower it",
    ),
    "a key of another task": (
        [*TRAIN, "--config.task.piece_dropout=0.1"],
        "task.piece_dropout",
        "0.1",
        "Clear it",
    ),
    "a model that fits nowhere": (
        [*TRAIN, "--config.devices.memory_share=1e-9"],
        "model.encoder_blocks",
        "4",
        "devices.memory_share",
    ),
    "a budget that nobody can keep": (
        [*TRAIN, "--config.control.device_budget_j=1e-9"],
        "control.device_budget_j",
        "1e-09",
        "Raise it",
    ),
    # names of files
    "a name too long for a configuration": (
        ["train", "--workdir=run", f"--config={LONG}.py"],
        "--config",
        "xx",
        "Name a file",
    ),
    "a name too long for a network": (
        [*TRAIN, f"--config.network.file={LONG}"],
        "network.file",
        "xx",
        "Name a network",
    ),
    "a name too long for a model": (["predict", f"--model={LONG}"], "model", "xx", "Name the"),
    "a corpus of an unknown user": (
        [*TRAIN, "--config.task.corpus=~no_such_user/de.txt"],
        "task.corpus",
        "~no_such_user/de.txt",
        "Give the path",
    ),
    # documents
    "no such network": (
        ["plan", "--instance=no.json", "--policy=dssra", "--out=out.json"],
        "file",
        "no.json",
        "Check it",
    ),
    "no JSON": (
        ["plan", "--instance=broken.py", "--policy=dssra", "--out=out.json"],
        "file",
        "broken.py",
        "Write it anew",
    ),
    "a document of another kind": (
        ["plan", f"--instance={DECISION}", "--policy=dssra", "--out=out.json"],
        "format",
        "collapipe-decision/1",
        "collapipe-network/1",
    ),
    "an unknown key of a document": (
        ["plan", "--instance=extra.json", "--policy=dssra", "--out=out.json"],
        "radio.gain_db",
        "3",
        "Remove or correct it",
    ),
    "a list of another length": (
        ["plan", "--instance=short.json", "--policy=dssra", "--out=out.json"],
        "radio.d2e_gain",
        "entries",
        "a list of",
    ),
    "a gain above 1": (
        ["plan", "--instance=loud.json", "--policy=dssra", "--out=out.json"],
        "radio.d2e_gain[0][0]",
        "118.0",
        "dB",
    ),
    "no micro-batches": (
        [*PLAN, "--policy=static_pipeline", "--micro-batches=0"],
        "--micro-batches",
        "0",
        "Choose among: 2, 3, 6, 12",
    ),
    "micro-batches of a policy without": (
        [*PLAN, "--policy=random", "--micro-batches=3"],
        "--micro-batches",
        "random takes no number",
        "Leave it out",
    ),
    "a policy of clients": ([*PLAN, "--policy=splitfed"], "--policy", "splitfed", "dssra, "),
    "a policy without a certificate": (
        [*PLAN, "--policy=greedy", "--certify"],
        "--certify",
        "greedy",
        "dssra",
    ),
    "an unknown policy of a plan": (
        [*PLAN, "--policy=dsra"],
        "--policy",
        "dsra",
        "Did you mean dssra? Choose among: dssra, dssra_wide, dssra_offline, greedy, alternating, "
        "static_pipeline, titanic, titanic_pipelined, random, or one",
    ),
    "a decision of another kind": (
        ["price", f"--instance={NETWORK}", f"--decision={NETWORK}", "--out=out.json"],
        "format",
        "collapipe-network/1",
        "collapipe-decision/1",
    ),
    # folders
    "a folder of something else": (
        ["train", "--workdir=.", "--config=quickstart"],
        "workdir",
        ".",
        "Choose an empty folder",
    ),
    "a folder that is a file": (
        ["train", "--workdir=broken.py", "--config=quickstart"],
        "workdir",
        "broken.py",
        "Choose a path",
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch, no_data):
    """A folder with wrong files, as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLLAPIPE_CACHE", "off")
    monkeypatch.setattr(sys, "argv", ["collapipe"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken.py").write_text("def get_config(:\n")
    (tmp_path / "failing.py").write_text("import json\njson.no_such_name\n")
    (tmp_path / "taskless.py").write_text(
        "from collapipe_jax.runs.config.named import quickstart as whole\n"
        "def get_config():\n    config = whole()\n    del config.task.kind\n    return config\n"
    )
    for name in ("extra", "short", "loud"):
        document = json.loads((ROOT / "docs/examples/edge.network.json").read_text())
        if name == "extra":
            document["radio"]["gain_db"] = 3
        elif name == "short":
            document["radio"]["d2e_gain"].pop()
        else:
            document["radio"]["d2e_gain"][0][0] = 118.0
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_is_answered_and_leaves_nothing(case, folder, capsys, monkeypatch):
    argv, key, value, remedy = CASES[case]
    monkeypatch.setattr("collapipe_jax.cli.options.keep_freed_memory", lambda: False)
    monkeypatch.setattr(sys, "argv", ["collapipe", *argv])
    before = set(folder.iterdir())
    assert main(argv) == 2
    assert set(folder.iterdir()) - {folder / "__pycache__"} == before
    out, message = capsys.readouterr()
    assert out == ""
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert "Traceback" not in message
    for part in (key, value, remedy):
        assert part in message


def test_there_are_forty():
    assert len(CASES) >= 40
