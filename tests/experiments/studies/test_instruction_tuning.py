"""The study of answers: three ways of LoRA on the same exchanges."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from support import tiny_models

from collapipe_jax.core.files import read_object
from collapipe_jax.runs.training.ongoing_run import initial_params
from experiments.studies import instruction_tuning

RATE, HEAD_RATE = 1e-2, 1e-3


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """Options of the study: a tiny model, 40 exchanges and few rounds."""
    folder = tmp_path_factory.mktemp("answers")
    model, data = tiny_models.write(folder, "causal_lm"), folder / "sums.jsonl"
    with data.open("w") as file:
        for number in range(40):
            row = {"question": f"what is {number} + 1", "answer": f"it is {number + 1}"}
            file.write(json.dumps(row) + "\n")
    keys = {
        "training.rounds": 2,
        "training.batch": 2,
        "training.local_steps": 1,
        "training.warmup_steps": 0,
        "training.client_learning_rate": RATE,
        "training.decoder_learning_rate": HEAD_RATE,
        "network.clusters": 2,
        "network.devices": 2,
    }
    options = {"model": model, "data": data, "test": data, "workdir": folder / "run"}
    return [
        *(f"--{name}={value}" for name, value in options.items()),
        *(f"--config.{key}={value}" for key, value in keys.items()),
    ]


@pytest.mark.slow
def test_in_one_place_every_part_keeps_its_rate(arguments):
    """Adam's first step is as long as the rate, for all numbers with a gradient."""
    experiment = instruction_tuning.read_experiment([*arguments, "--config.training.rounds=1"])
    start = jax.tree.map(np.array, initial_params(experiment))
    after = instruction_tuning.train_in_one_place(experiment, start)
    moved = jax.tree.map(lambda one, other: float(np.abs(one - other).max()), after, start)
    assert moved["decoder"]["word"] == pytest.approx(HEAD_RATE, rel=0.01)
    layers = moved["encoder"]["attention"]["query"]
    assert layers["lora_b"] == pytest.approx(RATE, rel=0.01)
    assert layers["kernel"] == moved["embedding"]["word"] == 0.0


def test_three_ways_learn_alike(arguments, peers, capfd):
    """In one place as by `peft`, but for rounding, which also reads the adapters of the run."""
    pytest.importorskip("peft", reason='pip install -e ".[bench]"')
    instruction_tuning.main(arguments)
    (folder,) = (text.partition("=")[2] for text in arguments if text.startswith("--workdir"))
    losses = read_object(Path(folder, "answers.json"))
    assert losses["one place"] == pytest.approx(losses["peft"], rel=1e-4)
    assert losses["collaborative"] == pytest.approx(losses["peft"], rel=0.01)
    assert losses["peft"] < losses["before"]
    assert "equal_tokens" in capfd.readouterr().out
