"""What shells complete: commands, options of each, keys of the configuration."""

import contextlib
import io
import shutil
import subprocess

import pytest

from collapipe_jax.cli.main import COMMANDS, main

SHELLS = ("bash", "zsh", "fish")
TRY = """
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _collapipe; echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts():
    return {shell: script_of(shell) for shell in SHELLS}


def script_of(shell):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["completion", shell]) == 0
    return printed.getvalue()


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("collapipe tr", "train"),
        ("collapipe train --work", "--workdir= --workers="),
        ("collapipe train --config = cl", "classification clinc150"),
        ("collapipe train --config.training.ba", "--config.training.batch="),
        ("collapipe compare --policies = none", ""),
    ],
)
def test_bash_completes(scripts, words, completed, tmp_path):
    code = scripts["bash"] + TRY.format(words=words)
    run = subprocess.run(
        ["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert sorted(run.stdout.split()) == sorted(completed.split())


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_of_their_shell_and_have_all_commands(scripts, shell, capsys):
    assert all(command in scripts[shell] for command in COMMANDS)
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=scripts[shell], text=True, check=True)
    assert main(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err
