import json

import numpy as np
import pytest

from collapipe_jax.errors import InputError
from collapipe_jax.training.workdir import RunFiles

CONFIG = {"seed": 0, "policy": {"name": "dssra"}, "task": {"kind": "translation"}}


class Silent:
    """An objective that writes nothing."""

    def save(self, folder):
        pass

    def export(self, params, folder):
        pass


def test_a_summary_is_strict_json_whatever_came_out(tmp_path):
    """A run whose clock never advanced, or whose loss overflowed, ends with nulls."""
    summary = {"test_loss": float("nan"), "nested": {"ratios": [np.float64("inf"), 1.0]}}
    with RunFiles(tmp_path / "run", CONFIG, resume=False) as files:
        assert files.lacks_summary()
        files.finish(summary, Silent(), {})
        assert not files.lacks_summary()

    def refuse(name):
        raise AssertionError(name)

    text = (tmp_path / "run/summary.json").read_text()
    assert json.loads(text, parse_constant=refuse) == {
        "test_loss": None,
        "nested": {"ratios": [None, 1.0]},
    }


def test_another_configuration_is_refused_before_anything_is_written(tmp_path):
    with RunFiles(tmp_path / "run", CONFIG, resume=False):
        pass
    with pytest.raises(InputError, match="seed is 0 there and 1 here"):
        RunFiles(tmp_path / "run", CONFIG | {"seed": 1}, resume=True)
