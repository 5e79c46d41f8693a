"""Rounds on file, one file a checkpoint."""

import numpy as np
import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.results.checkpoints import read_rounds, write_rounds


def rounds(start, end):
    return {"round": np.arange(start, end), "energy_j": np.arange(start, end)[:, None] * np.ones(3)}


@pytest.fixture
def folder(tmp_path):
    for start, end in ((0, 4), (4, 8), (8, 9)):
        write_rounds(tmp_path, end, rounds(start, end))
    return tmp_path


@pytest.mark.parametrize("end", [1, 4, 6, 8, 9])
def test_any_number_of_rounds_is_read(end, folder):
    found = read_rounds(folder, end)
    for name, values in rounds(0, end).items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == values.dtype


def test_rounds_written_again_from_an_older_checkpoint_replace_the_first_ones(folder):
    newer = rounds(6, 12)
    newer["energy_j"] = -newer["energy_j"]
    write_rounds(folder, 12, newer)
    (folder / "00000008.npz").unlink()
    found = read_rounds(folder, 12)["energy_j"][:, 0]
    np.testing.assert_array_equal(found, [0, 1, 2, 3, 4, 5, -6, -7, -8, -9, -10, -11])


def test_nothing_is_written_without_rounds(tmp_path):
    write_rounds(tmp_path, 0, {})
    assert read_rounds(tmp_path, 0) == {}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["00000000.npz", "00000004.npz", "00000008.npz"])
def test_missing_and_damaged_files_are_named(name, folder):
    path = folder / name
    content = path.read_bytes()
    for damaged in (content[:-30], content[:100] + bytes([content[100] ^ 1]) + content[101:], b""):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=name):
            read_rounds(folder, 9)
    path.unlink()
    with pytest.raises(InputError, match="lacks rounds"):
        read_rounds(folder, 9)
