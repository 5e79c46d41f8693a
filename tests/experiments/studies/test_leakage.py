"""Tokens named from activations."""

import jax
import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from support import SUPPORT

from experiments.studies import leakage


def make_observed(rng, count, means):
    tokens = rng.integers(0, len(means), count)
    x = means[tokens] + rng.standard_normal((count, means.shape[1]))
    return leakage.Observed(x[None], tokens + 5)


@pytest.fixture
def means():
    return 2.0 * np.random.default_rng(1).standard_normal((6, 4))


def test_the_probe_is_linear_discriminant_analysis(means):
    rng = np.random.default_rng(0)
    known, hidden = make_observed(rng, 600, means), make_observed(rng, 300, means)
    found = leakage.fit_probe(known.activations[0], known.tokens)(hidden.activations[0])
    library = LinearDiscriminantAnalysis(solver="lsqr")
    expected = library.fit(known.activations[0], known.tokens).predict(hidden.activations[0])
    assert np.mean(found == expected) > 0.99


def test_noise_hides_tokens(means):
    rng = np.random.default_rng(0)
    known, hidden = make_observed(rng, 3000, means), make_observed(rng, 3000, means)
    key = jax.random.key(0)
    shares = [leakage.recovered_share(known, hidden, 0, level, key) for level in (0, 1, 100)]
    assert shares[0] > 0.8
    assert shares[0] > shares[1] + 0.05 > shares[2] + 0.1
    assert shares[2] == pytest.approx(1 / len(means), abs=0.05)


def test_a_token_met_once_can_be_named():
    x = np.array([[0.0, 0.0], [0.1, -0.1], [0.0, 0.1], [9.0, 9.0]])
    probe = leakage.fit_probe(x, np.array([3, 3, 3, 8]))
    assert list(probe(np.array([[0.1, 0.0], [8.0, 9.0]]))) == [3, 8]


@pytest.mark.slow
def test_fresh_embeddings_give_most_tokens_away(capsys):
    leakage.main([f"--config={SUPPORT / 'tiny_run.py'}", "--texts=100", "--noise=0,100"])
    rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    first, *_, guess = [[float(number) for number in row[1:]] for row in rows]
    assert first[0] > 60 > first[1]
    assert guess[0] == guess[1] < 40
