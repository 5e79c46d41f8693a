from support import tiny_corpora

from collapipe_jax.learning.tasks.classification import read_sets
from collapipe_jax.learning.tasks.linear_baselines import class_scores, tag_scores, text_svm
from collapipe_jax.learning.tasks.tagging import read_tagged


def test_a_linear_model_reads_what_a_word_tells(tmp_path):
    methods = class_scores(
        read_sets(**tiny_corpora.write_sets(tmp_path, "classification"), samples=0, seed=0)
    )
    scores = {name: work()[0].value for name, work in methods.items()}
    assert scores.pop("majority class") == 50.0
    assert len(scores) == 2
    assert all(score == 100.0 for score in scores.values())


def test_a_linear_tagger_reads_neighbours_where_memory_does_not(tmp_path):
    methods = tag_scores(
        read_tagged(**tiny_corpora.write_sets(tmp_path, "tagging"), samples=0, seed=0)
    )
    nothing, memory, linear = (work()[0].value for work in methods.values())
    assert nothing == 0.0
    assert 40.0 < memory < 70.0
    assert linear == 100.0


def test_a_summary_gets_the_scores_of_the_linear_model(tmp_path):
    sets = read_sets(**tiny_corpora.write_sets(tmp_path, "classification"), seed=0)
    found = text_svm(sets)
    assert found == {"test_accuracy_linear": 100.0, "test_macro_f1_linear": 100.0}
