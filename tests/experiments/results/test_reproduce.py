"""Measurements run their commands once, go on where they were killed, and leave records."""

import json

import pytest

from collapipe_jax.core.errors import InputError, TrainingError
from experiments import reproduce
from experiments.results.entries import ENTRIES, Entry, of_object, scored
from experiments.results.record import FOLDER, Record, read_record

_COUNT = 'echo >> FOLDER/calls; echo "{\\"calls\\": $(wc -l < FOLDER/calls)}" > FOLDER/found.json'


def read(folder):
    return of_object(folder / "found.json")


def test_a_complete_measurement_is_not_run_again(tmp_path):
    entry = Entry("calls", (_COUNT,), 1, read)
    for _ in range(2):
        record = reproduce.measure(entry, entry.commands, tmp_path / "calls")
        assert record.figures == {"calls": 1}
    assert record.commands == (_COUNT.replace("FOLDER", "runs/calls"),)
    assert record.seconds > 0
    assert record.machine["cores"] >= 1


def test_a_killed_measurement_goes_on_at_its_commit(tmp_path, monkeypatch):
    entry = Entry("calls", (_COUNT, "test -e FOLDER/mended"), 1, read)
    monkeypatch.setattr(reproduce, "git", lambda *_: "first")
    with pytest.raises(TrainingError, match="status 1"):
        reproduce.measure(entry, entry.commands, tmp_path / "calls")
    (tmp_path / "calls" / "mended").touch()
    monkeypatch.setattr(reproduce, "git", lambda *_: "second")
    record = reproduce.measure(entry, entry.commands, tmp_path / "calls")
    assert (record.figures["calls"], record.commit) == (1, "first")


def test_other_commands_are_another_measurement(tmp_path):
    entry = Entry("calls", (_COUNT,), 1, read)
    for commands in ([_COUNT], [_COUNT + " # small"]):
        record = reproduce.measure(entry, commands, tmp_path / "calls")
    assert record.figures == {"calls": 2}


def test_a_record_reads_back(tmp_path):
    record = Record("a", ("b",), "c", "2026-01-01", {"cores": 2}, 1.5, {"x": 1 / 3})
    record.write("a", tmp_path)
    assert read_record("a", tmp_path).figures == {"x": pytest.approx(1 / 3, rel=1e-6)}
    assert read_record("a", tmp_path).commands == ("b",)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"found\.json"):
        read(tmp_path)


def test_leads_are_paired():
    found = scored({"a": {"scores": [3.0, 5.0]}, "b": {"scores": [1.0, 3.0]}})
    assert found["b"]["under_first"] == {"mean": 2.0, "ci95": 0.0}
    assert found["a"]["score"]["mean"] == 4.0


def test_every_file_is_of_a_measurement():
    files = sorted(path.stem for path in FOLDER.glob("*.json"))
    assert set(files) <= set(ENTRIES)
    for name in files:
        assert read_record(name).shows == ENTRIES[name].shows


def test_the_list_has_every_measurement(capsys):
    reproduce.main(["--list"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ENTRIES)
    with pytest.raises(InputError, match="no such measurement"):
        reproduce.main(["nothing"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, e in ENTRIES.items() if e.tiny and not e.needs])
def test_its_commands_run(name, tmp_path):
    reproduce.main([name, "--tiny", f"--root={tmp_path}"])
    found = json.loads((tmp_path / "tiny" / "results" / f"{name}.json").read_text())
    assert found["figures"]
    assert found["shows"] == ENTRIES[name].shows
