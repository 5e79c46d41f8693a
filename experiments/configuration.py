"""Reading a configuration file and the overrides on the command line."""

import ast
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from collapipe_jax.config.checks import check_config, unknown_key
from collapipe_jax.errors import InputError


def read_config(path: str, overrides: Sequence[str]) -> ConfigDict:
    """The configuration of a file, with ``--config.section.key=value`` applied.

    Args:
      path: a Python file with ``get_config()``.
      overrides: arguments of the form above.

    Raises:
      InputError: if the file or an argument is wrong, with the nearest key.
    """
    config = _call(path, "get_config")
    if not isinstance(config, ConfigDict):
        problem = f"its get_config() returns {type(config).__name__}"
        raise InputError("--config", path, problem, "Return an ml_collections.ConfigDict")
    for override in overrides:
        _apply(config, override)
    return config


def read_checked_config(path: str, overrides: Sequence[str]) -> ConfigDict:
    """The configuration of a file with all that can be checked without a corpus.

    Args:
      path: a Python file with ``get_config()``.
      overrides: as for :func:`read_config`.

    Raises:
      InputError: naming the key that is wrong.
    """
    return check_config(read_config(path, overrides))


def read_sweep(path: str) -> Any:
    """What ``get_sweep()`` of a configuration file returns.

    Raises:
      InputError: if there is no such file, or it has none.
    """
    return _call(path, "get_sweep")


def _call(path: str, name: str) -> Any:
    """Result of a function of a Python file."""
    file = Path(path)
    if not file.is_file():
        raise InputError("--config", path, "no such file", "Name a file, e.g. configs/default.py")
    spec = importlib.util.spec_from_file_location("_config_file", file)
    if spec is None or spec.loader is None:
        raise InputError("--config", path, "not a Python file", "Name a .py file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return getattr(module, name)()
    except Exception as error:  # whatever its author wrote
        problem = f"the file fails with {type(error).__name__}: {error}".splitlines()[0]
        raise InputError("--config", path, problem, "Correct it") from error


def _apply(config: ConfigDict, override: str) -> None:
    """Set one key from ``--config.section.key=value``."""
    name, separator, text = override.partition("=")
    if not (separator and name.startswith("--config.")):
        raise InputError("argument", override, "not understood", "Write --config.section.key=value")
    name = name.removeprefix("--config.")
    if name not in _flat_keys(config):
        raise unknown_key(name, text)
    *sections, key = name.split(".")
    section = config
    for step in sections:
        section = section[step]
    default = section[key]
    value = text if isinstance(default, str) else _parse(text)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    # ConfigDict itself would take None for anything and True for 1.0.
    if value is None or isinstance(value, bool) != isinstance(default, bool):
        raise _wrong_type(name, text, default)
    try:
        section[key] = value
    except TypeError:
        raise _wrong_type(name, text, default) from None


def _wrong_type(name: str, text: str, default: object) -> InputError:
    problem = f"not of type {type(default).__name__}"
    return InputError(name, text, problem, f"Give a value like {default!r}")


def _parse(text: str):
    """A Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _flat_keys(config: ConfigDict, prefix: str = "") -> list[str]:
    """Names of all values, with the sections they stand in."""
    names = []
    for key, value in config.items():
        name = prefix + key
        names += _flat_keys(value, name + ".") if isinstance(value, ConfigDict) else [name]
    return names
