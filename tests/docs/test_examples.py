"""Every public name is documented, on its page too, and its example gives what it says."""

import doctest
import re

import pytest
from support import ROOT

import collapipe_jax as cp

NAMES = [name for name in cp.__all__ if name != "__version__"]
_LONG = ("train", "open_results")
"""Names whose examples train a model."""
_SHOWN_ELSEWHERE = {"TrainedRun": "train"}
"""Names without an example of their own, and whose example shows them."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in _LONG else name for name in NAMES],
)
def test_its_example_runs(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = getattr(cp, name)
    assert found.__doc__
    examples = doctest.DocTestParser().get_doctest(found.__doc__, {}, name, None, None)
    assert examples.examples or name in _SHOWN_ELSEWHERE
    output = []
    result = doctest.DocTestRunner().run(examples, out=output.append)
    assert not result.failed, "".join(output)


def test_the_reference_lists_it():
    page = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. auto\w+:: (\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(NAMES)
