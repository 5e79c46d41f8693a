"""Simulating works without the packages of the extras; other commands name the extra."""

import subprocess
import sys

import pytest
from support import ROOT

EXTRAS = (
    *("orbax", "tokenizers", "sacrebleu", "seqeval", "sklearn", "requests", "urllib3"),
    *("matplotlib", "chex", "beartype", "hypothesis"),
)
WITHOUT = f"""
import sys
for name in {EXTRAS!r}:
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
from collapipe_jax.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""


def collapipe(folder, *arguments):
    command = [sys.executable, "-c", WITHOUT, *arguments]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "COLLAPIPE_CACHE": "off"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_network_is_drawn_and_priced(tmp_path):
    drawn = collapipe(tmp_path, "sample", "--config=quickstart", "--out=net.json")
    assert drawn.returncode == 0, drawn.stderr
    edge = ROOT / "docs/examples/edge"
    options = (
        f"--instance={edge}.network.json",
        f"--decision={edge}.decision.json",
        "--out=cost.json",
    )
    priced = collapipe(tmp_path, "price", *options)
    assert priced.returncode == 0, priced.stderr


@pytest.mark.slow
def test_policies_are_compared(tmp_path):
    few = "--realisations=2", "--rounds=2", "--policies=static_pipeline"
    done = collapipe(tmp_path, "compare", "--config=quickstart", *few, "--workdir=run")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        pytest.param(
            ("train", "--config=quickstart", "--workdir=run"), "train", marks=pytest.mark.slow
        ),
        (("fetch", "--help"), "train"),
        (("figures", "--help"), "figures"),
    ],
)
def test_other_commands_name_their_extra(arguments, extra, tmp_path):
    done = collapipe(tmp_path, *arguments)
    assert done.returncode == 2
    assert f"pip install 'collapipe-jax[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
