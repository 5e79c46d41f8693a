"""Checkpoints in the layout of Hugging Face, against PyTorch where it is installed.

tests/data/bert_tiny holds a checkpoint with random weights that `transformers` wrote, and in
expected.npz what its `BertModel` computes. To write it anew, from the folder tests:

    python -c "import test_pretrained; test_pretrained.write_golden()"
"""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import GOLDEN
from support.leaves_close import assert_same

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.bert import MaskedBert, bert_encode, init_bert
from collapipe_jax.learning.models.bert_files import (
    DISTILLED_KEYS,
    DISTILLED_NAMES,
    label_settings,
    load_bert,
    load_labelling_bert,
    load_masked_bert,
    save_bert,
)
from collapipe_jax.learning.models.config import BertConfig
from collapipe_jax.learning.models.layers import init_linear
from collapipe_jax.learning.tasks.subwords import train_wordpiece

GOLDEN = GOLDEN / "bert_tiny"
BUILDINGS = ("barn", "bridge", "cabin", "castle", "dam", "fort", "harbour", "hut", "inn", "kiln")
COLOURS = ("amber", "beige", "black", "blue", "brown", "green", "grey", "ochre", "red", "white")
PIECES = ("##s", "##ed", "##er", "##ly", "a", "and", "has", "is", "of", "old", "on", "the", ".")
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *BUILDINGS, *COLOURS, *PIECES)
SIZES = {
    "vocab_size": len(TOKENS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
    "initializer_range": 0.3,
}
IDS = np.array([[2, 36, 5, 33, 36, 15, 3, 30, 20, 3], [2, 9, 3, 11, 25, 3] + [0] * 4])
TYPES = np.array([[0] * 7 + [1] * 3, [0] * 3 + [1] * 3 + [0] * 4])
MASK = IDS != 0

encoded = jax.jit(bert_encode, static_argnames="config")


def random_model(peers, name, seed=0, **settings):
    """A model of `transformers` with every parameter away from where it starts."""
    torch, transformers = peers
    torch.manual_seed(seed)
    model = getattr(transformers, name)(transformers.BertConfig(**SIZES | settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def theirs(peers, model):
    """What a model of `transformers` makes of the padded batch."""
    torch, _ = peers
    ids, types, mask = (torch.tensor(a) for a in (IDS, TYPES, MASK.astype(int)))
    with torch.no_grad():
        return model(input_ids=ids, token_type_ids=types, attention_mask=mask)


def ours(config, params):
    return encoded(params, config, jnp.asarray(IDS), jnp.asarray(MASK), jnp.asarray(TYPES))


def assert_real_tokens_equal(got, expected, tolerance=1e-4):
    got, expected = np.asarray(got), np.asarray(expected)
    np.testing.assert_allclose(got[MASK], expected[MASK], rtol=tolerance, atol=tolerance)


def write_golden():
    """Draw the checkpoint below tests/data and note what PyTorch computes with it."""
    import torch
    import transformers

    model = random_model((torch, transformers), "BertModel")
    model.save_pretrained(GOLDEN)
    (GOLDEN / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS), "utf-8")
    output = theirs((torch, transformers), model)
    hidden, pooled = (a.numpy() for a in (output.last_hidden_state, output.pooler_output))
    np.savez(GOLDEN / "expected.npz", hidden=hidden, pooled=pooled)


@pytest.fixture
def copy(tmp_path):
    """The golden checkpoint where it may be spoilt."""
    return shutil.copytree(GOLDEN, tmp_path / "bert")


def change_tensors(directory, change):
    """Write the checkpoint's tensors anew as `change` returns them."""
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path)


def change_config(directory, **settings):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_the_stored_checkpoint_gives_what_pytorch_computed():
    config, params = load_bert(GOLDEN)
    expected = BertConfig(
        width=16,
        heads=4,
        feed_forward_width=24,
        encoder_blocks=2,
        vocabulary_size=len(TOKENS),
        positions=12,
        dropout_rate=0.1,
        attention_dropout_rate=0.1,
        initial_deviation=0.3,
    )
    assert config == expected
    shapes = jax.eval_shape(lambda key: init_bert(key, config), jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
    hidden, pooled = ours(config, params)
    with np.load(GOLDEN / "expected.npz") as golden:
        assert_real_tokens_equal(hidden, golden["hidden"], 1e-5)
        np.testing.assert_allclose(pooled, golden["pooled"], rtol=1e-5, atol=1e-5)


def test_what_is_saved_is_read_back_to_the_bit(tmp_path):
    config, params = load_bert(GOLDEN)
    save_bert(tmp_path / "new" / "bert", config, params)
    again, got = load_bert(tmp_path / "new" / "bert")
    assert again == config
    assert_same(got, params)
    files = {path.name for path in (tmp_path / "new" / "bert").iterdir()}
    assert files == {"config.json", "model.safetensors"}
    stored, golden = (load_file(d / "model.safetensors") for d in (tmp_path / "new/bert", GOLDEN))
    assert stored.keys() == golden.keys()
    assert all(np.array_equal(stored[name], golden[name]) for name in golden)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_the_configuration_is_kept(tmp_path, activation):
    config, params = load_bert(GOLDEN)
    config = dataclasses.replace(
        config, activation=activation, dropout_rate=0.25, norm_epsilon=1e-6, initial_deviation=0.01
    )
    save_bert(tmp_path, config, params)
    assert load_bert(tmp_path)[0] == config


@pytest.mark.parametrize("pools", [True, False])
def test_a_head_goes_out_and_comes_back_and_is_no_part_of_a_start(tmp_path, pools):
    config, params = load_bert(GOLDEN)
    if not pools:
        params.pop("pooler")
    head = init_linear(jax.random.key(1), 16, 3, config)
    labels = ("red", "a b", "caf\u00e9")
    save_bert(tmp_path, config, params | {"head": head}, label_settings(labels, pools=pools))
    sizes, again, names, *choices = load_labelling_bert(tmp_path)
    assert (sizes, names, choices) == (config, labels, ["first", "linear"])
    assert_same(again, params | {"head": head})
    assert_same(load_bert(tmp_path)[1], params)
    document = json.loads((tmp_path / "config.json").read_text())
    assert document["id2label"] == {"0": "red", "1": "a b", "2": "caf\u00e9"}
    assert document["label2id"]["a b"] == 1
    kind = "Sequence" if pools else "Token"
    assert document["architectures"] == [f"BertFor{kind}Classification"]
    names = set(load_file(tmp_path / "model.safetensors"))
    assert {"classifier.weight", "classifier.bias"} < names
    assert all(name.startswith(("bert.", "classifier.")) for name in names)


def test_a_head_without_labels_is_refused(copy):
    with pytest.raises(InputError, match="id2label = None"):
        load_labelling_bert(copy)
    change_config(copy, id2label={"0": "a", "2": "b"})
    with pytest.raises(InputError, match="id2label"):
        load_labelling_bert(copy)
    change_config(copy, id2label={"0": "a", "1": "b"})
    with pytest.raises(InputError, match=r"classifier\.bias, classifier\.weight.*missing"):
        load_labelling_bert(copy)


def test_names_of_other_models_and_times_are_understood(copy):
    expected = load_bert(copy)[1]

    def rename(tensors):
        names = {
            name: f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            )
            for name in tensors
        }
        renamed = {names[name]: tensor for name, tensor in tensors.items()}
        return renamed | {
            "bert.embeddings.position_ids": np.arange(12)[None],
            "cls.predictions.bias": np.zeros(len(TOKENS), np.float32),
            "classifier.weight": np.full((3, 16), np.nan, np.float32),
        }

    change_tensors(copy, rename)
    assert_same(load_bert(copy)[1], expected)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_16_bit_numbers_become_32_bit(copy, dtype):
    exact = load_bert(copy)[1]
    change_tensors(copy, lambda tensors: {n: t.astype(dtype) for n, t in tensors.items()})
    got = load_bert(copy)[1]
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(got))
    assert_same(got, jax.tree.map(lambda leaf: np.asarray(leaf).astype(dtype), exact))


