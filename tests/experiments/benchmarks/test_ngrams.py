"""The n-gram peer of language models, where its library is installed."""

import math

import pytest

from collapipe_jax.core.errors import InputError
from collapipe_jax.learning.tasks.plain_text import TextSets
from collapipe_jax.learning.tasks.subwords import train_byte_pieces
from collapipe_jax.learning.tasks.synthetic import generate_parallel_text
from experiments.benchmarks import ngrams


def test_longer_histories_tell_more():
    """Nats a token of invented sentences: below those of single tokens, far below uniform ones."""
    pytest.importorskip("knlm", reason='pip install -e ".[bench]"')
    texts = [source for source, _ in generate_parallel_text(0, 1200)]
    tokenizer, sets = train_byte_pieces(texts, 400), TextSets(texts[200:], [], texts[:200])
    two, four = (ngrams.test_loss(tokenizer, sets, order) for order in (2, 4))
    assert 0.5 < four < two < 0.6 * math.log(400)


@pytest.mark.parametrize("orders", ["1,3", "x"])
def test_wrong_orders_are_named(orders):
    with pytest.raises(InputError, match="--orders"):
        ngrams.main(["--run=runs/none", f"--orders={orders}"])
