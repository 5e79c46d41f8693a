"""Checkpoints of what the layout of BERT cannot express: n-grams, pooled means, chains of tags."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import GOLDEN
from support.leaves_close import assert_same

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.bert_files import (
    label_settings,
    load_bert,
    load_labelling_bert,
    save_bert,
)
from collapipe_jax.learning.models.layers import init_linear

BERT = GOLDEN / "bert_tiny"


def extended():
    """A checkpoint with all that the layout has no place for: n-grams, and pairs of tags."""
    config, params = load_bert(BERT)
    ngrams = {"ngram_buckets": 7, "word_ngrams": 2, "ngram_combiner": "sqrtn"}
    config = dataclasses.replace(config, **ngrams)
    rng = np.random.default_rng(3)
    tables = params["embedding"] | {"ngram": jnp.asarray(rng.normal(size=(7, 16)), jnp.float32)}
    head = init_linear(jax.random.key(1), 16, 3, config)
    chain = jnp.asarray(rng.normal(size=(3, 3)), jnp.float32)
    body = {"embedding": tables, "encoder": params["encoder"]}
    return config, body, {"head": head, "transitions": chain}


def test_what_the_layout_cannot_express_goes_out_and_comes_back(tmp_path):
    config, body, head = extended()
    settings = label_settings(("O", "B-x", "I-x"), pools=False, head="crf")
    save_bert(tmp_path, config, body | head, settings)
    found = load_labelling_bert(tmp_path)
    assert (found.sizes, found.pooling, found.head) == (config, "first", "crf")
    assert_same(found.params, body | head)
    assert_same(load_bert(tmp_path)[1], body)
    document = json.loads((tmp_path / "config.json").read_text())
    assert document["model_type"] == "collapipe_bert"
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"config.json", "collapipe_bert.safetensors"}
    path = tmp_path / "config.json"
    wrong = {
        "collapipe_head": ("tree", "is unknown"),
        "collapipe_word_ngrams": (99, "is no length"),
    }
    for key, (value, told) in wrong.items():
        path.write_text(json.dumps(document | {key: value}))
        with pytest.raises(InputError, match=f"{key} = {value!r}: {told}"):
            load_labelling_bert(tmp_path)


def test_a_mean_and_impossible_pairs(tmp_path):
    """The mean changes logits, so it is not BERT's; without it the tensors of "bio" are."""
    config, params = load_bert(BERT)
    head = {"head": init_linear(jax.random.key(1), 16, 2, config)}
    settings = label_settings(("a", "b"), pools=True, pooling="mean")
    save_bert(tmp_path / "mean", config, params | head, settings)
    assert load_labelling_bert(tmp_path / "mean").pooling == "mean"
    assert (tmp_path / "mean/collapipe_bert.safetensors").exists()
    del params["pooler"]
    save_bert(
        tmp_path / "bio", config, params | head, label_settings("ab", pools=False, head="bio")
    )
    assert load_labelling_bert(tmp_path / "bio").head == "bio"
    assert json.loads((tmp_path / "bio/config.json").read_text())["model_type"] == "bert"
    assert (tmp_path / "bio/model.safetensors").exists()


@pytest.mark.parametrize("name", ["AutoModelForTokenClassification", "BertModel"])
def test_other_programs_refuse_what_they_cannot_express(peers, tmp_path, name):
    config, body, head = extended()
    settings = label_settings(("O", "B-x", "I-x"), pools=False, head="crf")
    save_bert(tmp_path, config, body | head, settings)
    with pytest.raises((OSError, ValueError)):
        getattr(peers[1], name).from_pretrained(tmp_path)
