"""What a GPU does in a few minutes: decisions, training of BERT-base, runs in a batch, memory.

    python -m experiments.benchmarks.gpu --out=gpu.json --limit-s=420
    python -m experiments.benchmarks.gpu --out=toy.json --toy

Parts run in the order of their worth, each in a process of its own, so that its peak of memory
is its own. A part whose expected seconds are not left is skipped, and one that takes thrice
as long is stopped; both are recorded with the reason. The file is written anew after each
part. Compiled programs are not read from file, so times of compilation are whole. PyTorch and
transformers are optional: without them their part says so.

``--toy`` proves on a CPU that the parts run: at tiny sizes, by programs that are compiled quickly
and read from file, and memory of two policies. A part may take all the time that is left.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from collapipe_jax.cli.options import make_parser, run_training
from collapipe_jax.core.compilation import CACHE_VARIABLE, QUICK_OPTIONS, keep_compiled_programs
from collapipe_jax.core.errors import InputError, require_positive
from collapipe_jax.core.files import write_json
from collapipe_jax.edge.policies.registry import POLICIES
from collapipe_jax.edge.solver.joint_search import SearchConfig
from collapipe_jax.learning.models.config import BertConfig
from collapipe_jax.runs.config.experiment import Experiment, build_experiment
from collapipe_jax.runs.config.named import quickstart
from collapipe_jax.runs.training.learning_rounds import LearningRounds, Rounds
from collapipe_jax.runs.training.loop import round_inputs
from collapipe_jax.runs.training.network_ahead import NetworkAhead
from collapipe_jax.runs.training.ongoing_run import initial_run_state, learning_place
from experiments.benchmarks import adapters, learning
from experiments.benchmarks.solver.networks import LARGE_SHAPE, NetworkShape, sample_problems
from experiments.benchmarks.solver.speed import time_dssra
from experiments.benchmarks.timing import timed
from experiments.results.record import git

PEAK_FLOPS_PER_S: dict[str, float | None] = {
    "B200": 2250e12,
    "H200 NVL": None,
    "H200": 989.4e12,
    "H100 NVL": None,
    "H100 PCIe": 756e12,
    "H100": 989.4e12,
    "A100": 312e12,
    "A40": 149.7e12,
    "A10": 125e12,
    "L40S": 362.05e12,
    "L40": 181.05e12,
    "L4": 121e12,
}
"""Dense products of bfloat16, from NVIDIA's data sheets, by words of the device's name.

