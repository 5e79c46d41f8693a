"""What command-line programs share."""

import pytest

from collapipe_jax.cli import options as command_line
from collapipe_jax.cli.options import read_counts, read_numbers
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.core.tables import console_for_tables


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
