"""Llama and Qwen2 in the layout of Hugging Face, against PyTorch where it is installed."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import tiny_causal
from support.tiny_causal import FOLDERS, padded, random_model, theirs

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.causal_files import load_causal_lm, save_causal_lm
from collapipe_jax.learning.models.causal_lm import NOTHING, CausalBatch, CausalLM, logits
from collapipe_jax.learning.models.config import CausalConfig, RotaryScaling

REAL = padded() != NOTHING
EXPECTED = {
    "llama": CausalConfig(
        width=16,
        heads=4,
        feed_forward_width=24,
        encoder_blocks=2,
        vocabulary_size=40,
        positions=64,
        key_value_heads=2,
        head_size=6,
        rotary_base=300,
        norm_epsilon=1e-5,
        attention_dropout_rate=0.0,
        initial_deviation=0.5,
    )
}
EXPECTED["qwen2"] = dataclasses.replace(
    EXPECTED["llama"], head_size=4, rotary_base=10_000, norm_epsilon=1e-6, query_bias=True
)
EXPECTED["qwen3"] = dataclasses.replace(
    EXPECTED["llama"], rotary_base=10_000, norm_epsilon=1e-6, query_key_norm=True
)
EXPECTED["llama3"] = dataclasses.replace(
    EXPECTED["llama"],
    head_size=4,
    norm_epsilon=1e-6,
    rotary_scaling=RotaryScaling(
        factor=4.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_positions=16
    ),
)


compiled = jax.jit(logits, static_argnums=0)


def ours(config, params):
    """Logits after every token of the prompts; the last column has nothing to predict."""
    rows = np.pad(padded(), ((0, 0), (0, 1)), constant_values=NOTHING)
    return np.asarray(compiled(CausalLM(sizes=config), params, CausalBatch(jnp.asarray(rows))))


@pytest.fixture(params=FOLDERS)
def name(request):
    return request.param


@pytest.fixture
def copy(tmp_path):
    """The golden Llama where it may be spoilt."""
    return shutil.copytree(FOLDERS["llama"], tmp_path / "llama")


def change_config(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)


def test_stored_checkpoints_give_what_pytorch_computed(name):
    config, params, _ = load_causal_lm(FOLDERS[name])
    assert config == EXPECTED[name]
    shapes = jax.eval_shape(CausalLM(sizes=config).init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
    with np.load(FOLDERS[name] / "expected.npz") as golden:
        expected = golden["logits"]
    np.testing.assert_allclose(ours(config, params)[REAL], expected[REAL], rtol=1e-5, atol=1e-5)


def test_what_is_saved_is_what_was_read_to_the_bit(name, tmp_path):
    config, params, document = load_causal_lm(FOLDERS[name])
    save_causal_lm(tmp_path / "new", config, params, {"bos_token_id": 1, "eos_token_id": 2})
    stored, golden = (load_file(d / "model.safetensors") for d in (tmp_path / "new", FOLDERS[name]))
    assert stored.keys() == golden.keys()
    assert all(np.array_equal(stored[key], golden[key]) for key in golden)
    again = json.loads((tmp_path / "new/config.json").read_text())
    head_size = {"head_dim": config.head_size}
    older = {"rope_theta": config.rotary_base}
    if config.rotary_scaling is not None:
        older["rope_scaling"] = document["rope_parameters"]
    assert again.items() <= (document | head_size | older).items()
    assert load_causal_lm(tmp_path / "new")[0] == config


def test_a_default_scaling_of_older_files_is_none_and_an_incomplete_one_is_named(copy):
    change_config(copy, rope_scaling={"type": "default"})
    assert load_causal_lm(copy)[0] == EXPECTED["llama"]
    change_config(copy, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0})
    with pytest.raises(InputError, match="low_freq_factor"):
        load_causal_lm(copy)


def test_tied_tables_are_one_in_the_file_and_two_in_the_model(tmp_path):
    config, params, _ = load_causal_lm(FOLDERS["qwen2"])
    np.testing.assert_array_equal(params["embedding"]["word"], params["decoder"]["word"])
    params["decoder"]["word"] = params["decoder"]["word"].at[3, 1].add(0.5)
    save_causal_lm(tmp_path, config, params)  # as after training
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False
    again = load_causal_lm(tmp_path)[1]
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_16_bit_numbers_shards_and_older_keys_are_read(copy):
    _, params, _ = load_causal_lm(copy)
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(3, np.float32)
    parts = {"a.safetensors": sorted(tensors)[:9], "b.safetensors": sorted(tensors)[9:]}
    for file, names in parts.items():
        save_file({n: tensors[n].astype(jnp.bfloat16) for n in names}, copy / file)
    places = {n: file for file, names in parts.items() for n in names}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    change_config(copy, rope_parameters=None, rope_theta=300.0, rope_scaling=None)
    config, got, _ = load_causal_lm(copy)
    assert config == EXPECTED["llama"]
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), params)
    jax.tree.map(np.testing.assert_array_equal, got, rounded)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "mistral"),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0}),
        ("use_sliding_window", True),
        ("num_key_value_heads", 3),
        ("head_dim", 5),
        ("hidden_size", None),
        ("num_attention_heads", 0),
    ],
)
def test_an_unsupported_key_is_named(copy, key, value):
    change_config(copy, **{key: value})
    with pytest.raises(InputError) as caught:
        load_causal_lm(copy)
    assert key in caught.value.key
    assert caught.value.value == value
    assert caught.value.remedy


def test_wrong_tensors_are_named(copy):
    head, gate = "lm_head.weight", "model.layers.1.mlp.gate_proj.weight"
    for change, message in (
        (lambda t: {n: v for n, v in t.items() if n != head}, f"{head}.*missing"),
        (lambda t: t | {"model.layers.0.self_attn.q_proj.bias": t["model.norm.weight"]}, "no part"),
        (lambda t: t | {gate: t[gate].T.copy()}, f"{gate}.*another shape"),
        (lambda t: t | {gate: t[gate] * np.nan}, f"{gate}.*not finite"),
    ):
        path = copy / "model.safetensors"
        before = path.read_bytes()
        change_tensors(copy, change)
        with pytest.raises(InputError, match=message):
            load_causal_lm(copy)
        path.write_bytes(before)


def test_nothing_wrong_is_saved(tmp_path):
    config, params, _ = load_causal_lm(FOLDERS["llama"])
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), params)
    for changes, tree, message in (
        ({"activation": "relu"}, params, "activation"),
        ({"initial_deviation": 0.0}, params, "initial_deviation"),
        ({"query_bias": True}, params, "encoder/attention/query/bias"),
        ({"vocabulary_size": 41}, params, "embedding/word"),
        ({}, half, "decoder/norm/scale"),
    ):
        with pytest.raises(InputError, match=message):
            save_causal_lm(tmp_path / "no", dataclasses.replace(config, **changes), tree)
    assert not (tmp_path / "no").exists()


def test_the_stored_outputs_are_still_pytorchs(peers, name):
    model = getattr(peers[1], f"{tiny_causal.CLASSES[name]}ForCausalLM")
    found, said = theirs(peers, model.from_pretrained(FOLDERS[name]).eval())
    with np.load(FOLDERS[name] / "expected.npz") as golden:
        np.testing.assert_allclose(found, golden["logits"], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(said, golden["generated"])


@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_pytorchs_and_weights_go_back(peers, name, tied, tmp_path):
    model = random_model(peers, name, seed=3, tie_word_embeddings=tied, num_key_value_heads=4)
    model.save_pretrained(tmp_path / "theirs")
    config, params, _ = load_causal_lm(tmp_path / "theirs")
    expected = theirs(peers, model)[0]
    largest = np.abs(expected).max()
    np.testing.assert_allclose(ours(config, params)[REAL], expected[REAL], atol=1e-5 * largest)

    save_causal_lm(tmp_path / "ours", config, params)
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    weights, same = model.state_dict(), peers[0].equal
    assert all(same(tensor, weights[key]) for key, tensor in again.state_dict().items())
    assert again.config.tie_word_embeddings is tied
    np.testing.assert_array_equal(theirs(peers, again.eval())[0], expected)