Half of the figure with sparsity, which most sheets print. The first that fits counts. None: a
slower card of the name that follows. V100 and T4 have no units for bfloat16."""

_ENVIRONMENT = {
    CACHE_VARIABLE: "off",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "torch", "transformers", "peft")
_TOY_SEARCH = SearchConfig(allocation_steps=(2, 2), candidates=2, cluster_candidates=2, starts=1)
_ON_GPU_ALONE = "bert:ours_cudnn"
_TOY_POLICIES = ("static_pipeline", "vanilla_fl")
_TOY_S = 20.0  # of a part


class Part(NamedTuple):
    """A measurement, and the seconds that it is expected to take on a GPU."""

    measure: Callable[[bool], dict[str, Any]]  # of whether it is a toy
    gpu_s: float


def decisions(batch: int, toy: bool) -> dict[str, Any]:
    """Decisions a second of ``dssra``, so many networks at a time, and seconds to compile it."""
    shape, search = LARGE_SHAPE, SearchConfig()
    if toy:
        batch, shape, search = 4, NetworkShape(2, 2, 4), _TOY_SEARCH
    figures, _ = time_dssra(sample_problems(0, batch, shape), batch, search)
    return {"shape": shape._asdict(), "batch": batch, **figures}


def bert(way: str, toy: bool) -> dict[str, Any]:
    """Tokens a second and MFU of a training step of BERT in 16 bits.

    The ``way`` is an attention of ours, or PyTorch as it is ("eager") or "compiled".
    """
    sizes = {"width": 768, "heads": 12, "feed_forward_width": 3072, "encoder_blocks": 12}
    batch, sequence, repeats, vocabulary = 64, 128, 10, 30_522
    if toy:
        sizes = {"width": 32, "heads": 2, "feed_forward_width": 64, "encoder_blocks": 2}
        batch, sequence, repeats, vocabulary = 2, 16, 2, 100
    config = BertConfig(
        **sizes, vocabulary_size=vocabulary, dropout_rate=0.0, compute_dtype="bfloat16"
    )
    if way in ("eager", "compiled"):
        compiled = way == "compiled"
        row = learning.peer_in_16_bits(config, batch, sequence, repeats, compiled)
    else:
        config = dataclasses.replace(config, attention=way)
        row = {"attention": way, **learning.in_16_bits(config, batch, sequence, repeats)}
    peak, source = peak_flops_per_s(jax.devices()[0].device_kind)
    return {
        **sizes,
        "batch": batch,
        "sequence": sequence,
        **row,
        "peak_flops_per_s": peak,
        "peak_source": source,
        "mfu": peak and row["model_flops_per_s"] / peak,
    }


def lora(way: str, toy: bool) -> dict[str, Any]:
    """Tokens a second of LoRA on SmolLM2-135M in 16 bits, by "ours" or by "peft"."""
    config, batch, sequence, repeats = adapters.SMOLLM2, 16, 512, 10
    if toy:
        sizes = {"width": 32, "heads": 2, "head_size": 16, "key_value_heads": 1}
        sizes |= {"feed_forward_width": 64, "encoder_blocks": 2, "vocabulary_size": 100}
        config, batch, sequence, repeats = dataclasses.replace(config, **sizes), 2, 16, 2
    measure = adapters.in_16_bits if way == "ours" else adapters.peer_in_16_bits
    row = measure(config, batch, sequence, repeats)
    return {"blocks": config.encoder_blocks, "batch": batch, "sequence": sequence, **row}


def peak_flops_per_s(device: str) -> tuple[float | None, str]:
    """Peak of a device's products of bfloat16, or None, and why."""
    words = device.replace("-", " ").split()
    if "MIG" in words:
        return None, f"{device} is a part of a card"
    for name, peak in PEAK_FLOPS_PER_S.items():
        if all(word in words for word in name.split()):
            if peak is None:
                break
            return peak, f"data sheet of {name}, dense bfloat16"
    return None, f"no peak of bfloat16 is known of {device}"


def together(toy: bool) -> dict[str, Any]:
    """64 runs of ``quickstart`` in a batch against some of them one after another.

    Sixteen rounds of learning of each; networks are decided before, on the CPU.
    """
    runs, alone, rounds = (2, 1, 2) if toy else (64, 4, 16)
    experiments: list[Experiment] = []
    for seed in range(runs):
        config = quickstart()
        # One corpus for all, and samples, networks and weights of every run's seed.
        config.update({"seed": seed})
        config.task.seed = 0
        config.policy.name = "static_pipeline"
        if toy:
            config.task.update({"pairs": 400, "validation_pairs": 20, "test_pairs": 20})
            config.model.update({"width": 16, "heads": 2, "feed_forward_width": 32})
        experiments.append(build_experiment(config, like=experiments[:1]))
    print(f"  {runs} runs are built", flush=True)
    batch_compile_s, batch_s = _learn(experiments, rounds)
    compile_s, alone_s = 0.0, []
    for experiment in experiments[:alone]:
        first_s, run_s = _learn([experiment], rounds)
        compile_s = compile_s or first_s - run_s
        alone_s.append(run_s)
    return {
        "runs": runs,
        "rounds": rounds,
        "together_s": batch_s,
        "together_first_s": batch_compile_s,
        "alone_s": alone_s,
        "alone_compile_s": compile_s,
        "together_over_alone": batch_s / (runs * float(np.mean(alone_s))),
    }


