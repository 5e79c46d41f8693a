"""Tiny trained models below tests/data, and what `transformers` computes with them.

The texts are invented. To train them anew and note the logits, where `transformers` and `torch`
are installed, from the folder tests:

    python -c "from support import tiny_predictors; tiny_predictors.write_golden()"
"""

import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np

from support import GOLDEN, tiny_corpora, tiny_run

LABELS = {"tagging": 5, "classification": 2}
FOLDERS = {kind: GOLDEN / f"{kind}_tiny" for kind in LABELS}
MODELS = {
    "tagging": "AutoModelForTokenClassification",
    "classification": "AutoModelForSequenceClassification",
}
TEXTS = {
    "classification": [
        "tell me of oslo please",
        "Tell me of ZINC, please!",
        "please tell me of lead, gold and quito [SEP] now",
        "caf\u00e9 \u6f22\u5b57",
        "lima " * 20,  # too long for the model
        "",
    ],
    # in words, with a space between
    "tagging": [
        "we sell zinc iron in oslo",
        "gold lead in cairo , and [SEP] lima .",
        "quito",
    ],
}


def get_config(kind, folder):
    """A run of 20 rounds on invented texts in a folder, whose labels are then learnt."""
    config = tiny_run.get_config()
    config.task.update({"kind": kind, "labels": LABELS[kind]})
    config.task.update({"vocabulary_size": 80, "source_length": 12})
    config.task.update(tiny_corpora.write_sets(folder, kind))
    config.dynamics.availability = 1.0
    config.training.update({"rounds": 20, "batch": 8, "schedule": "constant"})
    config.training.update({"client_learning_rate": 3e-3, "decoder_learning_rate": 3e-3})
    config.evaluation.every_rounds = 10
    config.checkpoint_every_rounds = 20
    return config


def peers_logits(transformers, kind):
    """Logits ``[n, S, labels]`` or ``[n, labels]`` by `transformers`, with the ids ``[n, S]``."""
    import torch

    folder = FOLDERS[kind]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, MODELS[kind]).from_pretrained(folder).eval()
    rows = tokenizer(TEXTS[kind], padding="max_length", truncation=True, return_tensors="pt")
    with torch.no_grad():
        return model(**rows).logits.numpy(), rows["input_ids"].numpy()


def write_golden():
    """Train both models, and note what `transformers` computes."""
    import transformers

    from collapipe_jax.runs.config.experiment import build_experiment
    from collapipe_jax.runs.training.loop import train

    for kind, folder in FOLDERS.items():
        with tempfile.TemporaryDirectory() as name:
            train(build_experiment(get_config(kind, Path(name))), Path(name) / "run")
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(Path(name) / "run" / "model", folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logits, token_ids = peers_logits(transformers, kind)
        np.savez(folder / "expected.npz", logits=logits, token_ids=token_ids)
