"""What tests share: paths, made-up problems and runs, and the reference implementation."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
GOLDEN = Path(__file__).parents[1] / "data"

needs_corpora = pytest.mark.skipif(
    not os.environ.get("COLLAPIPE_DATA"), reason="COLLAPIPE_DATA is not set"
)