def _learn(experiments: Sequence[Experiment], rounds: int) -> tuple[float, float]:
    """Seconds of the first call, which compiles, and of the next one."""
    work, inputs, _ = _prepare(experiments, rounds)
    first_s, _ = timed(lambda: work.advance(inputs))
    return first_s, timed(lambda: work.advance(inputs))[0]


def _prepare(
    experiments: Sequence[Experiment], rounds: int
) -> tuple[LearningRounds, list[Rounds], list]:
    """Learning of runs on the device, what they learn from, and their networks' rounds."""
    learners = [experiment.learner for experiment in experiments]
    states = [initial_run_state(experiment) for experiment in experiments]
    ahead = NetworkAhead(experiments, [one.system for one in states], [0] * len(states))
    happened = [[record for _, record in own] for own in ahead.take([rounds] * len(states))]
    every = zip(experiments, learners, happened, strict=True)
    inputs = [round_inputs(one, learner, 0, own) for one, learner, own in every]
    place = learning_place(experiments[0])
    work = LearningRounds(learners, [one.learning for one in states], place)
    return work, inputs, happened


def memory(policy: str, toy: bool) -> dict[str, Any]:
    """Peak memory of a round of training by a policy, an encoder of BERT-base's size.

    The device computes for all clusters or clients: its peak stands beside the sum of formula
    (15) over the simulated devices, and the largest of them.
    """
    config = quickstart()
    config.network.update({"clusters": 2, "devices": 3})
    sizes = {"width": 768, "heads": 12, "feed_forward_width": 3072, "encoder_blocks": 12}
    if toy:
        sizes = {"width": 16, "heads": 2, "feed_forward_width": 32, "encoder_blocks": 3}
    config.model.update(sizes)
    config.task.update({"pairs": 1000, "validation_pairs": 20, "test_pairs": 20})
    config.policy.name = policy
    # Every network can do the work: only the program matters.
    config.devices.memory_share = 1.0
    config.control.update({"control_unit_budget_j": 1e6, "device_budget_j": 1e6})
    experiment = build_experiment(config)
    work, inputs, happened = _prepare([experiment], 1)
    compile_s, compiled = timed(lambda: work.lower(inputs).compile())
    laid_out = compiled.memory_analysis()
    del compiled
    work.advance(inputs)
    stats = jax.devices()[0].memory_stats() or {}
    cost = happened[0][0].cost
    needs = [np.asarray(cost.memory_bytes)]
    if cost.control_unit_memory_bytes is not None:
        needs.append(np.asarray(cost.control_unit_memory_bytes))
    names = ("argument", "output", "temp", "alias")
    return {
        **sizes,
        "peak_bytes": stats.get("peak_bytes_in_use"),
        "peak_reason": None if stats else "the device has no memory_stats()",
        "laid_out_bytes": {name: getattr(laid_out, f"{name}_size_in_bytes") for name in names},
        "predicted_sum_bytes": float(sum(each.sum() for each in needs)),
        "predicted_largest_bytes": float(max(each.max() for each in needs)),
        "compile_s": compile_s,
    }


def _parts() -> dict[str, Part]:
    """All parts by name, most wanted first; a policy of every way of learning before others."""
    parts = {
        "decisions:256": Part(lambda toy: decisions(256, toy), 60),
        "bert:ours": Part(lambda toy: bert("einsum", toy), 30),
        "bert:pytorch": Part(lambda toy: bert("eager", toy), 30),
        _ON_GPU_ALONE: Part(lambda toy: bert("cudnn", toy), 30),
        "bert:pytorch_compiled": Part(lambda toy: bert("compiled", toy), 45),
        "lora:ours": Part(lambda toy: lora("ours", toy), 30),
        "lora:peft": Part(lambda toy: lora("peft", toy), 30),
        "together": Part(together, 80),
        "decisions:4096": Part(lambda toy: decisions(4096, toy), 60),
    }
    first = ["static_pipeline", "vanilla_fl", "splitfed", "control_unit_fl", "hierarchical_fl"]
    policies = first + [name for name in POLICIES if name not in first]
    for name in policies:
        parts[f"memory:{name}"] = Part(lambda toy, name=name: memory(name, toy), 50)
    # It takes longest.
    parts["decisions:16384"] = Part(lambda toy: decisions(16384, toy), 75)
    return parts


