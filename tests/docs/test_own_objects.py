"""The objects of one's own in the how-to guides, from a package outside of the repository."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from support import ROOT

_GUIDES = ROOT / "docs" / "how-to"
_MOST_LINES = {"own-policy.md": 15, "own-path-loss.md": 5, "own-task.md": 40}
_SHORT = (
    "--config.training.rounds=2 --config.training.warmup_steps=2 --config.model.encoder_blocks=2 "
    "--config.task.pairs=400 --config.task.validation_pairs=10 --config.task.test_pairs=10"
)


@pytest.fixture
def guide(tmp_path):
    """Write the package of a guide as it is printed, and return its commands."""

    def follow(name):
        text = (_GUIDES / name).read_text(encoding="utf-8")
        (tmp_path / "my_package").mkdir()
        (tmp_path / "my_package" / "__init__.py").touch()
        printed = r"`(my_package/\w+\.py)`[^`]*:\n\n```python\n(.*?)```"
        ((path, code),) = re.findall(printed, text, re.DOTALL)
        assert len(code.splitlines()) <= _MOST_LINES[name]
        (tmp_path / path).write_text(code, encoding="utf-8")
        (block,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        return block.replace("\\\n", " ").splitlines()

    return follow


@pytest.fixture
def run(tmp_path):
    """Run a command in the folder that holds the package."""

    def call(line):
        program, *arguments = line.split()
        assert program == "collapipe"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "COLLAPIPE_CACHE": "off"}
        command = [sys.executable, "-m", "collapipe_jax", *arguments]
        found = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    return call


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_policy(guide, run, tmp_path):
    compare, train = guide("own-policy.md")
    run(compare)
    policies = read_json(tmp_path / "runs/mine/summary.json")["policies"]
    own = policies["my_package.policies:fastest_first"]
    assert own["latency_s"]["mean"] != policies["static_pipeline"]["latency_s"]["mean"]
    assert own["violations"]["memory"] == 0
    run(f"{train} {_SHORT}")
    rows = (tmp_path / "runs/trained/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 2


@pytest.mark.slow
def test_a_path_loss_law(guide, run, tmp_path):
    sample, plan = guide("own-path-loss.md")
    losses_db = []
    for law in ("my_package.radio:measured", "macro_2ghz"):
        law = f"--config.propagation.d2e_path_loss={law}"
        run(f"{sample} --config.propagation.d2e_shadowing_db=0.0 {law}")
        gain = np.array(read_json(tmp_path / "network.json")["radio"]["d2e_gain"])
        losses_db.append(-10 * np.log10(gain))
    own_db, other_db = losses_db
    # The default is 15.3 + 37.6 log10(d) at d metres; nodes are 35 to 600 m away.
    least_db, most_db = 23.2 - 5.6 * np.log10([600, 35])
    assert np.all((own_db - other_db > least_db) & (own_db - other_db < most_db + 1e-3))
    run(sample)
    run(plan)
    assert (tmp_path / "decision.json").exists()


@pytest.mark.slow
def test_a_task(guide, run, tmp_path):
    (train,) = guide("own-task.md")
    rng = np.random.default_rng(0)
    for name, count in (("train", 600), ("validation", 50), ("test", 50)):
        lines = []
        for digit in rng.integers(0, 10, count):
            label = rng.integers(2)
            lines.append(f"{label}\t{'euros' if label else 'trains'} {digit}\n")
        (tmp_path / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    run(train)
    summary = read_json(tmp_path / "runs/bytes/summary.json")
    assert summary["test_accuracy"] > 90 > summary["test_zeros"]
