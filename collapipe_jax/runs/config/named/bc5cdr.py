"""Chemicals and diseases in PubMed abstracts (BC5CDR), over 4 clusters with DSSRA deciding.

    collapipe train --config=bc5cdr --workdir=runs/bc5cdr

A small BERT from fresh weights with hashed n-grams and a chain of tags, 4 to 8 minutes of processor
time. Test span F1 77.8, 77.7 and 77.8 with seeds 0, 1 and 2, trained in one place 77.5 with seed 0.
Remembering each word's most frequent tag gives 58.3, a linear tagger 76.6.

``bc5cdr:plain`` does without n-grams and chain. Test span F1 65.0, 64.3 and 64.3 with seeds 0, 1
and 2, trained in one place 64.0, 63.8 and 64.4.

``bc5cdr:base`` is BERT-base, as in ``clinc150:base``; it has not been trained yet either.
"""

from collapipe_jax.runs.config.default import Config
from collapipe_jax.runs.config.named import tagging
from collapipe_jax.runs.config.named.clinc150 import enlarge

VARIANTS = ("", "plain", "base")


def get_config(variant: str = "") -> Config:
    """A small BERT from scratch, with or without these features, or BERT-base."""
    config = tagging.get_config()
    config.task.update(
        {
            "train": "ner_bc5cdr/train.tsv",
            "validation": "ner_bc5cdr/devel.tsv",
            "test": "ner_bc5cdr/test.tsv",
            "labels": 5,
            # Every word that training has twice is whole; dropout teaches the pieces of others.
            "vocabulary_size": 12_000,
        }
    )
    if not variant:
        # Endings tell chemicals, as they do to a linear model; a chain keeps tags together.
        config.model.update({"ngram_buckets": 30_000, "ngram_combiner": "sqrtn"})
        config.devices.memory_share = 0.011  # of a control unit that holds this embedding
        config.model.update({"head": "crf", "label_smoothing": 0.0})
        # Fewer blocks, more dropout and decay, and an average of parameters generalise better.
        config.model.update({"encoder_blocks": 2, "dropout_rate": 0.3})
        config.training.update({"client_optimizer": "adamw", "decoder_optimizer": "adamw"})
        config.training.update({"weight_decay": 0.1, "server_average": 0.9})
        config.training.length_buckets = 3  # most sentences are half as long as a row
        config.training.embedding_rate_factor = 4.0  # of 4 clusters; better than 0 on validation
    if variant == "base":
        enlarge(config)
        config.task.source_length = 128
        config.training.warmup_steps = 80
        config.control.update({"control_unit_budget_j": 160.0, "device_budget_j": 480.0})
    return config
