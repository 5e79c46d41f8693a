"""A new task is one file and one entry: what follows is such a file, and the test enters it."""

import dataclasses
import json
from typing import ClassVar

import numpy as np
import pytest
from support import tiny_run
from support.changed_keys import changed

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.bert import BertWithHead, LabelledBatch, predict
from collapipe_jax.learning.tasks import bert_tasks
from collapipe_jax.learning.tasks.registry import TASKS
from collapipe_jax.learning.tasks.task import ScoredSet, Task, TaskData
from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.loop import train


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity(Task):
    score_name: ClassVar[str] = "right parities"
    score_key: ClassVar[str] = "parity"
    trivial_key: ClassVar[str] = "parity_guessed"
    reads: ClassVar[frozenset[str]] = frozenset({"task.labels"})
    needs: ClassVar[dict[str, str]] = {"task.labels": "Give 2"}

    @classmethod
    def make_sizes(cls, config):
        return bert_tasks.make_sizes(config)

    @classmethod
    def count_work(cls, config):
        return bert_tasks.count_work(config, pools=True)

    @classmethod
    def from_config(cls, config, corpus=None):
        train, validation, test = map(make_parities, (40, 10, 10), range(3))
        sets = {"validation": ScoredSet(validation), "test": ScoredSet(test)}
        model = BertWithHead(sizes=bert_tasks.make_sizes(config), labels=2, pools=True)
        data = TaskData(train=train, split_keys=train.labels, **sets)
        return cls(model=model, data=data)

    def score(self, params, samples):
        found = predict(self.model, params, samples.arrays)
        right = 100.0 * float(np.mean(found == samples.arrays.labels))
        return {"parity": right, "loss": self.loss(params, samples)}

    def trivial(self, samples):
        return {"parity_guessed": 50.0}


def make_parities(count, seed):
    ids = np.random.default_rng(seed).integers(4, 12, (count, 3), dtype=np.int32)
    return LabelledBatch(ids, ids[:, 0] % 2)


@pytest.fixture
def config(monkeypatch):
    monkeypatch.setitem(TASKS, "parity", Parity)
    config = changed("task.kind", "parity", tiny_run.get_config())
    config.task.update({"labels": 2, "source_length": 3})
    config.training.rounds = 2
    return config


@pytest.mark.slow
def test_a_registered_task_is_trained_priced_and_scored(config, tmp_path):
    experiment = build_experiment(config)
    record = train(experiment, tmp_path / "run").record
    assert np.isfinite(record.history["score"][-1])
    assert (record.history["train_loss"] > 0.0).all()
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["test_parity_guessed"] == 50.0
    workload = experiment.system.mean_problem.workload
    assert workload.target_bits == config.payload.token_bits


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [("task.labels", 0, "Give 2"), ("task.train", "a.tsv", "set task.kind to translation")],
)
def test_its_keys_are_checked_like_those_of_any_task(config, name, value, remedy):
    with pytest.raises(InputError, match=remedy) as caught:
        build_experiment(changed(name, value, config))
    assert caught.value.key == name


def test_a_key_of_a_new_task_is_refused_by_the_others(config, monkeypatch):
    reads = Parity.reads | {"evaluation.estimate_every_rounds"}
    monkeypatch.setattr(Parity, "reads", reads)
    other = changed("evaluation.estimate_every_rounds", 2)
    with pytest.raises(InputError, match="translation does not read it"):
        build_experiment(other)
