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


@pytest.mark.slow
def test_a_part_runs_in_a_process_of_its_own(tmp_path):
    path = tmp_path / "gpu.json"
    gpu.main([f"--out={path}", "--parts=bert:ours", "--toy", "--limit-s=300"])
    part = json.loads(path.read_text())["parts"]["bert:ours"]
    assert part["status"] == "measured", part
    assert part["tokens_per_s"] == pytest.approx(2 * 16 / part["step_s"])
    assert part["mfu"] is None
    assert "no peak" in part["peak_source"]


def test_a_part_that_hangs_is_stopped():
    found = gpu._run("bert:ours", toy=True, limit_s=0.1)
    assert found == {"status": "stopped", "reason": "not done within 0.1 s"}


def test_a_process_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(gpu.sys, "executable", "/bin/false")
    assert gpu._run("bert:ours", toy=True, limit_s=60)["status"] == "failed"


def test_a_toy_takes_every_part_and_memory_of_two_policies():
    parts = gpu._options(["--toy", "--out=gpu.json"]).parts
    assert [name for name in parts if name.startswith("memory:")] == [
        "memory:static_pipeline",
        "memory:vanilla_fl",
    ]
    others = {name for name in gpu.PARTS if not name.startswith("memory:")}
    assert others - set(parts) == {"bert:ours_cudnn"}  # it runs on a GPU alone
    assert gpu._options(["--out=gpu.json"]).parts == list(gpu.PARTS)


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA L40S", 362.05e12),
        ("NVIDIA L40", 181.05e12),
        ("Tesla V100-SXM2-16GB", None),
        ("Tesla T4", None),
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
