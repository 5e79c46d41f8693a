"""Reading a configuration file and the overrides on the command line."""

import ast
import difflib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from collapipe_jax.errors import InputError


def read_config(path: str, overrides: Sequence[str]) -> ConfigDict:
    """The configuration of a file, with ``--config.section.key=value`` applied.

    Args:
      path: a Python file with ``get_config()``.
      overrides: arguments of the form above.

    Raises:
      InputError: if the file or an argument is wrong, with the nearest key.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError("--config", path, "no such file", "Name a file, e.g. configs/default.py")
    spec = importlib.util.spec_from_file_location("_config_file", file)
    if spec is None or spec.loader is None:
        raise InputError("--config", path, "not a Python file", "Name a .py file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    for override in overrides:
        _apply(config, override)
    return config


def _apply(config: ConfigDict, override: str) -> None:
    """Set one key from ``--config.section.key=value``."""
    name, separator, text = override.partition("=")
    if not (separator and name.startswith("--config.")):
        raise InputError("argument", override, "not understood", "Write --config.section.key=value")
    name = name.removeprefix("--config.")
    known = _flat_keys(config)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"Did you mean {near[0]}" if near else "See configs/default.py for all keys"
        raise InputError(name, text, "unknown key", remedy)
    *sections, key = name.split(".")
    section = config
    for step in sections:
        section = section[step]
    default = section[key]
    value = text if isinstance(default, str) else _parse(text)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    try:
        section[key] = value
    except TypeError:
        kind = type(default).__name__
        raise InputError(
            name, text, f"not of type {kind}", f"Give a value like {default!r}"
        ) from None


def _parse(text: str):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _flat_keys(config: ConfigDict, prefix: str = "") -> list[str]:
    """Names of all values, with the sections they stand in."""
    names = []
    for key, value in config.items():
        name = prefix + key
        names += _flat_keys(value, name + ".") if isinstance(value, ConfigDict) else [name]
    return names
