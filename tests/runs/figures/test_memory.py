"""Memory against blocks held."""

import numpy as np
from support.made_up_comparisons import compared, rulers

from collapipe_jax.runs.figures import limits


def test_memory_is_summed_over_held():
    values = {
        "blocks_held": np.array([[0.0, 3, 0, 1], [0, 1, 0, 3]]),
        "memory_by_blocks": np.array([[0.0, 30, 0, 50], [0, 14, 0, 190]]),
    }
    mean, share = limits.held_memory(values)
    np.testing.assert_allclose(mean, [np.nan, 11, np.nan, 60])
    np.testing.assert_allclose(share, [0, 50, 0, 50])
    nobody = {field: np.zeros((2, 4)) for field in values}
    mean, share = limits.held_memory(nobody)
    assert np.isnan(mean).all()
    assert not share.any()


def test_memory_figure_shows_markers_limits_and_shares(tmp_path):
    result = compared(tmp_path)
    above, below = limits.draw_memory(result).axes
    unit = 2.0**30
    limits_bytes = result.networks["memory_limit_bytes"]
    ruled = [line.get_ydata()[0] for line in rulers(above) if np.ptp(line.get_ydata()) == 0]
    assert sorted(ruled) == [4, 8]
    share = 100 * np.mean(limits_bytes == 4 * unit)
    assert above.texts[0].get_text() == f"limit of {share:.0f} % of the devices"
    markers = [line for line in above.lines if line not in rulers(above)]
    for line, values in zip(markers, result.policies.values(), strict=True):
        held = values["blocks_held"].sum(axis=0)
        blocks = np.flatnonzero(held)
        np.testing.assert_array_equal(np.round(line.get_xdata()), blocks)
        np.testing.assert_allclose(line.get_ydata() * unit, 3.5e8 * blocks)
    shares = {text.get_position(): text.get_text() for text in below.texts}
    for row, values in enumerate(result.policies.values()):
        held = values["blocks_held"].sum(axis=0)
        for blocks in np.flatnonzero(held):
            percent = 100 * held[blocks] / held.sum()
            assert shares[blocks, row] == (f"{percent:.0f}" if percent >= 0.5 else "<1")


def test_many_limits_become_three():
    told = limits.board_limits(np.arange(1.0, 10.0).reshape(3, 3))
    assert told == {"smallest limit": 1.0, "median limit": 5.0, "largest limit": 9.0}
