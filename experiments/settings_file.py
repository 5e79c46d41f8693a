"""Settings of an experiment on file: ``config.json`` in its workdir."""

import json
from pathlib import Path
from typing import Any

from collapipe_jax.errors import InputError


def read_settings(folder: Path, key: str, name: str, program: str) -> dict[str, Any]:
    """Settings on file of one kind of experiment.

    Args:
      folder: its workdir.
      key: that settings of this kind have.
      name: what such an experiment is called, for the message.
      program: that writes it.

    Raises:
      InputError: if the folder holds none.
    """
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = None
    if not isinstance(settings, dict) or key not in settings:
        raise InputError(
            "workdir", str(folder), f"holds no {name}", f"Name the workdir of {program}"
        )
    return settings
