"""The GPU benchmark: what it writes, what it skips, and wrong options."""

import json

import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.edge.policies.registry import POLICIES
from experiments.benchmarks import gpu


def test_parts_are_written_and_skipped_when_time_is_short(tmp_path, monkeypatch):
    ran = []

    def run(name, toy, limit_s):
        ran.append(name)
        path = tmp_path / "gpu.json"
        if name == "bert:ours":  # what was measured is on file before the next part
            assert list(json.loads(path.read_text())["parts"]) == ["bert:pytorch"]
        return {"status": "measured", "device": "a card"}

    monkeypatch.setattr(gpu, "_run", run)
    parts = "bert:pytorch,bert:ours,decisions:256"
    gpu.main([f"--out={tmp_path / 'gpu.json'}", f"--parts={parts}", "--limit-s=50"])
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert ran == ["bert:pytorch", "bert:ours"]
    assert report["device"] == "a card"
    assert report["limit_s"] == 50
    assert report["versions"]["jax"]
    assert report["versions"]["python"]
    status = {name: part["status"] for name, part in report["parts"].items()}
    assert status["bert:ours"] == "measured"
    assert status["decisions:256"] == "skipped"
    assert "it takes about 60 s" in report["parts"]["decisions:256"]["reason"]


def test_bert_at_toy_size():
    found = gpu.bert(peer=False, toy=True)
    row = found["ways"]["einsum"]
    assert row["tokens_per_s"] == pytest.approx(2 * 16 / row["step_s"])
    assert row["mfu"] is None
    assert "no peak" in found["peak_source"]


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", None),
        ("cpu", None),
    ],
)
def test_peak_by_name_of_the_device(device, peak):
    assert gpu.peak_flops_per_s(device)[0] == peak


def test_every_policy_has_a_part():
    assert {f"memory:{name}" for name in POLICIES} <= set(gpu.PARTS)


def test_unknown_part_is_refused(tmp_path):
    with pytest.raises(InputError, match="--parts"):
        gpu.main([f"--out={tmp_path / 'gpu.json'}", "--parts=energy"])
