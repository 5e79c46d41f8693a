"""Random damage to everything that a user gives: each is refused in one message, or is right.

No case takes more than 5 s of processor time, and no kind raises this process's memory by 2 GiB.
Seeds are fixed. ``COLLAPIPE_FUZZ=10000`` raises the number of cases: so many documents and options,
a fifth of it of corpora, runs and results, and a tenth of models of each kind.
"""

import json
import os
import resource
import shutil
import time
import traceback
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import ROOT, tiny_corpora, tiny_models
from support.mutations import TEXTS, mutate_bytes, mutate_json, mutate_tensors, pick

import collapipe_jax as cp
from collapipe_jax.core.errors import InputError, collect
from collapipe_jax.learning.tasks.classification import LabelledText, read_sets
from collapipe_jax.learning.tasks.corpora import TextFile
from collapipe_jax.learning.tasks.tagging import read_tagged_text
from collapipe_jax.learning.tasks.translation import read_parallel_text
from collapipe_jax.runs.config.default import KEYS
from collapipe_jax.runs.config.experiment import _check_settings
from collapipe_jax.runs.config.files import parse_overrides, read_values
from collapipe_jax.runs.config.keys import Key
from collapipe_jax.runs.documents import read_decision, read_network
from collapipe_jax.runs.results.checkpoints import Checkpoints, load_run
from collapipe_jax.runs.results.experiment import Results, Variable, open_workdir, read_summary

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_data")]

CASES = int(os.environ.get("COLLAPIPE_FUZZ", "400"))
LONGEST_S = 5.0  # of the processor: on a busy machine the clock says little
MOST_MEMORY_BYTES = 2 * 2**30
EXAMPLES = ROOT / "docs" / "examples"


def fuzz(seed, attempt, cases):
    """Attempt many cases; each returns or raises an ``InputError`` with one line, and soon."""
    refused, wrong, longest_s, before_bytes = 0, [], 0.0, peak_bytes()
    for case in range(cases):
        rng, start_s = np.random.default_rng([seed, case]), time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                attempt(rng)
        except InputError as error:
            refused += 1
            if any(len(str(one)) > 4000 or "\n" in str(one) for one in error.errors):
                wrong.append(f"case {case}: the message is long")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of Rust is no Exception
            wrong.append(f"case {case}: {traceback.format_exc(limit=-3)[-2000:]}")
        longest_s = max(longest_s, took_s := time.process_time() - start_s)
        if took_s > LONGEST_S:
            wrong.append(f"case {case}: {took_s:.1f} s")
    grown_bytes = peak_bytes() - before_bytes
    told = f"at most {longest_s:.1f} s, {grown_bytes / 2**20:.0f} MiB"
    print(f"{cases} cases, {refused} refused, {len(wrong)} wrong, {told}")
    assert not wrong, "\n".join(wrong[:10])
    assert refused > 0
    assert grown_bytes < MOST_MEMORY_BYTES


def peak_bytes():
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def test_documents(tmp_path):
    problem = read_network(EXAMPLES / "edge.network.json")
    path = tmp_path / "document.json"

    def attempt(rng):
        name = pick(rng, ("edge.network.json", "edge.decision.json"))
        path.write_bytes(mutate_json(rng, (EXAMPLES / name).read_bytes()))
        if "network" in name:
            for leaf in jax.tree.leaves(read_network(path)):
                assert np.isfinite(leaf).all()
        else:
            read_decision(path, problem)

    fuzz(1, attempt, CASES)


def keys_of(table=KEYS, prefix=""):
    for name, entry in table.items():
        yield from [prefix + name] if isinstance(entry, Key) else keys_of(entry, f"{prefix}{name}.")


def test_overrides():
    keys = [*keys_of(), "no.such", "network", "", "seed.seed"]

    def attempt(rng):
        chosen = [
            f"--config.{pick(rng, keys)}={pick(rng, TEXTS)}" for _ in range(rng.integers(1, 4))
        ]
        config, unknown = read_values(
            pick(rng, ("default", "quickstart", "paper")), parse_overrides(chosen)
        )
        with collect() as step:
            _check_settings(config, unknown, step)

    fuzz(2, attempt, CASES)


