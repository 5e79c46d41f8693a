"""Generated tokens against those of `transformers`, and laws of sampling."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.compilations import compiles
from support.tiny_causal import FOLDERS, PROMPTS, ROOM, padded

from collapipe_jax.learning.models.causal_files import load_causal_lm
from collapipe_jax.learning.models.causal_lm import NOTHING, CausalBatch, CausalLM, logits
from collapipe_jax.learning.models.decoding import Sampling, _choose, generate

NEVER = jnp.array([-7])


@functools.cache
def loaded(name):
    config, params, _ = load_causal_lm(FOLDERS[name])
    return config, params


def keys_of(count, seed=0):
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.arange(count))


def continued(name, prompts, ends=NEVER, most=ROOM, seed=0, **sampling):
    config, params = loaded(name)
    options = {"room": ROOM, "most": most, "sampling": Sampling(**sampling)}
    keys = keys_of(len(prompts), seed)
    return np.asarray(generate(params, config, jnp.asarray(prompts), keys, ends, **options))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("qwen2", "llama3")))
        for name in FOLDERS
    ],
)
def test_greedy_tokens_are_those_of_transformers(name):
    with np.load(FOLDERS[name] / "expected.npz") as golden:
        expected = golden["generated"]
    np.testing.assert_array_equal(continued(name, padded()), expected)


def test_an_end_token_ends_one_text_alone():
    with np.load(FOLDERS["llama"] / "expected.npz") as golden:
        expected = golden["generated"].copy()
    end = expected[0, 3]
    for row in expected:
        row[np.append(np.flatnonzero(row == end), ROOM)[0] :] = NOTHING
    assert (expected[0] == NOTHING).sum() == ROOM - 3
    np.testing.assert_array_equal(continued("llama", padded(), jnp.array([end])), expected)
    fewer = continued("llama", padded(), jnp.array([end]), most=2)
    np.testing.assert_array_equal(fewer[:, :2], expected[:, :2])
    assert (fewer[:, 2:] == NOTHING).all()


def test_prompts_of_a_bucket_and_settings_share_a_compilation():
    continued("llama", padded())
    with compiles(generate, 0):
        continued("llama", padded()[:, ::-1][:, ::-1], most=4, temperature=0.7, top_p=0.5, seed=3)


def test_the_cache_changes_no_token():
    """Greedy tokens from whole texts, one token longer each time."""
    config, params = loaded("llama")
    text = list(PROMPTS[0])
    expected = continued("llama", padded())[0]
    scores_of = jax.jit(functools.partial(logits, CausalLM(sizes=config)))
    for token in expected:
        row = np.full((1, len(PROMPTS[0]) + ROOM + 1), NOTHING, np.int32)
        row[0, : len(text)] = text
        scores = scores_of(params, CausalBatch(jnp.asarray(row)))
        assert scores[0, len(text) - 1].argmax() == token
        text.append(int(token))


def test_a_text_is_drawn_by_its_own_key():
    options = {"temperature": 1.5, "top_p": 0.9}
    whole = continued("llama", padded(), **options)
    config, params = loaded("llama")
    rows = np.array([2, 1, 2])
    among_others = generate(
        params, config, jnp.asarray(padded()[rows]), keys_of(3)[rows], NEVER,
        room=ROOM, most=ROOM, sampling=Sampling(**options),
    )  # fmt: skip
    np.testing.assert_array_equal(among_others, whole[rows])
    assert not np.array_equal(whole, continued("llama", padded(), seed=1, **options))


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (2.0, 1.0), (1.0, 0.6)])
def test_tokens_follow_the_stated_law(temperature, top_p):
    """Frequencies of 20000 draws, against the law cut to the likeliest tokens by hand."""
    shares = np.array([0.3, 0.05, 0.4, 0.15, 0.1])
    law = shares ** (1.0 / temperature)
    law /= law.sum()
    if top_p < 1.0:
        law = np.where(np.isin(np.arange(5), [0, 2]), law, 0.0)  # 0.4 < 0.6 <= 0.4 + 0.3
        law /= law.sum()
    count = 20_000
    scores = jnp.broadcast_to(jnp.log(jnp.asarray(shares)), (count, 5))
    drawn = jax.jit(_choose)(scores, keys_of(count), Sampling(temperature, top_p))
    found = np.bincount(drawn, minlength=5) / count
    np.testing.assert_allclose(found, law, atol=4.0 * np.sqrt(0.25 / count))
    assert (found[law == 0.0] == 0.0).all()


def test_the_smallest_share_takes_the_likeliest_token():
    scores = jax.random.normal(jax.random.key(0), (6, 9))
    drawn = _choose(scores, keys_of(6), Sampling(3.0, 1e-6))
    np.testing.assert_array_equal(drawn, scores.argmax(1))