def test_shards_are_put_together(copy):
    expected = load_bert(copy)[1]
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, copy / file)
    places = {name: file for file, part in parts.items() for name in part}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert_same(load_bert(copy)[1], expected)
    (copy / "b.safetensors").unlink()
    with pytest.raises(InputError, match=r"b\.safetensors.*cannot be read"):
        load_bert(copy)


def test_without_a_pooler_there_is_none(copy, tmp_path):
    change_tensors(copy, lambda t: {n: a for n, a in t.items() if not n.startswith("pooler.")})
    config, params = load_bert(copy)
    assert set(params) == {"embedding", "encoder"}
    save_bert(tmp_path / "again", config, params)
    assert_same(load_bert(tmp_path / "again")[1], params)


def without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


QUERY = "encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(QUERY), rf"{QUERY}.*missing"),
        (without("pooler.dense.bias"), r"pooler\.dense\.bias.*missing"),
        (lambda t: t | {"encoder.layer.2.output.dense.bias": t[QUERY]}, r"layer\.2.*no part"),
        (lambda t: t | {"adapter.weight": t[QUERY]}, r"adapter\.weight.*no part"),
        (lambda t: t | {QUERY: t[QUERY][:, 1:]}, rf"{QUERY} \[16, 15\] for \[16, 16\]"),
        (lambda t: t | {f"bert.{QUERY}": t[QUERY]}, rf"{QUERY}.*twice"),
        (lambda t: t | {QUERY: t[QUERY].astype(np.float64)}, rf"{QUERY}.*type other than"),
        (lambda t: t | {QUERY: t[QUERY] * np.nan}, rf"{QUERY}.*not finite"),
        (lambda t: {QUERY: t[QUERY]}, r"word_embeddings\.weight.* more.*missing"),
    ],
)
def test_wrong_tensors_are_named(copy, change, message):
    change_tensors(copy, change)
    with pytest.raises(InputError, match=message):
        load_bert(copy)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "relative_key"),
        ("model_type", "roberta"),
        ("hidden_act", "mish"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("pruned_heads", {"0": [1]}),
        ("quantization_config", {"load_in_8bit": True}),
        ("attention_probs_dropout_prob", 1.2),
        ("hidden_dropout_prob", 1.5),
        ("layer_norm_eps", "small"),
        ("num_hidden_layers", 0),
        ("hidden_size", None),
    ],
)
def test_an_unsupported_key_is_named(copy, key, value):
    change_config(copy, **{key: value})
    with pytest.raises(InputError) as caught:
        load_bert(copy)
    assert key in caught.value.key
    assert caught.value.value == value
    assert caught.value.remedy


