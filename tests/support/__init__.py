"""What tests share: paths, made-up problems and runs, and the reference implementation."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
GOLDEN = Path(__file__).parents[1] / "data"
