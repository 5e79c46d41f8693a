import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.core.files import partial_path, read_object, remove_partials, write_text
from collapipe_jax.runs.results.checkpoints import Checkpoints, load_run
from collapipe_jax.runs.results.experiment import open_workdir

CONFIG = {
    "seed": 0,
    "policy": {"name": "static_pipeline"},
    "task": {"kind": "classification"},
    "training": {"rounds": 6, "micro_batch_choices": (1, 2)},
}
CONSTANTS = {"divergence_target": np.asarray(0.25, np.float32)}


def state(step):
    return {"weights": jnp.arange(600.0).reshape(20, 30) * step, "count": jnp.int32(step)}


def history(rounds):
    rng = np.random.default_rng(3)
    return {
        "round": np.arange(rounds, dtype=np.int32),
        "absent": np.zeros((rounds, 2), bool),
        "energy_j": rng.normal(size=(6, 2, 3)).astype(np.float32)[:rounds],
        "simulated_time_s": np.cumsum(rng.random(6))[:rounds],  # double precision
    }


def save(workdir, *steps):
    path = open_workdir(workdir, CONFIG, resume=workdir.joinpath("config.json").exists())
    with Checkpoints(path) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step), {"history": history(step), "constants": CONSTANTS})
    return path


def load(workdir):
    with Checkpoints(workdir) as checkpoints:
        step = checkpoints.latest()
        return step, *checkpoints.load(step, state(0))


def assert_is_step(found, step):
    found_step, found_state, record = found
    assert found_step == step
    jax.tree.map(np.testing.assert_array_equal, found_state, state(step))
    assert_same_record(record, step)


