"""The study of score against epsilon: its vocabulary, its settings and its table."""

import numpy as np
import pytest
from support import tiny_run

from collapipe_jax.learning.tasks.subwords import CONTINUES, SPECIAL_PIECES, WordPiece
from collapipe_jax.runs.config.experiment import build_experiment
from experiments.studies.privacy import short_vocabulary, summarise, with_privacy

pytestmark = pytest.mark.usefixtures("no_data")


def test_a_short_vocabulary_spells_every_word_and_keeps_the_first_ones():
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["[PAD]", "[unused0]", *SPECIAL_PIECES[1:], *letters, "the", "##ing", "zebra"]
    pieces += [CONTINUES + letter for letter in letters] + ["?", "été"]
    found = short_vocabulary(pieces, len(SPECIAL_PIECES) + 2 * 26 + 2)
    assert found[0] == "[PAD]"
    assert {*SPECIAL_PIECES, *letters, *(CONTINUES + letter for letter in letters)} < set(found)
    assert found[-2:] == ["the", "##ing"]
    wordpiece = WordPiece(found)
    assert wordpiece.pieces == tuple(found)


def test_a_setting_changes_privacy_alone():
    pytest.importorskip("dp_accounting", reason='pip install -e ".[privacy]"')
    config = tiny_run.get_config()
    config.policy.name, config.training.embedding_rate_factor = "control_unit_fl", 1.0
    built = build_experiment(config)
    assert with_privacy(built, "none", 0.0).account is None
    for unit in ("cluster", "example"):
        private = with_privacy(built, unit, 5.0)
        assert private.account.unit == unit
        assert private.account.epsilon(6) == pytest.approx(5.0, rel=1e-6)
        assert private.task is built.task
        np.testing.assert_array_equal(private.cluster_weight, built.cluster_weight)


def test_scores_of_a_setting_are_those_of_its_seeds():
    rows = [
        {"unit": unit, "epsilon": epsilon, "seed": seed, "accuracy": score + seed}
        | {"noise_multiplier": 2.0}
        for unit, epsilon, score in (("none", 0.0, 80.0), ("example", 8.0, 30.0))
        for seed in (0, 1, 2)
    ]
    none, private = summarise(rows)
    assert (none["unit"], private["epsilon"]) == ("none", 8.0)
    assert none["accuracy"]["mean"] == pytest.approx(81.0)
    assert private["accuracy"]["mean"] == pytest.approx(31.0)
    half = 4.302653 / np.sqrt(3)  # Student's t of 2 degrees, deviation 1
    assert private["accuracy"]["ci95"] == pytest.approx(half, rel=1e-6)
