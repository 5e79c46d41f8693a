"""Folders of tiny models of every kind, as runs write them; their weights are fresh."""

from collapipe_jax.runs.config.experiment import build_experiment
from collapipe_jax.runs.training.ongoing_run import initial_run_state
from support import tiny_corpora, tiny_run

_BERT = {"task.vocabulary_size": 80, "task.source_length": 12, "model.label_smoothing": 0.0}
_CHANGES = {
    "translation": {},
    "classification": _BERT | {"task.labels": 2},
    # What the layout of BERT has no place for
    "tagging": _BERT | {"task.labels": 5, "model.head": "crf", "model.ngram_buckets": 50},
    "masked_lm": _BERT | {"task.tagged": True},
    "causal_lm": {
        "task.vocabulary_size": 300,
        "model.key_value_heads": 1,
        "model.dropout_rate": 0.0,
        "model.label_smoothing": 0.0,
    },
}
"""Of the tiny run, by the kind of task."""
_CORPORA = {"classification": "classification", "tagging": "tagging", "masked_lm": "tagging"}

KINDS = (*_CHANGES, "adapters")
TEXTS = dict.fromkeys(KINDS, "tell me of oslo please") | {"masked_lm": "we sell [MASK] in oslo"}
"""A text for a model of each kind."""


def write(folder, kind):
    """The folder of a model below another one, where adapters find their base: a classifier."""
    task, config = "classification" if kind == "adapters" else kind, tiny_run.get_config()
    config.task.kind = task
    config.update_from_flattened_dict(_CHANGES[task])
    if task in _CORPORA:
        config.task.update(tiny_corpora.write_sets(folder, _CORPORA[task]))
    if task == "masked_lm":
        config.task.test = ""
    if kind == "adapters":
        config.model.update({"pretrained": str(folder / task), "adapter_rank": 2})
    experiment = build_experiment(config)
    objective = experiment.task
    export = objective.export_adapters if kind == "adapters" else objective.export
    export(initial_run_state(experiment).learning.params, folder / kind)
    return folder / kind
