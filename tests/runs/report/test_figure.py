"""The picture of the network as a figure."""

import pytest
from support.drawing import rendered

from collapipe_jax.core.errors import InputError
from collapipe_jax.runs.figures.round import draw_network
from collapipe_jax.runs.results.checkpoints import load_run


def test_a_round_has_the_cell_and_all_clusters_with_their_blocks(folders):
    records = [load_run(folders[kind]) for kind in ("pipeline", "clients")]
    figure = rendered(draw_network(records, 2))
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    clusters = ["cluster 0", "cluster 1"]
    first = ["static pipeline, round 2", *clusters]
    assert titles == [*first, "splitfed, round 2", *clusters]
    held = records[0].history["segments"][2].ravel()
    drawn = [text.get_text() for axes in figure.axes[1:3] for text in axes.texts]
    assert [word for word in drawn if word] == [str(count) for count in held if count]


def test_a_round_that_is_not_there_is_refused(folders):
    with pytest.raises(InputError, match="no such round"):
        draw_network([load_run(folders["pipeline"])], 99)