def test_corpora(tmp_path):
    tagged = Path(tiny_corpora.write_sets(tmp_path, "tagging")["train"])
    texts = {
        "pairs.txt": b"one\tun\ntwo\tdeux\n" * 5,
        "pairs.csv": b'source,target\none,un\n"two, three","deux ""x"""\n' * 3,
        "pairs.jsonl": b'{"source": "one", "target": "un"}\n' * 5,
        "tags.jsonl": b'{"tokens": ["a", "b"], "tags": ["B-x", "I-x"]}\n' * 4,
        tagged.name: tagged.read_bytes(),
        "texts.csv": b"text,label\nhello there,a\nbye,b\n" * 4,
        "texts.json": b'[{"text": "hello", "label": "a"}, {"text": "bye", "label": "b"}]',
        "texts.jsonl": b'{"text": "hello", "label": "a"}\n{"text": "bye", "label": "b"}\n' * 4,
    }

    def attempt(rng):
        name = pick(rng, list(texts))
        path = tmp_path / name
        path.write_bytes(mutate_bytes(rng, texts[name]))
        if name.startswith("pairs"):
            read_parallel_text(str(path))
        elif name.startswith("texts"):
            both = {"train": str(path), "validation": "", "test": str(path)}
            found = read_sets(**both, seed=0)
            assert isinstance(found.test[0], LabelledText)
        else:
            read_tagged_text(TextFile("task.train", str(path)))

    fuzz(3, attempt, CASES // 5)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A workdir as of a run of six rounds, with a small state."""
    config = {"seed": 0, "policy": {"name": "dssra"}, "training": {"rounds": 6}}
    path = open_workdir(tmp_path_factory.mktemp("run") / "run", config, resume=False)
    constants = {"energy_budget_j": np.ones((2, 3), np.float32)}
    with Checkpoints(path) as checkpoints:
        for step in (2, 4, 6):
            rounds = {name: np.arange(step - 2.0, step) for name in ("round", "score")}
            state = {"weights": jnp.arange(600.0) * step}
            checkpoints.save(step, state, {"history": rounds, "constants": constants})
    (path / "summary.json").write_text('{"test_loss": 1.0}\n')
    (path / "metrics.jsonl").write_text('{"round": 0}\n')
    return path


def test_run_folders(workdir, tmp_path):
    files = [path.relative_to(workdir) for path in sorted(workdir.rglob("*")) if path.is_file()]

    def attempt(rng):
        copied = Path(shutil.copytree(workdir, tmp_path / "run", dirs_exist_ok=False))
        try:
            file = copied / pick(rng, files)
            if rng.random() < 0.1:
                file.unlink()
            else:
                file.write_bytes(mutate_bytes(rng, file.read_bytes()))
            found = load_run(copied).history
            np.testing.assert_array_equal(found["round"], np.arange(6.0))
            with Checkpoints(copied) as checkpoints:
                state, _ = checkpoints.load(6, {"weights": jnp.zeros(600)})
            np.testing.assert_array_equal(state["weights"], np.arange(600.0) * 6)
            read_summary(copied)
        finally:
            shutil.rmtree(copied)

    fuzz(4, attempt, CASES // 5)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder of a model by kind, whose model has answered once."""
    folder = tmp_path_factory.mktemp("models")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts are in all sets
        found = {kind: tiny_models.write(folder, kind) for kind in tiny_models.KINDS}
    for kind in found:
        ask(found[kind], kind)
    return found


def ask(folder, kind):
    """What ``predict --json`` does with one text."""
    model = cp.load(folder)
    (said,) = model.predict([tiny_models.TEXTS[kind]])
    json.dumps(model.record(said), allow_nan=False)


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_model_folders(models, kind, tmp_path):
    """A changed weight may pass: the numbers of a prediction are finite then."""
    files = [path.name for path in sorted(models[kind].iterdir())]
    changes = {".json": mutate_json, ".safetensors": mutate_tensors}

    def attempt(rng):
        copied = Path(shutil.copytree(models[kind], tmp_path / "model"))
        try:
            file = copied / pick(rng, files)
            change = changes.get(file.suffix, mutate_bytes)
            file.write_bytes(change(rng, file.read_bytes()))
            ask(copied, kind)
        finally:
            shutil.rmtree(copied)

    fuzz(5, attempt, CASES // 10)


def test_results_of_experiments(tmp_path):
    """Settings, and a table."""
    results = Results.create(tmp_path / "whole", "race", {"clock": None}, {"seed": 0})
    results.write("runs", {"rate": Variable("run", np.arange(3.0))})
    folder = results.folder
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())

    def attempt(rng):
        copied = Path(shutil.copytree(folder, tmp_path / "run"))
        try:
            file = copied / pick(rng, files)
            file.write_bytes(mutate_bytes(rng, file.read_bytes()))
            found = Results.open(copied, "race").read("runs")
            np.testing.assert_array_equal(found["rate"], np.arange(3.0))
            json.dumps(Results.open(copied, "race").options)
        finally:
            shutil.rmtree(copied)

    fuzz(6, attempt, CASES // 5)
