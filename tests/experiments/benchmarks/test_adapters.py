"""The benchmark's step of LoRA learns, and the peer is asked for only where it is needed."""

import dataclasses
import sys

import jax
import numpy as np
import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.models.adapters import add_adapters
from collapipe_jax.learning.models.causal_lm import CausalLM
from experiments.benchmarks import adapters

SMALL = dataclasses.replace(
    adapters.SMOLLM2,
    width=16,
    heads=2,
    head_size=8,
    key_value_heads=1,
    feed_forward_width=24,
    encoder_blocks=2,
    vocabulary_size=30,
    adapters=adapters.ADAPTERS,
)


def test_a_step_lowers_the_loss_and_leaves_the_base(monkeypatch):
    monkeypatch.setattr(adapters, "LEARNING_RATE", 1e-2)

    @jax.jit
    def fresh(key):
        return add_adapters(key, CausalLM(sizes=SMALL).init(key), SMALL.adapters)

    params = fresh(jax.random.key(1))
    before = jax.tree.map(np.array, {name: params[name] for name in ("embedding", "decoder")})
    step = adapters.make_step(SMALL, params, adapters.draw_tokens(SMALL, 2, 8))
    losses = [step() for _ in range(8)]
    np.testing.assert_allclose(losses[0], np.log(30), rtol=0.05)  # fresh weights know nothing
    assert losses[-1] < losses[0]
    after = {name: params[name] for name in before}
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_without_peft_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match="pip install"):
        adapters.peer_model(SMALL, None)
