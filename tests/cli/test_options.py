"""What command-line programs share."""

import importlib
import re

import pytest

from collapipe_jax.cli import options as command_line
from collapipe_jax.cli.main import COMMANDS
from collapipe_jax.cli.options import read_counts, read_numbers
from collapipe_jax.core.console import console_for_tables
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.edge.policies.registry import POLICIES


def test_numbers_come_once_each_from_the_least_on():
    assert read_numbers("--v", "10,0.5,1e1,0") == [0.0, 0.5, 10.0]
    assert read_numbers("--rates", "2,1", zero=False) == [1.0, 2.0]


@pytest.mark.parametrize("text", ["", "1,x", "-1,2", "nan", "inf", "1,,2"])
def test_what_is_no_list_of_numbers_is_reported(text):
    with pytest.raises(InputError, match="--v"):
        read_numbers("--v", text)


def test_a_zero_is_reported_where_it_is_not_allowed():
    with pytest.raises(InputError, match="positive numbers"):
        read_numbers("--rates", "0,1", zero=False)


def test_counts_keep_their_order_and_wrong_ones_are_reported():
    assert read_counts("--blocks", "4,1,4") == [4, 1, 4]
    for text in ("", "0", "1,x", "-1", "1.5", "1,,2"):
        with pytest.raises(InputError, match="--blocks"):
            read_counts("--blocks", text)


def test_the_first_count_under_one_is_reported_by_its_option():
    require_positive(rounds=1, scipy_networks=2)
    with pytest.raises(InputError, match="--scipy-networks"):
        require_positive(rounds=1, scipy_networks=0, chunk=-1)


def test_tables_are_as_wide_as_told_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert console_for_tables(123).width == 123


def test_a_program_that_trains_keeps_memory_and_still_reports_errors(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(command_line, "keep_freed_memory", lambda: calls.append("kept"))

    def main(argv):
        calls.append(argv)
        raise InputError("key", 1, "wrong", "Mend it")

    assert command_line.run_training(main, ["--a"]) == 2
    assert calls == ["kept", ["--a"]]
    assert "key = 1" in capsys.readouterr().err


COMMANDS_WITH_OPTIONS = [name for name in COMMANDS if name not in ("quickstart", "completion")]


def help_of(name, capsys):
    command = importlib.import_module(f"collapipe_jax.cli.{name}")
    with pytest.raises(SystemExit):
        command.main(["--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_of_several_lines_is_not_garbled(name, capsys):
    text = help_of(name, capsys)
    assert not [line for line in text.splitlines() if re.search(r"\S {3,}--", line.strip())][:1]
    assert "\\ " not in text


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_have_options_that_are_there(name, capsys):
    examples, _, options = help_of(name, capsys).partition("options:")
    known = set(re.findall(r"--[a-z0-9-]+", options))
    used = re.findall(
        r"(?<![\w`(\[])--[a-z0-9.-]+", "\n".join(re.findall(r"^ {4}.*$", examples, re.M))
    )
    assert not [flag for flag in used if flag not in known and not flag.startswith("--config.")]


@pytest.mark.parametrize("name", ["compare", "sweep", "map", "train", "plan"])
def test_options_name_their_defaults(name, capsys):
    text = " ".join(help_of(name, capsys).split())
    defaults = {
        "compare": "horizon (default: 50)",
        "sweep": "number of seeds (default: 1)",
        "map": "may fail (default: 0.25)",
        "train": "number of seeds (default: 1)",
        "plan": "policies that fix it (default: 8)",
    }
    assert defaults[name] in text


def test_plan_offers_only_policies_that_it_takes(capsys):
    text = help_of("plan", capsys)
    for name, entry in POLICIES.items():
        assert (name in text.replace("_\n", "_")) != entry.by_clients


@pytest.mark.parametrize("name", COMMANDS_WITH_OPTIONS)
def test_a_misspelt_option_names_the_nearest(name, capsys):
    command = importlib.import_module(f"collapipe_jax.cli.{name}")
    flag = re.findall(r"--[a-z]{5,}", help_of(name, capsys).split("options:")[1])[-1]
    wrong = flag[:-2] + flag[-1] + flag[-2]
    with pytest.raises(InputError, match=r"no such option.*Did you mean --"):
        command.main([f"{wrong}=3"])
