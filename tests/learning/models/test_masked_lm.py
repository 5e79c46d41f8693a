"""BERT's masked language model against PyTorch, and what the head reads.

tests/data/bert_tiny/masked_lm.npz holds what `BertForMaskedLM` of `transformers` computes with the
checkpoint there and the head below. To write it anew, from the folder tests:

    python -c "import models.test_masked_lm as test; test.write_golden()"
"""

import functools
import json
import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import GOLDEN

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.bert import (
    UNLABELLED,
    MaskedBatch,
    MaskedBert,
    init_masked_lm_head,
    predict_pieces,
)
from collapipe_jax.learning.models.bert_files import (
    MASKED_LM_SETTINGS,
    load_bert,
    load_masked_bert,
    save_bert,
)
from collapipe_jax.learning.models.split_model import example_losses

GOLDEN = GOLDEN / "bert_tiny"
STORED = GOLDEN / "masked_lm.npz"
IDS = np.array([[2, 36, 4, 33, 4, 15, 3, 30, 20, 3], [2, 9, 4, 11, 25, 3] + [0] * 4], np.int32)
POSITIONS = np.array([[2, 4, 8], [2, 0, 0]], np.int32)
LABELS = np.array([[5, 36, 20], [3, UNLABELLED, UNLABELLED]], np.int32)
EVERYWHERE = np.broadcast_to(np.arange(10), IDS.shape)


@functools.cache
def model_and_params():
    """The stored BERT with a head whose biases and norm are away from where they start."""
    config, params = load_bert(GOLDEN)
    del params["pooler"]
    head = init_masked_lm_head(jax.random.key(5), config)
    # NumPy's generator gives the same numbers everywhere.
    rng = np.random.default_rng(5)
    head = jax.tree.map(
        lambda leaf: jnp.asarray(leaf * 0 + rng.normal(0.3, 0.4, leaf.shape), jnp.float32), head
    )
    return MaskedBert(sizes=config), params, head


def write_golden():
    """Note what PyTorch computes."""
    import torch
    import transformers

    np.savez(STORED, logits=peers_logits(torch, transformers))


def peers_logits(torch, transformers):
    """Logits ``[n, S, V]`` of `transformers`, from what we write."""
    model, params, head = model_and_params()
    with tempfile.TemporaryDirectory() as folder:
        save_bert(folder, model.sizes, params | head, MASKED_LM_SETTINGS)
        auto = transformers.AutoModelForMaskedLM
        peer, report = auto.from_pretrained(folder, output_loading_info=True)
    assert type(peer).__name__ == "BertForMaskedLM"
    assert not any(report.values())
    ids, mask = torch.tensor(IDS), torch.tensor((IDS != 0).astype(int))
    with torch.no_grad():
        return peer.eval()(input_ids=ids, attention_mask=mask).logits.numpy()


def ours():
    model, params, head = model_and_params()
    batch = MaskedBatch(jnp.asarray(IDS), jnp.asarray(EVERYWHERE), jnp.asarray(IDS))
    return np.asarray(predict_pieces(model, params | {"decoder": head}, batch))


def test_logits_are_those_that_pytorch_computed():
    with np.load(STORED) as golden:
        real = IDS != 0
        np.testing.assert_allclose(ours()[real], golden["logits"][real], rtol=2e-5, atol=2e-5)


def test_the_stored_logits_are_still_pytorchs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
        found = peers_logits(torch, transformers)
    with np.load(STORED) as golden:
        np.testing.assert_allclose(found, golden["logits"], atol=1e-5)


def test_the_loss_is_that_of_the_hidden_pieces_alone():
    model, params, head = model_and_params()
    batch = MaskedBatch(*map(jnp.asarray, (IDS, POSITIONS, LABELS)))
    losses, counts = jax.jit(example_losses, static_argnums=0)(
        model, params | {"decoder": head}, batch
    )
    log_p = np.asarray(jax.nn.log_softmax(ours()))
    expected = [-sum(log_p[0, p, y] for p, y in zip((2, 4, 8), (5, 36, 20), strict=True))]
    expected.append(-log_p[1, 2, 3])
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert counts.tolist() == [3, 1]


def test_a_head_goes_out_and_comes_back_and_is_no_part_of_a_start(tmp_path):
    model, params, head = model_and_params()
    save_bert(tmp_path, model.sizes, params | head, MASKED_LM_SETTINGS)
    config, again = load_masked_bert(tmp_path)
    assert config == model.sizes
    jax.tree.map(np.testing.assert_array_equal, again, params | head)
    jax.tree.map(np.testing.assert_array_equal, load_bert(tmp_path)[1], params)
    document = json.loads((tmp_path / "config.json").read_text())
    assert document["architectures"] == ["BertForMaskedLM"]
    assert document["tie_word_embeddings"] is False
    tensors = load_file(tmp_path / "model.safetensors")
    bias = tensors["cls.predictions.bias"]
    np.testing.assert_array_equal(bias, tensors["cls.predictions.decoder.bias"])
    assert all(name.startswith(("bert.", "cls.predictions.")) for name in tensors)


def test_a_bert_without_the_head_is_refused():
    with pytest.raises(InputError, match=r"cls\.predictions.*missing"):
        load_masked_bert(Path(GOLDEN))