PARTS = _parts()


def main(argv: Sequence[str]) -> None:
    """Measure the parts that fit, and write what came out after each."""
    options = _options(argv)
    if options.part:  # in a process of its own
        if options.toy:
            keep_compiled_programs()
        found = {"device": jax.devices()[0].device_kind} | PARTS[options.part].measure(options.toy)
        write_json(Path(options.out), found)
        return
    console, start_s = Console(), time.perf_counter()
    report: dict[str, Any] = {
        "device": None,
        "limit_s": options.limit_s,
        "toy": options.toy,
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in _PACKAGES},
        "commit": git("rev-parse", "HEAD"),
        "parts": {},
    }
    for name in options.parts:
        left_s = options.limit_s - (time.perf_counter() - start_s)
        part = PARTS[name]
        needs_s = _TOY_S if options.toy else part.gpu_s
        if left_s < needs_s:
            reason = f"{left_s:.0f} s are left, and it takes about {needs_s:.0f} s"
            result: dict[str, Any] = {"status": "skipped", "reason": reason}
        else:
            console.print(f"{name} ...")
            # A part that hangs leaves time for the others. A CPU may be busy with other work.
            most_s = left_s if options.toy else min(left_s, 3 * needs_s)
            part_s, result = timed(lambda name=name, most_s=most_s: _run(name, options.toy, most_s))
            result["seconds"] = part_s
            report["device"] = report["device"] or result.get("device")
        report["parts"][name] = result
        report["seconds"] = time.perf_counter() - start_s
        write_json(Path(options.out), report)
        words = result.get("reason") or f"{result['seconds']:.1f} s"
        console.print(f"{name}: {result['status']}, {words}", markup=False)
    console.print(f"written: {options.out}")


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(
        __doc__,
        "out",
        limit_s=(420.0, "seconds in all"),
        parts=(None, "names, with commas (default: all; as a toy, memory of two policies)"),
        part=(None, "measure this one in this process"),
    )
    parser.add_argument("--toy", action="store_true", help="sizes for a CPU")
    options = parser.parse_args(argv)
    require_positive(limit_s=options.limit_s)
    options.parts = options.parts.split(",") if options.parts else _default_parts(options.toy)
    for name in [*options.parts, *([options.part] if options.part else [])]:
        if name not in PARTS:
            raise InputError("--parts", name, "is unknown", f"Choose among {', '.join(PARTS)}")
    return options


def _default_parts(toy: bool) -> list[str]:
    other = {f"memory:{policy}" for policy in POLICIES if policy not in _TOY_POLICIES}
    other.add(_ON_GPU_ALONE)
    return [name for name in PARTS if not (toy and name in other)]


def _run(name: str, toy: bool, limit_s: float) -> dict[str, Any]:
    """A part in a process of its own: its figures, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.json"
        command = [sys.executable, "-m", "experiments.benchmarks.gpu", f"--out={path}"]
        command += [f"--part={name}", *(["--toy"] if toy else [])]
        try:
            done = subprocess.run(
                command,
                env=os.environ | (_toy_environment() if toy else _ENVIRONMENT),
                stderr=subprocess.PIPE,
                text=True,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            return {"status": "stopped", "reason": f"not done within {limit_s:.3g} s"}
        if done.returncode:
            return {"status": "failed", "reason": done.stderr.strip()[-2000:]}
        return {"status": "measured"} | json.loads(path.read_text())


def _toy_environment() -> dict[str, str]:
    """XLA compiles quickly. It reads later flags last: they win over flags of the user."""
    flags = [f"--{name}={str(value).lower()}" for name, value in QUICK_OPTIONS.items()]
    return {"XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *flags])}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    raise SystemExit(run_training(main))
