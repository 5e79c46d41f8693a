import jax.numpy as jnp
import numpy as np
import pytest
from support.drawn_parameters import drawn

from collapipe_jax.learning.federated.embedding_rows import (
    met_rows,
    met_rows_by_table,
    row_factors,
    row_shares,
    scale_rows,
)
from collapipe_jax.learning.federated.optimizers import Rules
from collapipe_jax.learning.models.bert import BertWithHead, LabelledBatch
from collapipe_jax.learning.models.config import BertConfig

IDS = np.array([[[[0, 1], [1, 9]], [[3, 3], [3, 3]]], [[[2, 1], [1, 1]], [[3, 1], [0, 0]]]])
"""Two steps of two clients with two texts of two tokens, one of them unknown."""


def test_a_client_meets_the_tokens_of_all_its_steps():
    found = met_rows(jnp.array(IDS), 5)
    expected = [{0, 1, 2}, {0, 1, 3}]
    assert [set(np.flatnonzero(own).tolist()) for own in found] == expected


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_a_number_is_the_factor_of_every_row(factor):
    met = met_rows(jnp.array(IDS), 5)
    share = row_shares(met, jnp.array([0.2, 0.8]))
    np.testing.assert_array_equal(row_factors(share, jnp.array(2), factor), factor)


def test_factor_zero_makes_a_row_the_mean_over_those_who_met_it():
    rng = np.random.default_rng(0)
    met, steps = rng.random((4, 30)) < 0.4, rng.normal(size=(4, 30))
    met[:, 0], met[:, 1], met[:3, 2], met[3, 2] = False, True, False, True
    steps = np.where(met, steps, 0.0)  # who has not met a token leaves it alone
    shares = np.array([0.3, 0.6, 0.1, 0.0])  # the last one sits out
    share = row_shares(jnp.array(met), jnp.array(shares))
    factors = row_factors(share, jnp.array(3), 0.0)
    scaled = np.asarray(factors) * (shares @ steps)
    for token in range(30):
        counted = shares * met[:, token]
        if counted.sum():
            expected = np.average(steps[:, token], weights=counted)
            np.testing.assert_allclose(scaled[token], expected, rtol=1e-5)
        else:
            assert factors[token] == 3.0  # of three participants
    np.testing.assert_allclose(factors[1], 1.0, rtol=1e-6)
    assert factors[2] == 3.0


def test_bert_reads_rows_of_tokens_and_of_n_grams():
    """N-grams count from 1, and 0 is none: it is of no row."""
    sizes = BertConfig(
        width=8,
        heads=2,
        feed_forward_width=8,
        encoder_blocks=1,
        vocabulary_size=5,
        ngram_buckets=4,
    )
    model = BertWithHead(sizes=sizes, labels=2, pools=True)
    ngrams = np.array([[[[[1, 4], [0, 0]]], [[[2, 0], [2, 0]]]]], np.uint8)
    batch = LabelledBatch(jnp.array(IDS[:1, :, :1]), None, jnp.array(ngrams))
    tables = drawn(model.init)
    found = met_rows_by_table(Rules(embedding_rate_factor=0.0), tables, model.rows_read(batch))
    assert set(found) == {"word", "ngram"}
    read = [set(np.flatnonzero(own).tolist()) for own in found["ngram"]]
    assert read == [{0, 3}, {1}]
    assert met_rows_by_table(Rules(), tables, model.rows_read(batch)) == {}


def test_other_leaves_are_left_alone():
    table, rest = jnp.ones((3, 2)), jnp.ones(2)
    params = {"embedding": {"word": table, "position": rest}, "encoder": {"kernel": rest}}
    found = scale_rows(params, "word", jnp.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(found["embedding"]["word"], [[1, 1], [2, 2], [3, 3]])
    assert found["embedding"]["position"] is rest
    assert found["encoder"] is params["encoder"]