def test_keys_of_heads_and_versions_are_not_read(copy):
    expected = load_bert(copy)[0]
    change_config(copy, id2label={"0": "no"}, classifier_dropout=0.4, transformers_version="3")
    assert load_bert(copy)[0] == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_hidden_layers", 9_999), ("hidden_size", 9_999_996), ("vocab_size", 10**15)],
)
def test_absurd_sizes_take_no_memory(copy, key, value):
    change_config(copy, **{key: value})
    with pytest.raises(InputError, match=f"missing|shape|{key}"):
        load_bert(copy)


def test_a_shard_outside_the_folder_is_refused(copy):
    (copy / "model.safetensors").rename(copy.parent / "model.safetensors")
    index = {"weight_map": {"embeddings.LayerNorm.weight": "../model.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="no file of this folder"):
        load_bert(copy)


def test_an_unreadable_directory_is_named(copy):
    with pytest.raises(InputError, match=r"nowhere.*cannot be read"):
        load_bert(copy / "nowhere")
    (copy / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match=r"model\.safetensors.*cannot be read"):
        load_bert(copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"holds no model\.safetensors"):
        load_bert(copy)
    (copy / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match="save_pretrained"):
        load_bert(copy)
    (copy / "config.json").write_text("[]")
    with pytest.raises(InputError, match="no JSON object"):
        load_bert(copy)


def test_nothing_wrong_is_saved(tmp_path):
    config, params = load_bert(GOLDEN)
    wider = dataclasses.replace(config, positions=13)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), params)
    for settings, tree, message in (
        (dataclasses.replace(config, norm="pre"), params, r"model\.norm"),
        (dataclasses.replace(config, initial_deviation=0.0), params, "initial_deviation"),
        (wider, params, "embedding/position"),
        (config, half, "embedding/word"),
        (config, {"encoder": params["encoder"]}, "embedding/norm"),
        (config, params | {"other": params["pooler"]}, "other/kernel"),
    ):
        with pytest.raises(InputError, match=message):
            save_bert(tmp_path / "refused", settings, tree)
    assert not (tmp_path / "refused").exists()


