"""Adapters in PEFT's layout.

tests/data/adapters_tiny holds random adapters, pooler and head on tests/data/bert_tiny that PEFT
wrote, and in expected.npz the logits of the whole. To write it anew, from the folder tests:

    python -c "from models import test_adapter_files; test_adapter_files.write_golden()"
"""

import dataclasses
import json
import re
import shutil
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import GOLDEN as DATA
from support.leaves_close import assert_close

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.adapters import (
    add_adapters,
    fuse,
    join,
    load_adapted_bert,
    load_adapted_causal_lm,
    save_adapters,
    split,
)
from collapipe_jax.learning.models.bert import BertWithHead, LabelledBatch, logits
from collapipe_jax.learning.models.bert_files import label_settings, load_bert, save_bert
from collapipe_jax.learning.models.causal_files import load_causal_lm
from collapipe_jax.learning.models.causal_lm import CausalBatch, CausalLM
from collapipe_jax.learning.models.causal_lm import logits as causal_logits
from collapipe_jax.learning.models.config import GATED_LAYERS, AdapterConfig
from collapipe_jax.learning.models.layers import init_linear

GOLDEN, BASE = DATA / "adapters_tiny", DATA / "bert_tiny"
LLAMA = DATA / "llama_tiny"
ADAPTERS = AdapterConfig(rank=2, alpha=6.0, targets=("query", "value", "inner"))


compiled_logits = jax.jit(logits, static_argnums=0)


def change(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def golden(tmp_path):
    """The adapters of PEFT, whose base is found from any folder."""
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "golden"))
    change(folder, base_model_name_or_path=str(BASE))
    return folder


def logits_of(sizes, params, token_ids):
    model = BertWithHead(sizes=sizes, labels=3, pools=True)
    body = {name: params[name] for name in ("embedding", "encoder")}
    decoder = {name: params[name] for name in ("head", "pooler")}
    return compiled_logits(model, body | {"decoder": decoder}, LabelledBatch(token_ids, None))


@pytest.fixture(scope="module")
def model():
    """Sizes and parameters of a model of ours whose adapters do something."""
    sizes, base = load_bert(BASE)
    sizes = dataclasses.replace(sizes, adapters=ADAPTERS)
    head = init_linear(jax.random.key(0), sizes.width, 3, sizes)
    whole = base | {"decoder": {"head": head, "pooler": base.pop("pooler")}}
    trained, base = split(add_adapters(jax.random.key(1), whole, ADAPTERS))
    return sizes, join(jax.tree.map(lambda leaf: leaf + 0.1, trained), base)


def save(model, folder):
    save_adapters(folder, *model, BASE, label_settings("abc", pools=True))
    return folder


def test_adapters_of_peft_compute_the_same_here(golden):
    with np.load(GOLDEN / "expected.npz") as file:
        expected = dict(file)
    sizes, params, labels, *_ = load_adapted_bert(golden)
    assert labels == ("a", "b", "c")
    found = logits_of(sizes, params, expected["token_ids"])
    np.testing.assert_allclose(found, expected["logits"], atol=1e-5)
    away = logits_of(sizes, params | load_bert(BASE)[1], expected["token_ids"])
    assert np.abs(away - expected["logits"]).max() > 0.1


def test_adapters_of_ours_have_the_tensors_and_the_keys_of_peft(model, tmp_path):
    folders = save(model, tmp_path), GOLDEN
    ours, theirs = (load_file(folder / "adapter_model.safetensors") for folder in folders)
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in theirs.items()}
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    known = json.loads((GOLDEN / "adapter_config.json").read_text())
    assert set(config) <= set(known)
    for key in ("r", "lora_alpha", "peft_type", "task_type", "bias", "use_dora"):
        assert config[key] == known[key]


def test_what_is_saved_is_loaded(model, tmp_path):
    sizes, params = model
    found, loaded, labels, *_ = load_adapted_bert(save(model, tmp_path))
    assert (dataclasses.replace(found, adapters=ADAPTERS), labels) == (sizes, ("a", "b", "c"))
    whole = fuse(params, ADAPTERS)
    assert_close(loaded, whole.pop("decoder") | whole, 0.0)


def test_a_base_that_was_rounded_in_training_is_rounded_again(model, tmp_path):
    sizes, params = model
    adapters = dataclasses.replace(ADAPTERS, base_dtype="bfloat16", freezes_a=True)
    params = join(*split(params, adapters))
    folder = save((dataclasses.replace(sizes, adapters=adapters), params), tmp_path)
    loaded = load_adapted_bert(folder)[1]
    whole = fuse(params, adapters)
    assert_close(loaded, whole.pop("decoder") | whole, 1e-6)


def test_labels_of_tokens_have_no_pooler(golden):
    """The base has one, of which a head for tokens knows nothing."""
    change(golden, task_type="TOKEN_CLS")
    path = golden / "adapter_model.safetensors"
    save_file({n: t for n, t in load_file(path).items() if "pooler" not in n}, path)
    assert set(load_adapted_bert(golden)[1]) == {"embedding", "encoder", "head"}


def test_an_expression_names_the_maps_with_adapters_alone(model, tmp_path):
    wanted = json.loads((save(model, tmp_path) / "adapter_config.json").read_text())
    layer = "bert.encoder.layer.11"
    maps = ("attention.self.query", "attention.self.key", "attention.self.value")
    maps += ("attention.output.dense", "intermediate.dense", "output.dense")
    matched = [bool(re.fullmatch(wanted["target_modules"], f"{layer}.{name}")) for name in maps]
    assert matched == [True, False, True, False, True, False]
    assert not re.fullmatch(wanted["target_modules"], "bert.pooler.dense")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": True}, "use_dora = True: is not supported"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3': is not supported"),
        ({"base_model_name_or_path": "nowhere"}, "base_model_name_or_path = 'nowhere'"),
        ({"base_model_name_or_path": "x" * 300}, "is no folder"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path = None: is no folder"),
        ({"r": 3}, "of another shape"),
        ({"r": 2**63}, "r = 9223372036854775808: no number above 0"),
        ({"lora_alpha": None}, "lora_alpha = None: no number"),
    ],
)
def test_other_adapters_and_bases_are_refused(golden, changes, message):
    change(golden, **changes)
    with pytest.raises(InputError, match=message):
        load_adapted_bert(golden)


