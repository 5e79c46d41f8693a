"""Seeds of a configuration."""

from collections.abc import Mapping
from typing import Any


def seed_of(config: Mapping[str, Any], section: str) -> int:
    """The seed of a section that may have its own, or else that of the run."""
    own = config[section].get("seed", -1)  # a wrong key is missing here, and reported elsewhere
    return config.get("seed", 0) if own < 0 else own