def test_the_stored_outputs_are_still_pytorchs(peers):
    output = theirs(peers, peers[1].BertModel.from_pretrained(GOLDEN).eval())
    with np.load(GOLDEN / "expected.npz") as golden:
        assert_real_tokens_equal(output.last_hidden_state, golden["hidden"], 1e-5)
        np.testing.assert_allclose(output.pooler_output, golden["pooled"], atol=1e-5)


@pytest.mark.parametrize("head", ["", "ForMaskedLM", "ForTokenClassification"])
def test_a_distilled_bert_computes_what_pytorch_does_and_goes_out_as_a_bert(peers, tmp_path, head):
    torch, transformers = peers
    torch.manual_seed(2)
    sizes = {"vocab_size": len(TOKENS), "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24}
    named = {"id2label": dict(enumerate("abc")), "label2id": {"a": 0, "b": 1, "c": 2}}
    settings = transformers.DistilBertConfig(
        **sizes, **named, max_position_embeddings=12, initializer_range=0.3, activation="relu"
    )
    model = getattr(transformers, f"DistilBert{head or 'Model'}")(settings).eval()
    model.save_pretrained(tmp_path / "theirs")
    config, params = load_bert(tmp_path / "theirs")
    assert (config.token_types, config.activation, "pooler" in params) == (1, "relu", False)
    ids, mask = torch.tensor(IDS), torch.tensor(MASK.astype(int))
    body = model if not head else model.distilbert
    with torch.no_grad():
        expected = body(input_ids=ids, attention_mask=mask).last_hidden_state
        logits = model(input_ids=ids, attention_mask=mask)[0]
    hidden, _ = encoded(params, config, jnp.asarray(IDS), jnp.asarray(MASK), None)
    assert_real_tokens_equal(hidden, expected)
    if head == "ForMaskedLM":
        _, params = load_masked_bert(tmp_path / "theirs")
        places = jnp.broadcast_to(jnp.arange(IDS.shape[1]), IDS.shape)
        scores = MaskedBert(sizes=config).scores(params, hidden, places)
        assert_real_tokens_equal(scores, logits)
    elif head:
        params = load_labelling_bert(tmp_path / "theirs").params
        scores = hidden @ params["head"]["kernel"] + params["head"]["bias"][None, None]
        assert_real_tokens_equal(scores, logits)
    save_bert(tmp_path / "ours", config, load_bert(tmp_path / "theirs")[1])
    again = transformers.BertModel.from_pretrained(tmp_path / "ours", add_pooling_layer=False)
    with torch.no_grad():
        back = again.eval()(input_ids=ids, attention_mask=mask).last_hidden_state
    assert_real_tokens_equal(back, expected)


def test_a_distilled_classifier_starts_a_run_and_is_no_bert_with_labels(copy):
    """The golden checkpoint under the names of DistilBERT, with its further layer of a head."""
    spoken = {ours: theirs for theirs, ours in DISTILLED_NAMES.items()}

    def renamed(tensors):
        types = tensors.pop("embeddings.token_type_embeddings.weight")
        tensors["embeddings.word_embeddings.weight"] += types[0]  # of all tokens
        found = {"pre_classifier.weight": np.eye(16, dtype=np.float32)}
        found |= {"classifier.weight": found["pre_classifier.weight"][:1]}
        found |= {"classifier.bias": np.zeros(1, np.float32)}
        for name, tensor in tensors.items():
            if not name.startswith("pooler."):
                for ours, theirs in spoken.items():
                    name = name.replace(ours, theirs)
                found[f"distilbert.{name}"] = tensor
        return found

    change_tensors(copy, renamed)
    document = json.loads((copy / "config.json").read_text())
    keys = {ours: theirs for theirs, ours in DISTILLED_KEYS.items()}
    document = {keys.get(key, key): value for key, value in document.items()}
    document |= {"model_type": "distilbert", "id2label": {"0": "a"}}
    del document["type_vocab_size"]
    (copy / "config.json").write_text(json.dumps(document))

    config, params = load_bert(copy)
    whole, expected = load_bert(GOLDEN)
    assert config == dataclasses.replace(whole, token_types=1)
    arguments = jnp.asarray(IDS), jnp.asarray(MASK), None
    expected = encoded(expected, whole, *arguments)[0]
    assert_real_tokens_equal(encoded(params, config, *arguments)[0], expected, 1e-5)
    with pytest.raises(InputError, match="pre_classifier"):
        load_labelling_bert(copy)
    change_config(copy, activation="swish")
    with pytest.raises(InputError, match="activation = 'swish'"):
        load_bert(copy)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_hidden_states_equal_pytorchs_and_go_back(peers, tmp_path, activation):
    """To 1e-4 with padding and token types, there and, to the bit, back."""
    model = random_model(peers, "BertModel", seed=1, hidden_act=activation)
    model.save_pretrained(tmp_path / "theirs")
    config, params = load_bert(tmp_path / "theirs")
    hidden, pooled = ours(config, params)
    expected = theirs(peers, model)
    assert_real_tokens_equal(hidden, expected.last_hidden_state)
    np.testing.assert_allclose(pooled, expected.pooler_output, rtol=1e-4, atol=1e-4)

    save_bert(tmp_path / "ours", config, params)
    again, report = peers[1].BertModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    torch = peers[0]
    weights = model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in again.state_dict().items())
    back = theirs(peers, again.eval())
    assert torch.equal(back.last_hidden_state, expected.last_hidden_state)
    assert torch.equal(back.pooler_output, expected.pooler_output)


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_peers_tokenizer_cuts_text_as_ours_did(peers, tmp_path, lowercase):
    ours = train_wordpiece(["El Ni\u00f1o reverses IgG"] * 2, 100, lowercase)
    ours.save_pretrained(tmp_path, 9)
    theirs = peers[1].AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == len(ours.pieces)
    assert theirs.model_max_length == 9
    for text in ("El Ni\u00f1o reverses IgG", "Ni [SEP] \u6f22 [MASK]", "", "re " * 20):
        expected = [int(i) for i in ours.encode_texts([text], 9)[0][0] if i]
        assert theirs(text, truncation=True).input_ids == expected


@pytest.mark.parametrize(
    ("name", "pooled_head"),
    [("BertForSequenceClassification", True), ("BertForTokenClassification", False)],
)
def test_logits_equal_pytorchs(peers, tmp_path, name, pooled_head):
    """The trunk is ours and the head is theirs, applied to our hidden or pooled states."""
    model = random_model(peers, name, seed=2, num_labels=3)
    model.save_pretrained(tmp_path)
    config, params = load_bert(tmp_path)
    assert ("pooler" in params) == pooled_head
    hidden, pooled = ours(config, params)
    weight, bias = (p.detach().numpy() for p in model.classifier.parameters())
    logits = np.asarray(pooled if pooled_head else hidden) @ weight.T + bias
    expected = theirs(peers, model).logits.numpy()
    if not pooled_head:
        logits, expected = logits[MASK], expected[MASK]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_of_pretraining_and_its_shards_are_read(peers, tmp_path):
    model = random_model(peers, "BertForPreTraining", seed=3)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    hidden, pooled = ours(*load_bert(tmp_path))
    expected = theirs(peers, model.bert)
    assert_real_tokens_equal(hidden, expected.last_hidden_state)
    np.testing.assert_allclose(pooled, expected.pooler_output, rtol=1e-4, atol=1e-4)