def assert_same_record(record, step):
    expected = {"history": history(step), "constants": CONSTANTS}
    assert jax.tree.structure(record) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(record), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A workdir with checkpoints after rounds 2, 4 and 6, of which two are left."""
    return save(tmp_path_factory.mktemp("run") / "workdir", 2, 4, 6)


@pytest.fixture
def workdir(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "workdir"))


def test_newest_comes_back_bit_for_bit_and_two_are_kept(saved):
    assert_is_step(load(saved), 6)
    assert sorted(p.name for p in (saved / "checkpoints").iterdir()) == ["4", "6"]
    assert sorted(json.loads((saved / "checksums.json").read_text())) == ["4", "6"]


def test_run_is_read_from_its_newest_checkpoint(saved):
    before = contents(saved)
    record = load_run(saved)
    assert record.policy == "static_pipeline"
    assert record.config == json.loads(json.dumps(CONFIG))
    assert_same_record({"history": record.history, "constants": record.constants}, 6)
    assert contents(saved) == before


def test_reader_leaves_a_checkpoint_that_is_being_written(workdir):
    growing = workdir / "checkpoints" / "8.orbax-checkpoint-tmp"
    shutil.copytree(workdir / "checkpoints" / "6", growing)
    before = contents(workdir)
    load_run(workdir)
    assert contents(workdir) == before


def test_same_configuration_needs_resume(workdir):
    before = contents(workdir)
    with pytest.raises(InputError, match="--resume") as told:
        open_workdir(workdir, CONFIG, resume=False)
    assert told.value.key == "workdir"
    assert open_workdir(workdir, CONFIG, resume=True) == workdir
    assert contents(workdir) == before


@pytest.mark.parametrize("resume", [False, True])
def test_other_configuration_is_refused_with_the_difference(workdir, resume):
    before = contents(workdir)
    other = CONFIG | {"training": {"rounds": 4, "micro_batch_choices": (1, 2)}}
    with pytest.raises(InputError) as told:
        open_workdir(workdir, other, resume=resume)
    assert "training.rounds is 6 there and 4 here" in str(told.value)
    with pytest.raises(InputError, match=r"training\.batch is 'nothing' there and 4 here"):
        open_workdir(
            workdir, CONFIG | {"training": CONFIG["training"] | {"batch": 4}}, resume=resume
        )
    assert contents(workdir) == before


@pytest.mark.parametrize("resume", [False, True])
def test_foreign_folder_is_left_alone(tmp_path, resume):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="no run wrote"):
        open_workdir(tmp_path, CONFIG, resume)
    assert list(contents(tmp_path)) == [Path("thesis.txt")]


def test_path_that_is_a_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, file / "below"):
        with pytest.raises(InputError) as told:
            open_workdir(path, CONFIG, False)
        assert told.value.key == "workdir"
    assert file.read_text() == "mine"


def test_killed_while_the_first_file_was_written(tmp_path):
    partial_path(tmp_path / "config.json").write_text('{"seed"')
    path = open_workdir(tmp_path, CONFIG, resume=True)
    assert read_object(path / "config.json") == json.loads(json.dumps(CONFIG))


@pytest.mark.parametrize("text", ["", '{"seed": 0', "[1]", "null", "\x00"])
def test_damaged_config_is_reported(workdir, text):
    (workdir / "config.json").write_text(text)
    before = contents(workdir)
    with pytest.raises(InputError, match=r"config\.json is damaged"):
        load_run(workdir)
    with pytest.raises(InputError, match=r"config\.json is damaged"):
        open_workdir(workdir, CONFIG, resume=True)
    assert contents(workdir) == before


def test_load_run_where_there_is_none(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(InputError, match="holds no run"):
            load_run(path)
    assert not list(tmp_path.iterdir())
    open_workdir(tmp_path, CONFIG, resume=False)
    before = contents(tmp_path)
    with pytest.raises(InputError, match="no checkpoint yet"):
        load_run(tmp_path)
    assert contents(tmp_path) == before


def damages(file):
    data = file.read_bytes()
    yield data[: len(data) // 2]
    yield data[:-1]
    yield b""
    middle = len(data) // 2
    yield data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def test_every_damaged_file_is_found_and_nothing_is_touched(workdir, capfd):
    newest = workdir / "checkpoints" / "6"
    files = [file for file in sorted(newest.rglob("*")) if file.is_file()]
    assert len(files) > 8
    for file in files:
        whole = file.read_bytes()
        for damaged in damages(file):
            file.write_bytes(damaged)
            before = contents(workdir)
            for read in (load, load_run):
                with pytest.raises(InputError, match="go on from the checkpoint before") as told:
                    read(workdir)
                assert str(file.relative_to(newest)) in str(told.value)
            assert contents(workdir) == before
        file.write_bytes(whole)
    assert_is_step(load(workdir), 6)
    assert capfd.readouterr().err == ""


def test_lost_and_added_files_are_found(workdir):
    file = next((workdir / "checkpoints" / "6" / "state" / "d").iterdir())
    file.rename(file.with_name("renamed"))
    with pytest.raises(InputError, match="is damaged"):
        load(workdir)


def test_remedy_helps(workdir):
    (workdir / "checkpoints" / "6" / "state" / "manifest.ocdbt").write_bytes(b"")
    with pytest.raises(InputError, match="Delete this folder"):
        load(workdir)
    shutil.rmtree(workdir / "checkpoints" / "6")
    assert_is_step(load(workdir), 4)
    save(workdir, 6)
    assert_is_step(load(workdir), 6)


def test_damaged_digests_are_reported(workdir):
    (workdir / "checksums.json").write_text("{")
    with pytest.raises(InputError, match=r"checksums\.json"):
        load(workdir)
    (workdir / "checksums.json").unlink()
    assert_is_step(load(workdir), 6)


def test_an_older_checkpoint_that_orbax_cannot_read_is_named(workdir):
    (workdir / "checkpoints" / "4" / "_CHECKPOINT_METADATA").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"checkpoints/4.*METADATA is damaged. Delete this"):
        load(workdir)
    shutil.rmtree(workdir / "checkpoints" / "4")
    assert_is_step(load(workdir), 6)


def test_killed_between_checkpoint_and_digest(workdir):
    digests = json.loads((workdir / "checksums.json").read_text())
    del digests["6"]
    (workdir / "checksums.json").write_text(json.dumps(digests))
    assert_is_step(load(workdir), 6)


def test_digests_of_a_deleted_checkpoint_are_forgotten(workdir, monkeypatch):
    shutil.rmtree(workdir / "checkpoints" / "6")
    with monkeypatch.context() as patch:
        whole = Checkpoints._keep_digests
        patch.setattr(
            Checkpoints, "_keep_digests", lambda own, new: killed() if new else whole(own, new)
        )
        with pytest.raises(KeyboardInterrupt):
            save(workdir, 6)
    assert_is_step(load(workdir), 6)


def killed(*_):
    raise KeyboardInterrupt


def test_killed_before_the_rename_leaves_the_one_before(workdir):
    """Orbax writes beside and renames: whatever stands beside is swept, never read."""
    folder = workdir / "checkpoints"
    (folder / "6").rename(folder / "6.orbax-checkpoint-tmp")
    (folder / "6.orbax-checkpoint-tmp" / "state" / "manifest.ocdbt").write_bytes(b"")
    assert_is_step(load(workdir), 4)
    save(workdir, 6)
    assert sorted(p.name for p in folder.iterdir()) == ["4", "6"]
    assert_is_step(load(workdir), 6)


def test_text_is_written_at_once_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_text(path, "old\n")

    monkeypatch.setattr("os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new\n")
    assert path.read_text() == "old\n"


@pytest.mark.parametrize("name", ["movie.mkv.partial", "Gemfile.lock"])
def test_files_that_only_end_like_ours_are_foreign_and_stay(name, tmp_path):
    (tmp_path / name).write_text("a user's")
    remove_partials(tmp_path)
    with pytest.raises(InputError, match="holds files that no run wrote"):
        open_workdir(tmp_path, CONFIG, resume=False)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    ours = partial_path(tmp_path / "x")
    ours.write_text("half")
    remove_partials(tmp_path)
    assert not ours.exists()