def test_a_changed_base_is_refused(model, tmp_path):
    folder = save(model, tmp_path / "adapters")
    sizes, base = load_bert(BASE)
    save_bert(tmp_path / "base", sizes, jax.tree.map(lambda leaf: 1.01 * leaf, base))
    change(folder, base_model_name_or_path=str(tmp_path / "base"))
    with pytest.raises(InputError, match="trained on other weights"):
        load_adapted_bert(folder)


def test_peft_reads_adapters_of_ours(model, tmp_path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = transformers.BertForSequenceClassification.from_pretrained(BASE, num_labels=3)
        theirs = peft.PeftModel.from_pretrained(base, save(model, tmp_path)).eval()
        with np.load(GOLDEN / "expected.npz") as file:
            token_ids = file["token_ids"]
        inputs = torch.tensor(token_ids).long()
        with torch.no_grad():
            found = theirs(input_ids=inputs, attention_mask=(inputs != 0).long()).logits
    sizes, params, *_ = load_adapted_bert(tmp_path)
    np.testing.assert_allclose(found, logits_of(sizes, params, token_ids), atol=1e-5)


def write_golden():
    """Needs PyTorch, ``transformers`` and ``peft``."""
    import peft
    import torch
    import transformers

    torch.manual_seed(0)
    base = transformers.BertForSequenceClassification.from_pretrained(BASE, num_labels=3)
    config = peft.LoraConfig(
        r=ADAPTERS.rank,
        lora_alpha=int(ADAPTERS.alpha),
        target_modules=["query", "value", "intermediate.dense"],
        modules_to_save=["classifier", "pooler"],
        task_type="SEQ_CLS",
    )
    model = peft.get_peft_model(base, config).eval()
    token_ids = np.random.default_rng(0).integers(5, 38, (4, 9))
    for row, length in zip(token_ids, (9, 6, 3, 1), strict=True):
        row[length:] = 0
    inputs = torch.tensor(token_ids)
    with torch.no_grad():
        for leaf in model.parameters():
            if leaf.requires_grad:
                leaf.add_(0.3 * torch.randn_like(leaf))
        found = model(input_ids=inputs, attention_mask=(inputs != 0).long()).logits.numpy()
    model.save_pretrained(GOLDEN)
    (GOLDEN / "README.md").unlink()
    labels = {"id2label": dict(enumerate("abc"))}
    (GOLDEN / "config.json").write_text(json.dumps(labels) + "\n")
    np.savez(GOLDEN / "expected.npz", token_ids=token_ids.astype(np.int32), logits=found)


def adapted_llama(targets, decoder_factor):
    """A Llama on file, and the same with adapters that do something."""
    sizes, base, _ = load_causal_lm(LLAMA)
    adapters = AdapterConfig(rank=2, alpha=6.0, targets=targets)
    trained, frozen = split(add_adapters(jax.random.key(1), base, adapters))
    trained["encoder"] = jax.tree.map(lambda leaf: leaf + 0.1, trained["encoder"])
    trained["decoder"] = jax.tree.map(lambda leaf: decoder_factor * leaf, trained["decoder"])
    sizes = dataclasses.replace(sizes, adapters=adapters)
    return sizes, base, join(trained, frozen)


@pytest.mark.parametrize("targets", [("query", "value"), GATED_LAYERS])
@pytest.mark.parametrize("decoder_factor", [1.0, 1.1])
def test_adapters_of_a_llama_are_loaded_and_a_decoder_only_if_it_changed(
    tmp_path, targets, decoder_factor
):
    sizes, base, params = adapted_llama(targets, decoder_factor)
    save_adapters(tmp_path, sizes, params, LLAMA, {"model_type": "llama"}, base["decoder"])
    written = load_file(tmp_path / "adapter_model.safetensors")
    assert all(name.startswith("base_model.model.") for name in written)
    assert any("lm_head" in name for name in written) == (decoder_factor != 1.0)
    found, loaded, _ = load_adapted_causal_lm(tmp_path)
    assert dataclasses.replace(found, adapters=sizes.adapters) == sizes
    assert_close(loaded, fuse(params, sizes.adapters), 0.0)
    (tmp_path / "config.json").unlink()  # which PEFT does not write
    assert_close(load_adapted_causal_lm(tmp_path)[1], loaded, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("decoder_factor", [1.0, 1.1])
def test_peft_computes_the_same_with_adapters_of_a_llama(tmp_path, decoder_factor):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    sizes, base, params = adapted_llama(GATED_LAYERS, decoder_factor)
    save_adapters(tmp_path, sizes, params, LLAMA, {"model_type": "llama"}, base["decoder"])
    ids = np.arange(3, 27).reshape(2, 12)
    batch = CausalBatch(np.pad(ids, ((0, 0), (0, 1))))
    model = transformers.LlamaForCausalLM.from_pretrained(LLAMA)
    with torch.no_grad():
        theirs = peft.PeftModel.from_pretrained(model, tmp_path)(torch.tensor(ids)).logits.numpy()
    ours = causal_logits(CausalLM(sizes=sizes), params, batch)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
